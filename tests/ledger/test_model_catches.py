"""A model that agrees with everything proves nothing: functions that are broken on purpose."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from supervisor.ledger import functions
from supervisor.ledger.ledger import Ledger
from tests.ledger.machines import run_machine
from tests.ledger.test_model import LedgerMachine

BREAKS = {
    "the slots of a lock are not counted": (
        "slots",
        "return found, #slots_of(found)",
        "return found, 0",
    ),
    "anybody gives a slot back": (
        "leases",
        "local is_own = redis.call('GET', key) == token",
        "local is_own = true",
    ),
    "a run begins whatever its state": (
        "begin",
        "if run.state ~= 'queued' or run.last_token == token or is_stale then",
        "if run.state == 'waiting' then",
    ),
    "a run that was sent stays in the outbox": (
        "slots",
        "elseif not run.message then",
        "else",
    ),
    "a slot is held for ever": (
        "leases",
        "'PX', digits(math.max(1, ms)))",
        "'KEEPTTL')",
    ),
}


def break_functions(monkeypatch: pytest.MonkeyPatch, part: str, line: str, broken: str) -> None:
    """For ledgers that are opened from now on."""
    whole = functions.source
    if line not in whole(part):
        pytest.fail(f"{part}.lua has no {line!r} to break")

    def source(name: str) -> str:
        text = whole(name)
        return text.replace(line, broken) if name == part else text

    monkeypatch.setattr(functions, "source", source)


@pytest.mark.parametrize("what", BREAKS)
def test_the_machine_fails_when(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    break_functions(monkeypatch, *BREAKS[what])
    with pytest.raises((AssertionError, ResponseError)):
        run_machine(LedgerMachine, Ledger(ledger.client, ledger.keys), 4000, first_seed=0)
