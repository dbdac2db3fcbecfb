"""`python -m tools.bench.brokers`: emission where the broker is not the ledger's Redis.

Ours and stock RedBeat in turns, on another Redis and on RabbitMQ, until the last message is queued.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import kombu

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.sending.queues import message_count
from tests.rabbitmq.broker import rabbitmq
from tools.bench import machine
from tools.bench.emission import emitted
from tools.bench.sides import Side


@dataclass
class Apart(Side):
    broker: str = ""
    """Its address; `url` has the ledger, and RedBeat's schedule."""

    @property
    def environment(self) -> dict[str, str]:
        own = {"BROKER": self.broker, "REDIS": self.url, "SUPERVISOR_REDIS_URL": self.url}
        return {**super().environment, **own}

    def empty(self) -> None:
        super().empty()
        with kombu.Connection(self.broker) as connection:
            queue = kombu.Queue("celery", kombu.Exchange("celery"), "celery")
            bound = queue(connection.default_channel)
            bound.declare()
            bound.purge()

    @contextmanager
    def queued(self) -> Iterator[Callable[[], int]]:
        with kombu.Connection(self.broker) as connection:
            yield partial(message_count, connection.default_channel, "celery")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--jobs-of-stock", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ledger = stack.enter_context(EmbeddedServer(directory / "ledger"))
        (directory / "rabbitmq").mkdir()
        brokers = {
            "another Redis": stack.enter_context(EmbeddedServer(directory / "broker")).url,
            "RabbitMQ": stack.enter_context(rabbitmq(directory / "rabbitmq")).url,
        }
        for number, (what, url) in enumerate(brokers.items()):
            place = ledger.url.rpartition("/")[0]
            taking_part = {
                name: Apart(name, "due", directory / what / name, f"{place}/{db}", broker=url)
                for db, name in enumerate(("ours", "redbeat"), 2 * number + 1)
            }
            for side in taking_part.values():
                stack.callback(side.stop)
            ratios = []
            for turn in range(options.rounds):
                a_second = {}
                for name, side in taking_part.items():
                    jobs = options.jobs if name == "ours" else options.jobs_of_stock
                    a_second[name] = jobs / emitted(side, jobs)["seconds"]
                ratios.append(a_second["ours"] / a_second["redbeat"])
                sys.stdout.write(
                    f"round {turn + 1} on {what}: ours {a_second['ours']:.0f} a second, stock"
                    f" {a_second['redbeat']:.0f}, {ratios[-1]:.1f} times; load {machine.load()},"
                    f" {os.cpu_count()} processors\n"
                )
                sys.stdout.flush()
            sys.stdout.write(f"{what}: {median(ratios):.1f} times stock's\n")


if __name__ == "__main__":
    main()
