"""Check-ins of runs at Sentry Crons, where the app has initialised `sentry_sdk` in beat.

1. A job has a monitor where it says so (`sentry_monitor`), or where the SDK would give one to
   RedBeat's own entries: `CeleryIntegration(monitor_beat_tasks=True)`, without those that
   `exclude_beat_tasks` names. Runs of the latter are admitted as if the job said so.
2. The functions that begin and end such runs write that down, as for a job with `ping_url`: a
   worker that is killed loses none, and no run waits for Sentry.
3. The leading beat gives them to the SDK, as one kind of what it sends
   (features/outbound/sender.py): `in_progress` with the first attempt, `ok` or `error` with the end
   of the run. Both have the same id, which is made of the run's: a check-in that is sent again
   changes nothing.

Sentry detects a missed check-in itself: it gets the schedule, and how late a start may be. In a
process that has not imported the SDK itself, this module does nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any
from uuid import UUID, uuid5

from supervisor.beat.turn import BeatContext, Part
from supervisor.features.outbound.answer import Answer
from supervisor.features.outbound.sender import Result
from supervisor.features.outbound.store import Kind, ReportKind, RunReport, Unsent
from supervisor.job.spec import KEPT_AT_HAND, JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.schedule.cron import NICKNAMES
from supervisor.schedule.expectations import (
    UNKNOWN_DURATION,
    interval_of,
    late_after,
    next_ticks,
    work_until_success,
)
from supervisor.sending.app_settings import owner_of

log = get_logger("supervisor.sentry")

#: Sentry has no word for a run that was cancelled or replaced: it did not do its work.
STATUSES = {
    ReportKind.START: "in_progress",
    ReportKind.SUCCESS: "ok",
    ReportKind.FAIL: "error",
    ReportKind.LOG: "error",
}

#: An interval is given in the largest of these units that divides it.
UNITS = {
    "day": timedelta(days=1),
    "hour": timedelta(hours=1),
    "minute": timedelta(minutes=1),
}

#: 28 days, the most that Sentry takes for a margin or a runtime.
MOST_MINUTES = 40_320

#: The SDK has a thread of its own and drops what its queue has no room for: each is waited for.
FLUSH_SECONDS = 5.0

UNEXPRESSED = "Sentry cannot express its schedule; sentry_monitor in the job's file gives it one"
NOT_INITIALISED = "it has sentry_monitor, and the app has not initialised sentry_sdk in beat"

NAMESPACE = UUID("0c1ac2a5-9b2f-5e0e-8d8e-5d3d52f5a8c4")


@dataclass(frozen=True, slots=True)
class Monitor:
    slug: str

    config: dict[str, Any] | None
    """None if Sentry cannot express the schedule. Then the monitor must exist already."""


class CheckIns:
    """The check-ins of one beat. owner: the app's name in the ledger."""

    def __init__(self, ledger: Ledger, owner: str) -> None:
        self._ledger = ledger
        self._place = f"{ledger.keys.prefix} of {owner}"
        self._monitored: dict[str, tuple[JobSpec, bool, JobSpec]] = {}

    def monitored(self, spec: JobSpec) -> JobSpec:
        """The job as its runs are admitted: with `sentry_monitor` if it has a monitor.

        The same each time for the same job.
        """
        if not (spec.sentry_monitor or beat_integration()):
            return spec
        is_active = client() is not None
        made_for, was_active, admitted = self._monitored.get(spec.name, (None, False, spec))
        if made_for != spec or was_active != is_active:
            if len(self._monitored) >= KEPT_AT_HAND:
                self._monitored.clear()
            admitted = self._as_admitted(spec, is_active=is_active)
            self._monitored[spec.name] = spec, is_active, admitted
        return admitted

    def _as_admitted(self, spec: JobSpec, *, is_active: bool) -> JobSpec:
        if not is_active:
            log.warning("check-ins disabled", job=spec.name, hint=NOT_INITIALISED)
        has_one = is_active and monitor_of(spec, datetime.now(UTC)) is not None
        if has_one == bool(spec.sentry_monitor):
            return spec
        return spec.model_copy(update={"sentry_monitor": has_one})

    def send(self, entry: Unsent) -> Result:
        """The SDK does not say what became of it: what it was given counts as taken."""
        report = RunReport.model_validate_json(entry.text)
        spec, sdk = self._ledger.some_specs([report.job]).get(report.job), client()
        monitor = monitor_of(spec, report.at) if spec else None
        if sdk is None or monitor is None:
            return Result(Answer.UNWANTED)
        check_in(monitor, report, self._place)
        sdk.flush(timeout=FLUSH_SECONDS)
        return Result(Answer.TAKEN)


