"""Which jobs a silence is about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from supervisor.features.notices.incidents import SERVICE
from supervisor.features.notices.silences import Silence, silenced
from supervisor.job.spec import JobSpec

NOW = datetime(2026, 3, 1, tzinfo=UTC)

SPECS = {
    name: JobSpec(name=name, task="t", every="1h", labels=labels)
    for name, labels in {
        "a": {"tenant": "acme"},
        "b": {"tenant": "other"},
        "c": {},
    }.items()
}


def silence(hours: int = 1, **about: str) -> Silence:
    ends_at = NOW + timedelta(hours=hours)
    return Silence(id="1", begins_at=NOW, ends_at=ends_at, by="ann", reason="r", **about)


@pytest.mark.parametrize(
    ("about", "jobs"),
    [
        ({"job": "a"}, {"a"}),
        ({"label": "tenant=acme"}, {"a"}),
        ({"label": "tenant"}, {"a", "b"}),
        ({"label": "team"}, set()),
        ({}, {"a", "b", "c", SERVICE}),
    ],
)
def test_a_silence_covers(about: dict[str, str], jobs: set[str]) -> None:
    assert silenced(SPECS, [silence(**about)]).keys() == jobs


def test_the_last_of_several_to_end_counts() -> None:
    both = [silence(3, job="a"), silence(2)]
    ends = {name: until - NOW for name, until in silenced(SPECS, both).items()}
    hours = {name: at / timedelta(hours=1) for name, at in ends.items()}
    assert hours == {"a": 3, "b": 2, "c": 2, SERVICE: 2}
