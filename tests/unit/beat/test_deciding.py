"""What is due for each of many jobs."""

from __future__ import annotations

from datetime import UTC, datetime

from supervisor.beat.emitter import emissions_of
from supervisor.beat.entries import DueEntry
from supervisor.job.spec import JobSpec
from supervisor.ledger.records import Mark

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def due(name: str, watermark: datetime) -> DueEntry:
    return DueEntry(name, JobSpec(name=name, task="t", every="1s"), Mark(watermark, None, None))


def test_a_job_that_cannot_be_decided_on_keeps_no_other_from_its_ticks() -> None:
    without_zone = NOW.replace(tzinfo=None)
    found = emissions_of([due("broken", without_zone), due("sound", NOW.replace(second=0))], NOW)
    assert [emission.spec.name for emission in found] == ["sound"]
