"""The atomic scripts: each `.lua` file behind the text they share and the keys of keys.py."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from importlib.resources import files
from typing import Any

from redis.commands.core import Script

from supervisor.durations import to_ms
from supervisor.ledger.connection import Client
from supervisor.ledger.keys import Keys
from supervisor.spec import SERIAL_LOCK

#: How long an ended run stays readable, and how many runs of a job at most.
HISTORY_TTL = timedelta(days=7)
HISTORY_LENGTH = 200

GRANTS_KEPT = 100

#: A worker that promoted a run publishes it itself; after this, beat does.
HANDOVER_GRACE = timedelta(seconds=2)

#: Upper bounds, in seconds, of the duration and start-delay histograms.
BOUNDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400)

NAMES = ("admit", "pass", "begin", "renew", "finish", "mark", "cancel", "rescue", "sent")


@cache
def source(name: str) -> str:
    return files("supervisor.ledger").joinpath(f"{name}.lua").read_text(encoding="utf-8")


def constants() -> str:
    bounds = ", ".join(map(str, BOUNDS))
    return (
        f"local HISTORY_TTL, HISTORY_LENGTH = {to_ms(HISTORY_TTL)}, {HISTORY_LENGTH}\n"
        f"local GRANTS_KEPT, HANDOVER_GRACE = {GRANTS_KEPT}, {to_ms(HANDOVER_GRACE)}\n"
        f"local SERIAL_LOCK, BOUNDS = '{SERIAL_LOCK}', {{{bounds}}}\n"
    )


class Scripts:
    """The scripts of one ledger; ``scripts("begin", run_id, token)`` is one round trip."""

    def __init__(self, client: Client, keys: Keys) -> None:
        shared = keys.as_lua() + constants() + source("common")
        self._scripts: dict[str, Script] = {
            name: client.register_script(shared + source(name)) for name in NAMES
        }

    def __call__(
        self,
        name: str,
        *args: str | int,
        keys: tuple[str, ...] = (),
        client: Client | None = None,
    ) -> Any:
        """Runs the script, or with a pipeline enters it there."""
        return self._scripts[name](keys=keys, args=args, client=client)
