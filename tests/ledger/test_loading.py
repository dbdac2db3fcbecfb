"""Loading a set of jobs: what the ledger and RedBeat have afterwards, whoever else loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from supervisor.app import supervise
from supervisor.entries import Entries
from supervisor.errors import PlanOutdated
from supervisor.ledger.runs import Ledger
from supervisor.loading import load
from supervisor.spec import JobSpec

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def entries(ledger: Ledger, redis_url: str) -> Iterator[Entries]:
    app = supervise(Celery("loaded", broker=redis_url))
    yield Entries(app, ledger.client, ledger.keys)
    app.close()


def spec(name: str, **keys: Any) -> JobSpec:
    return JobSpec.model_validate({"name": name, "task": "t", "every": "5m", **keys})


def jobs(*specs: JobSpec) -> dict[str, JobSpec]:
    return {each.name: each for each in specs}


class Interrupted(dict[str, JobSpec]):
    """A set of jobs; somebody else acts in the middle of its being loaded."""

    def __init__(self, specs: dict[str, JobSpec], act: Callable[[], object]) -> None:
        super().__init__(specs)
        self.act: Callable[[], object] | None = act

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        if act := self.act:
            self.act = None
            act()
        return super().keys()


def due(ledger: Ledger) -> dict[str, float]:
    """RedBeat's sorted set, without what is not a job's."""
    found = ledger.client.zrange("redbeat::schedule", 0, -1, withscores=True)
    return {key.removeprefix("redbeat:"): score for key, score in found}


def test_what_is_loaded_is_due_in_redbeat_and_known_to_the_ledger(
    ledger: Ledger, entries: Entries
) -> None:
    wanted = jobs(spec("a"), spec("b", every="1h"))
    assert load(ledger, entries, wanted, "one", NOW).added == ("a", "b")
    assert ledger.scheduled() == wanted
    assert due(ledger) == {
        "a": (NOW + timedelta(minutes=5)).timestamp(),
        "b": (NOW + timedelta(hours=1)).timestamp(),
    }
    changes = load(ledger, entries, jobs(spec("b", every="2h")), "two", NOW)
    assert (changes.changed, changes.removed) == (("b",), ("a",))
    assert due(ledger) == {"b": (NOW + timedelta(hours=2)).timestamp()}


def test_two_that_load_at_once_leave_one_set_and_no_mixture(
    ledger: Ledger, entries: Entries
) -> None:
    load(ledger, entries, jobs(spec("a"), spec("b")), "before", NOW)
    theirs, ours = jobs(spec("c"), spec("b", every="1h")), jobs(spec("a"), spec("d"))
    changes = load(
        ledger,
        entries,
        Interrupted(ours, lambda: load(ledger, entries, theirs, "theirs", NOW)),
        "ours",
        NOW,
    )
    assert ledger.scheduled() == ours
    assert set(due(ledger)) == set(ours)
    assert ledger.client.hget(ledger.keys.beat, "config") == "ours"
    assert (changes.added, changes.removed) == (("a", "d"), ("b", "c"))


def test_a_plan_that_was_agreed_to_is_not_applied_to_something_else(
    ledger: Ledger, entries: Entries
) -> None:
    load(ledger, entries, jobs(spec("a")), "before", NOW)
    seen = ledger.scheduled()
    load(ledger, entries, jobs(spec("a", every="1h")), "theirs", NOW)
    with pytest.raises(PlanOutdated):
        load(ledger, entries, jobs(spec("b")), "ours", NOW, planned_on=seen)
    assert ledger.scheduled() == jobs(spec("a", every="1h"))


def test_a_plan_is_refused_also_when_another_loads_in_the_same_moment(
    ledger: Ledger, entries: Entries
) -> None:
    theirs = jobs(spec("c"))
    ours = Interrupted(jobs(spec("a")), lambda: load(ledger, entries, theirs, "theirs", NOW))
    with pytest.raises(PlanOutdated):
        load(ledger, entries, ours, "ours", NOW, planned_on={})
    assert ledger.scheduled() == theirs
