"""Entries of the record of actions in words."""

from __future__ import annotations

from datetime import UTC, datetime

from supervisor.ledger.actions import Action, Actor, Change, Entry, Outcome
from supervisor.operate.words import what_words


def words_of(target: str, *changes: Change) -> list[str]:
    jobs = tuple(dict.fromkeys(change.job for change in changes))
    action = Action(Actor("beat", "beat", "host"), "load", target, "", jobs, changes)
    entry = Entry("1-0", datetime(2026, 1, 1, tzinfo=UTC), action, Outcome.DONE, "", "")
    return list(what_words(entry))


def test_a_load_of_one_job_says_which() -> None:
    assert words_of("schedules", Change("report", "every", "2s -> 1s")) == [
        "report every: 2s -> 1s"
    ]


def test_an_edit_of_a_job_does_not_repeat_its_name() -> None:
    assert words_of("report", Change("report", "every", "2s -> 1s")) == ["every: 2s -> 1s"]
