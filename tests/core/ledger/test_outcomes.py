"""What the ledger answers about an attempt: a table of functions, page and replies."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.attempt import Grant, GrantedAttempt, Refusal, Refused
from supervisor.ledger.function_library import source
from supervisor.ledger.ledger import Ledger
from supervisor.testing import lease_runs_out
from tests.jobs import at_work, begin, granted_of, job, run_id, ticks

PAGE = Path("docs/internals/transitions.md")
CALLS = ("begin", "renew", "finish", "rescue")

Table = dict[str, dict[str, str]]


def of_functions() -> Table:
    rows = re.findall(r"^  (\w+) += \{(.*)\},$", source("attempts"), re.M)
    return {name: dict(re.findall(r"(\w+) = '(\w+)'", cells)) for name, cells in rows}


def of_the_page() -> Table:
    _, _, section = PAGE.read_text().partition("## What the ledger answers about an attempt\n")
    table, _, _ = section.partition("\n## ")
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \|(.*)\|$", table, re.M)
    return {
        name: {
            call: word
            for call, cell in zip(CALLS, cells.split("|"), strict=True)
            if (word := cell.strip().strip("`"))
        }
        for name, cells in rows
    }


def test_the_page_has_the_table_of_the_functions() -> None:
    assert of_functions() == of_the_page() != {}


def test_the_page_has_each_reason_of_a_dropped_delivery() -> None:
    states = [None, *RunState]
    reasons = {
        Refused("run", refusal, state).reason
        for refusal in Refusal
        if refusal is not Refusal.KEPT_OUT
        for state in (states if refusal is Refusal.DUPLICATE else [None])
    }
    _, _, section = PAGE.read_text().partition("## Why a delivery is dropped\n")
    assert {*re.findall(r"^\| `(\w+)` \|", section.partition("\n## ")[0], re.M)} == reasons


# Each attempt has the token "token".


def queued(ledger: Ledger, spec: JobSpec) -> None:
    ledger.admit(ticks(spec, 0))


def running(ledger: Ledger, spec: JobSpec) -> None:
    at_work(ledger, spec, 0)


def silent(ledger: Ledger, spec: JobSpec) -> None:
    at_work(ledger, spec, 0)
    lease_runs_out(ledger, run_id(spec, 0))


def given_up(ledger: Ledger, spec: JobSpec) -> None:
    silent(ledger, spec)
    ledger.rescue()


def superseded(ledger: Ledger, spec: JobSpec) -> None:
    given_up(ledger, spec)
    begin(ledger, run_id(spec, 0), "another")


def forgotten(ledger: Ledger, spec: JobSpec) -> None:
    queued(ledger, spec)


def over(ledger: Ledger, spec: JobSpec) -> None:
    at_work(ledger, spec, 0)
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)


def unknown(ledger: Ledger, spec: JobSpec) -> None:
    """There is no run."""


STANDINGS = (queued, running, silent, given_up, superseded, forgotten, over, unknown)

#: A cell without a word says that `rescue` does nothing, or that no worker makes that call.
CELLS = [
    pytest.param(call, standing, id=f"{call}-{standing.__name__}")
    for standing in STANDINGS
    for call in CALLS
    if call in of_functions()[standing.__name__] or call == "rescue"
]


@pytest.mark.parametrize(("call", "standing"), CELLS)
def test_a_call_answers_as_the_table_says(
    ledger: Ledger, call: str, standing: Callable[[Ledger, JobSpec], None]
) -> None:
    expected = of_functions()[standing.__name__].get(call)
    spec = job(ledger, on_crash="rerun", max_crashes=3)
    standing(ledger, spec)
    granted = None if standing is queued else granted_of(ledger)
    if standing is queued and call == "rescue":
        lease_runs_out(ledger, run_id(spec, 0))  # no worker has begun it in time
    assert answer(ledger, spec, call, granted) == expected


def answer(ledger: Ledger, spec: JobSpec, call: str, granted: GrantedAttempt | None) -> str | None:
    run = run_id(spec, 0)
    match call:
        case "begin":
            reply = ledger.begin(run, "token", "worker")
            assert isinstance(reply, Grant | Refused)
            return "begin" if isinstance(reply, Grant) else reply.refusal.value
        case "renew":
            # Of one whose work is over, which only has that to report.
            [renewal] = ledger.renew([(run, "token", 2, granted)])
            return renewal.state.value
        case "finish":
            return ledger.finish(run, "token", RunState.SUCCEEDED, granted=granted).ending.value
        case _:
            return next((each.kind for each in ledger.rescue() if each.run_id == run), None)
