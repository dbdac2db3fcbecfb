"""Models that agree with everything prove nothing: scripts that are broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis.errors import Flaky
from redis.exceptions import ResponseError

from supervisor.ledger import function_library, functions, limits
from supervisor.ledger.ledger import Ledger
from supervisor.store.keys import Keys
from tests.core.ledger.machines import run_machine
from tests.core.ledger.test_model import LedgerMachine
from tests.core.ledger.test_stages_model import StagesMachine

BREAKS = {
    "the slots of a lock are not counted": (
        "ends",
        "return living, #slots_of(living)",
        "return living, 0",
    ),
    "anybody gives a slot back": (
        "slots",
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
        "started[#started + 1] = { run = run, message = message }\n    return",
        "started[#started + 1] = { run = run, message = message }",
    ),
    "a message is pushed twice": (
        "messages",
        "redis.pcall('LPUSH', list, unpack(texts))",
        "redis.pcall('LPUSH', list, texts[1], unpack(texts))",
    ),
    "a run is recorded as sent, and its message is not": (
        "messages",
        "redis.pcall('LPUSH', list, unpack(texts))",
        "'not pushed'",
    ),
    "a message is pushed, and its run not recorded as sent": (
        "slots",
        "append(fields, { 'sent', now, 'sends', 1, 'queue', message.queue })",
        "",
    ),
    "a run that ends is not told to its followers": (
        "followers",
        "local waiting = not first and hget(K.run(id), 'followed_by') or nil",
        "local waiting = nil",
    ),
    "a run that has begun is given up": (
        "cancel",
        "if outcome ~= 'cancelled' and run.state ~= 'queued' then",
        "if false then",
    ),
    "a relieved beat lets runs go": (
        "follow",
        "if leader ~= '' and redis.call('GET', KEYS[1]) ~= leader then return nil end",
        "",
    ),
    "a slot is held for ever": ("slots", "'PX', digits(math.max(1, ms)))", "'KEEPTTL')"),
}

#: With these each break is found within a second; with others some take the machine a minute.
SEED = 10
SEEDS = {
    "a run that ends is not told to its followers": 2,
    "a failed step stops nothing": 7,
    "items that are left to be ended may begin": 2,
    "a run that is put back leaves its first stage": 3,
}


def made_anew(prefix: str) -> function_library.Library:
    return function_library.Library(Keys(prefix))


def break_functions(monkeypatch: pytest.MonkeyPatch, part: str, line: str, broken: str) -> None:
    """For ledgers that are opened from now on."""
    whole = function_library.source
    if line not in whole(part):
        pytest.fail(f"{part}.lua has no {line!r} to break")

    def source(name: str) -> str:
        text = whole(name)
        return text.replace(line, broken) if name == part else text

    monkeypatch.setattr(function_library, "source", source)
    monkeypatch.setattr(functions, "library_of", made_anew)


def found_by(machine: Any, ledger: Ledger, what: str, steps: int) -> None:
    seed = SEEDS.get(what, SEED)
    run_machine(machine, Ledger(ledger.client, ledger.keys), steps, first_seed=seed)


@pytest.mark.parametrize("what", BREAKS)
def test_the_machine_fails_when(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    break_functions(monkeypatch, *BREAKS[what])
    with pytest.raises((AssertionError, ResponseError)):
        found_by(LedgerMachine, ledger, what, 4000)


STAGES_BREAKS = {
    "a stage begins with the first that ended": (
        "stages",
        "if is_item(run) or count_open(parent.id) == 0 then advance(parent) end",
        "advance(parent)",
    ),
    "a failed step stops nothing": (
        "stages",
        "plan_of(run.id).on_failure == 'stop'",
        "plan_of(run.id).on_failure == 'never'",
    ),
    "a step that ends is not taken out": (
        "stages",
        "redis.call('SREM', K.below(run.parent), run.id) == 1",
        "redis.call('SISMEMBER', K.below(run.parent), run.id) == 1",
    ),
    "a run that is put back leaves its first stage": (
        "attempts",
        "hooks.begin.withdrawn(run)",
        "do end",
    ),
    "a run's lock is forgotten while its steps are at work": (
        "slots",
        "    extend_root(run.id, ms)\n",
        "",
    ),
    "items that are left to be ended may begin": (
        "stages",
        "redis.call('ZADD', K.leases, unpack(left))",
        "",
    ),
}


STEPS = 30_000

#: Deadlines are real: what is found of them may not be found in the same sequence again.
NOTICED = (AssertionError, ResponseError, Flaky)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("what", STAGES_BREAKS)
def test_the_machine_of_stages_fails_when(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(limits, "ITEMS_PER_END", 1)
    break_functions(monkeypatch, *STAGES_BREAKS[what])
    with pytest.raises(NOTICED):
        found_by(StagesMachine, ledger, what, STEPS)
