"""The atomic scripts: each `.lua` file behind the text they share and the keys of keys.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib.resources import files
from typing import Any

from redis.commands.core import Script
from redis.exceptions import NoScriptError

from supervisor.durations import to_ms
from supervisor.ledger.connection import Client
from supervisor.ledger.keys import Keys
from supervisor.lock_keys import SERIAL_LOCK, STEP_LOCK
from supervisor.progress import LINES_KEPT
from supervisor.stages import ITEMS_AT_ONCE

#: How long an ended run stays readable.
HISTORY_TTL = timedelta(days=7)
GRANTS_KEPT = 100

#: A worker that promoted a run publishes it itself; after this, beat does.
HANDOVER_GRACE = timedelta(seconds=2)

#: A run of several steps holds its lock for so much longer than any of them may be silent.
STEP_MARGIN = timedelta(seconds=30)

#: Of a batch, items that ended badly are kept one by one, up to so many.
MOST_KEPT_ITEMS = 1_000

#: Items that one call queues; a thousand kept the server from all others for 15 ms.
ITEMS_PER_FILL = 100

#: Of a run that ended, params of more bytes are dropped.
LARGEST_KEPT_PARAM = 10_000

#: Of starts and ends that nobody could tell a job's `ping_url`, so many are kept.
MOST_PINGS = 10_000

#: Upper bounds, in seconds, of the duration and start-delay histograms.
BOUNDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400)

#: What the scripts share, in the order in which one part builds on another.
PARTS = ("base", "items", "slots", "attempts", "stages", "placing", "holding")

#: The ordinary cases of these scripts, which end before the parts that they do without: to make all
#: those functions takes the server longer than such a call itself.
FIRST = {"begin": "begin_item", "finish": "finish_item"}

NAMES = (
    *("admit", "pass", "begin", "renew", "restore", "finish"),
    *("mark", "cancel", "pause", "rescue", "sent", "audit", "expand", "fill", "report"),
)


@cache
def source(name: str) -> str:
    return files("supervisor.ledger").joinpath(f"{name}.lua").read_text(encoding="utf-8")


def constants() -> str:
    bounds = ", ".join(map(str, BOUNDS))
    return (
        f"local HISTORY_TTL = {to_ms(HISTORY_TTL)}\n"
        f"local GRANTS_KEPT, HANDOVER_GRACE = {GRANTS_KEPT}, {to_ms(HANDOVER_GRACE)}\n"
        f"local LINES_KEPT = {LINES_KEPT}\n"
        f"local SERIAL_LOCK, STEP_LOCK = '{SERIAL_LOCK}', '{STEP_LOCK}'\n"
        f"local STEP_MARGIN, ITEMS_AT_ONCE = {to_ms(STEP_MARGIN)}, {ITEMS_AT_ONCE}\n"
        f"local ITEMS_PER_FILL = {ITEMS_PER_FILL}\n"
        f"local MOST_KEPT_ITEMS, LARGEST_KEPT_PARAM = {MOST_KEPT_ITEMS}, {LARGEST_KEPT_PARAM}\n"
        f"local MOST_PINGS = {MOST_PINGS}\n"
        f"local BOUNDS = {{{bounds}}}\n"
    )


def text_of(name: str) -> str:
    first = [FIRST[name]] if name in FIRST else []
    return "".join(map(source, [*PARTS[:2], *first, *PARTS[2:], name]))


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call of a script."""

    args: tuple[str | int, ...]
    keys: tuple[str, ...] = ()


class Scripts:
    """The scripts of one ledger: one round trip for a call, and one for any number of calls."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._scripts: dict[str, Script] = {
            name: client.register_script(keys.as_lua() + constants() + text_of(name))
            for name in NAMES
        }

    def __call__(self, name: str, *args: str | int, keys: tuple[str, ...] = ()) -> Any:
        """``scripts("begin", run_id, token, worker)``"""
        return self._scripts[name](keys=keys, args=args)

    def many(self, name: str, calls: Sequence[Call]) -> list[Any]:
        """The replies to all calls of one script, which are made in order."""
        replies = self._send(name, calls)
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            # A server that was restarted or flushed. Those calls did nothing.
            self._client.script_load(self._scripts[name].script)
            again = self._send(name, [calls[i] for i in unknown])
            for i, reply in zip(unknown, again, strict=True):
                replies[i] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _send(self, name: str, calls: Sequence[Call]) -> list[Any]:
        # Not Script's own way into a pipeline, which asks each time whether the script is there.
        sha = self._scripts[name].sha
        with self._client.pipeline(transaction=False) as pipe:
            for call in calls:
                pipe.evalsha(sha, len(call.keys), *call.keys, *call.args)
            return list(pipe.execute(raise_on_error=False)) if calls else []