def client() -> Any | None:
    """The SDK's client, if the app has initialised it with an address."""
    sdk = sys.modules.get("sentry_sdk")
    own = sdk.get_client() if sdk else None
    return own if own is not None and own.is_active() and own.options["dsn"] else None


def beat_integration() -> Any | None:
    own = client()
    integration = own.get_integration("celery") if own is not None else None
    return integration if getattr(integration, "monitor_beat_tasks", False) else None


def monitor_of(spec: JobSpec, now: datetime) -> Monitor | None:
    """The job's monitor, if it is to have one."""
    if spec.sentry_monitor is False:
        return None
    config = monitor_config(spec, now)
    if spec.sentry_monitor is not None:
        return Monitor(spec.name if spec.sentry_monitor is True else spec.sentry_monitor, config)
    integration = beat_integration()
    if integration is None or is_excluded(spec.name, integration.exclude_beat_tasks):
        return None
    if config is None:
        log.warning("monitor not created", job=spec.name, schedule=spec.schedule, hint=UNEXPRESSED)
        return None
    return Monitor(spec.name, config)


def is_excluded(job: str, patterns: Sequence[str] | None) -> bool:
    from sentry_sdk.utils import match_regex_list

    return bool(match_regex_list(job, patterns))


def monitor_config(spec: JobSpec, now: datetime) -> dict[str, Any] | None:
    """What Sentry should expect of the job; None if it cannot express when the job runs."""
    schedule = monitor_schedule(spec)
    if schedule is None:
        return None
    interval = interval_of(next_ticks(spec, now))
    limit = spec.max_duration or spec.time_limit or spec.soft_time_limit
    usual = limit or min(UNKNOWN_DURATION, interval or UNKNOWN_DURATION)
    late = late_after(spec, interval, usual) + (spec.jitter or timedelta())
    config = {
        "schedule": schedule,
        "timezone": spec.timezone,
        "checkin_margin": minutes(late),
    }
    if limit:
        config["max_runtime"] = minutes(work_until_success(spec, limit))
    return config


def monitor_schedule(spec: JobSpec) -> dict[str, Any] | None:
    if spec.exclude or spec.end_at:
        return None
    if len(spec.cron_lines) == 1:
        [line] = spec.cron_lines
        return {"type": "crontab", "value": NICKNAMES.get(line.strip().lower(), line)}
    for unit, length in UNITS.items():
        if spec.every and not spec.every % length:
            return {"type": "interval", "value": spec.every // length, "unit": unit}
    return None


def minutes(duration: timedelta) -> int:
    return min(MOST_MINUTES, max(1, ceil(duration / timedelta(minutes=1))))


def check_in(monitor: Monitor, report: RunReport, place: str) -> None:
    from sentry_sdk.crons import capture_checkin

    # With several attempts, Sentry itself measures the duration, from the first start on.
    is_first = report.kind is not ReportKind.START and report.attempt == 1
    capture_checkin(
        monitor_slug=monitor.slug,
        check_in_id=check_in_id(report.run, place),
        status=STATUSES[report.kind],
        duration=report.lasted.total_seconds() if is_first else None,
        monitor_config=monitor.config,
    )


def check_in_id(run_id: str, place: str) -> str:
    """One id for all check-ins of a run. All projects of a Sentry share the ids."""
    options = client().options  # type: ignore[union-attr]
    project = f"{options['dsn']} {options['environment']}"
    return uuid5(NAMESPACE, f"{project} {place} {run_id}").hex


def part(beat: BeatContext) -> Part:
    check_ins = CheckIns(beat.ledger, owner_of(beat.app))
    beat.senders[Kind.CHECK_IN] = check_ins.send
    return Part(as_admitted=check_ins.monitored)
