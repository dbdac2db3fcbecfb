"""What RedBeat's own reader makes of our entries."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery
from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder
from redbeat.schedulers import RedBeatSchedulerEntry

from supervisor.catalog.entries import definition
from supervisor.job.spec import JobSpec

SCHEDULES: list[dict[str, Any]] = [
    {"every": "90s"},
    {"cron": "30 2 * * *", "timezone": "Europe/Berlin"},
    {"cron": "*/5 8-18 * * MON-FRI"},
    {"cron": "@daily"},
    {"cron": "0 0 L * *"},
    {"cron": "0 9 * * MON#2"},
    {"cron": ["0 9 * * 1-5", "0 12 * * 6"]},
    {"cron": "0 0 LW * *"},
    {"every": "1m", "phase": "20s", "jitter": "10s", "exclude": ["SAT"]},
    {"rrule": "FREQ=MONTHLY;BYDAY=2TU;BYHOUR=9;BYMINUTE=0", "timezone": "Europe/Berlin"},
    {"rrule": "FREQ=WEEKLY;INTERVAL=2", "start_at": "2026-03-02T08:00:00"},
    {"rrule": f"FREQ=DAILY;BYHOUR={','.join(map(str, range(24)))};BYMINUTE=5"},
    {"at": ["2026-12-24T18:00:00", "2026-12-25T18:00:00Z"]},
    {"cron": "30 2 * * *", "dst": {"fold": "both"}, "end_at": "2027-01-01T00:00:00"},
]


@pytest.mark.parametrize("when", SCHEDULES, ids=str)
def test_redbeat_can_decode_and_ask_every_entry(when: dict[str, Any]) -> None:
    spec = JobSpec.model_validate({"name": "job", "task": "proj.task", "serial": True, **when})
    text = json.dumps(definition(spec), cls=RedBeatJSONEncoder)
    app = Celery(broker="redis://")
    app.conf.update(redbeat_redis_url="redis://", redbeat_redis_options={})
    entry = RedBeatSchedulerEntry(app=app, **json.loads(text, cls=RedBeatJSONDecoder))
    entry.last_run_at = datetime(2026, 3, 1, tzinfo=UTC)
    assert entry.due_at is not None
    assert (entry.task, entry.options) == ("proj.task", {"queue": "serial.job"})
