"""When a job runs: the keys that decide its nominal times, and how they go together."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Self
from zoneinfo import ZoneInfo

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from supervisor.job.fields import (
    ClockChanges,
    Cron,
    Exclude,
    ItemFault,
    Moments,
    Timezone,
    check_needed,
    conflict,
    inside,
)
from supervisor.times import (
    AtLeastASecond,
    Duration,
    Moment,
    in_utc,
    render_duration,
    render_moment,
)

#: At most one of these is given. A job without any is triggered, or runs after others.
KINDS = ("cron", "every", "rrule", "at")


class When(BaseModel):
    """At most one of `cron`, `every`, `rrule` and `at`, and what limits or shifts its times."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    timezone: Timezone = "UTC"
    """IANA name of the zone whose clocks all other times of the job are read from."""
    cron: Cron | None = None
    """Five cron fields with names and ranges, or @hourly, @daily, @weekly, @monthly, @yearly; or a
    list of such expressions."""
    every: AtLeastASecond | None = None
    """A fixed interval, anchored to 1970-01-01T00:00:00Z, not to the last run."""
    phase: Duration | None = None
    """How much later than the multiples of `every` the job runs; less than `every`."""
    rrule: Annotated[str, Field(max_length=1000)] | None = None
    """A recurrence rule of RFC 5545, such as FREQ=MONTHLY;BYDAY=2TU;BYHOUR=9."""
    at: Moments | None = None
    """A list of times at which the job runs."""
    start_at: Moment | None = None
    """The job does not run before this time."""
    end_at: Moment | None = None
    """The job does not run at this time or later."""
    jitter: AtLeastASecond | None = None
    """Each tick is up to this much later, by a constant of job and tick; never past the next."""
    exclude: Exclude = ()
    """Days on which the job does not run: dates, ranges, weekdays and holidays."""
    dst: ClockChanges | None = None
    """What a job at fixed hours does when clocks change."""

    @field_validator("at")
    @classmethod
    def _sorted(cls, moments: Any, info: ValidationInfo) -> Any:
        """In order of time, so that the order in the file makes no difference."""
        if moments == ():
            raise ValueError("an empty list; leave it out")
        zone = ZoneInfo(info.data.get("timezone", "UTC"))
        by_instant: dict[datetime, datetime] = {}
        faults = []
        for number, moment in enumerate(moments or ()):
            if by_instant.setdefault(in_utc(moment, zone), moment) is not moment:
                what = f"{render_moment(moment)} is the same time as one before it"
                faults.append(ItemFault((number,), what))
        if faults:
            raise inside(faults)
        return tuple(by_instant[at] for at in sorted(by_instant)) if moments else None

    @model_validator(mode="after")
    def _one_schedule(self) -> Self:
        if sum(getattr(self, kind) is not None for kind in KINDS) > 1:
            text = "give only one of 'cron', 'every', 'rrule' and 'at'"
            raise conflict(text, *KINDS)
        return self

    @model_validator(mode="after")
    def _phase_within_every(self) -> Self:
        if self.every is None:
            check_needed(self, "every", "phase")
        elif self.phase is not None and self.phase >= self.every:
            raise conflict("'phase' must be shorter than 'every'", "phase")
        return self

    @model_validator(mode="after")
    def _start_before_end(self) -> Self:
        if self.start_at and self.end_at:
            try:
                start, end = (in_utc(moment, self.zone) for moment in (self.start_at, self.end_at))
            except (ValueError, OverflowError) as error:
                text = f"'start_at' and 'end_at' cannot be compared: {error}"
                raise conflict(text, "start_at", "end_at") from error
            if start >= end:
                raise conflict("'start_at' must be before 'end_at'", "start_at", "end_at")
        return self

    def model_copy(self, **options: Any) -> Self:
        """A copy without the values that were cached from the fields."""
        copied = super().model_copy(**options)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)

    @cached_property
    def when(self) -> tuple[Any, ...]:
        """Everything that decides the nominal times; equal when they are.

        Jitter is a constant of the job's name as well, which no edit of the job changes.
        """
        return tuple(getattr(self, key) for key in When.model_fields)

    @property
    def cron_lines(self) -> tuple[str, ...]:
        """Each expression of `cron`; none without it."""
        return (self.cron,) if isinstance(self.cron, str) else self.cron or ()

    @property
    def has_schedule(self) -> bool:
        return any(getattr(self, kind) is not None for kind in KINDS)

    @property
    def schedule(self) -> str:
        """For people: the cron expression, ``every 5m``, the rule, ``at ...``; or nothing."""
        if self.every is not None:
            return f"every {render_duration(self.every)}" + (
                f" +{render_duration(self.phase)}" if self.phase else ""
            )
        if self.at:
            more = f" and {len(self.at) - 1} more" if len(self.at) > 1 else ""
            return f"at {render_moment(self.at[0])}{more}"
        if len(self.cron_lines) > 2:
            return f"{self.cron_lines[0]} and {len(self.cron_lines) - 1} more"
        return " and ".join(self.cron_lines) or self.rrule or ""
