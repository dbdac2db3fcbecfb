"""Tasks of other people's apps: they do the same with our one line as without it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.adoption.conftest import Deploy
from tests.adoption.foreign_app import ForeignApp
from tests.waiting import let_pass, wait_until

#: For how long each app goes on, supervised, once it has done everything like the plain one.
MINUTES = float(os.environ.get("ADOPTION_MINUTES", "0"))


@dataclass(frozen=True)
class Known:
    """An app: the task that its one job runs, its queues, and the packages that it needs."""

    module: str
    job: str
    queues: str = "celery"
    needs: tuple[str, ...] = ()

    green: str = ""
    """The queue of a gevent worker, beside the prefork one."""


KNOWN = [
    Known(
        "shop.celery", "{task: shop.orders.tasks.touch, args: [1]}", "default,orders", ("django",)
    ),
    Known("classes", "{task: add, args: [1, 2]}", "celery,bulk,mail"),
    Known("packed", "{task: text, args: [[a]]}", needs=("msgpack",)),
    Known("signed", "{task: measure, args: [[1]]}", needs=("cryptography",)),
    Known("entries", "{task: seen}"),
    Known("web", "{task: greet}", needs=("flask",)),
    Known("mixed", "{task: work}", green="io"),
]


def facts_of(known: Known, foreign_app: ForeignApp) -> dict[str, list[str]]:
    """Messages, results and what its tasks wrote, a line for each fact; its workers have ended."""
    ids = foreign_app.send()
    messages = foreign_app.messages()
    work(known, foreign_app)
    results = [*flat("", foreign_app.results(ids))]
    # A task stores its result before its last words, and its links run after that.
    wait_until(foreign_app.is_idle, 30)
    foreign_app.stop()
    return {"messages": messages, "results": results, "witness": foreign_app.witness()}


def work(known: Known, foreign_app: ForeignApp) -> None:
    foreign_app.worker("-Q", known.queues, "-c", "2")
    if known.green:
        green = ("-P", "gevent", "-c", "10", "-Q", known.green)
        foreign_app.worker(*green, name="green", is_cold=True)


def flat(at: str, value: object) -> Iterator[str]:
    match value:
        case dict():
            for name, inner in value.items():
                yield from flat(f"{at}.{name}", inner)
        case list():
            for number, inner in enumerate(value):
                yield from flat(f"{at}[{number}]", inner)
        case _:
            yield f"{at} = {value}"


@pytest.mark.timeout(600 + 120 * MINUTES)
@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.module)
def test_a_foreign_apps_tasks_do_the_same_with_one_line(known: Known, deploy: Deploy) -> None:
    for package in known.needs:
        pytest.importorskip(package)
    plain = facts_of(known, deploy(known.module, is_supervised=False))
    foreign_app = deploy(known.module, is_supervised=True)
    facts = facts_of(known, foreign_app)
    for kind, lines in plain.items():
        assert facts[kind] == lines
    work(known, foreign_app)
    foreign_app.schedule(f"jobs: {{own: {{every: 1s, {known.job[1:]}}}\n")
    foreign_app.start("beat", "beat", "-l", "info")
    wait_until(lambda: "own" in foreign_app.ledger.scheduled(), 30)
    wait_until(lambda: foreign_app.ledger.job("own").counters.get("finished:succeeded"), 30)
    until = time.monotonic() + 60 * MINUTES
    while time.monotonic() < until:
        assert [*flat("", foreign_app.results(foreign_app.send()))] == plain["results"]
        let_pass(2)
    checked = foreign_app.celery("supervisor", "check", "schedules")
    assert checked.returncode == 0, checked.stdout + checked.stderr
