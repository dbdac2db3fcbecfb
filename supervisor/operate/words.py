"""Jobs, runs, actions, instants and durations in words; `now` is an argument."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from supervisor.job.reports import Failure, LogLine, Progress
from supervisor.job.run import Batch, Run, RunState, StepRecord
from supervisor.ledger.actions import ActionQuery, Actor, Entry, Outcome
from supervisor.ledger.job_record import JobRecord
from supervisor.ledger.ledger import Ledger
from supervisor.times import instant

UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


#: Beat looks once a second, and pages are up to a second old.
SECONDS_UNTIL_OVERDUE = 5


def span(seconds: float) -> str:
    """Two units at most: ``3m12s``, ``2d4h``; below ten seconds with a decimal."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    rest = round(seconds)
    parts: list[tuple[int, str]] = []
    for unit, size in UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append((count, unit))
    return "".join(f"{count}{unit}" for count, unit in parts[:2] if count)


def plural(count: int, noun: str, ending: str = "s") -> str:
    """``1 worker``, ``1,200 workers``"""
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def listed(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """``a, b, c and 2 more``"""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def age(moment: datetime | None, now: datetime) -> str:
    """``3m12s ago``; empty for what never happened."""
    return f"{span(max(0.0, (now - moment).total_seconds()))} ago" if moment else ""


def ahead(moment: datetime | None, now: datetime) -> str:
    """``in 3m12s``, ``now``, or ``overdue by 3m12s``."""
    if moment is None:
        return ""
    seconds = (moment - now).total_seconds()
    if seconds < -SECONDS_UNTIL_OVERDUE:
        return f"overdue by {span(-seconds)}"
    return f"in {span(seconds)}" if seconds > 0 else "now"


def drained_words(queue: str, since: datetime) -> str:
    return f"{queue} has been drained since {stamp(since)} (supervisor undrain {queue})"


def stamp(moment: datetime | None) -> str:
    """UTC to the second, as in ``2026-03-01 02:00:00Z``."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z" if moment else ""


def pause_words(note: str | None, until: datetime | None) -> str:
    """``until 2026-03-02 06:00:00Z, the mail server moves``; empty for a pause without either."""
    return ", ".join(filter(None, [f"until {stamp(until)}" if until else "", note or ""]))


def duration(seconds: float | None) -> str:
    """How long something took: as in span(), and in milliseconds where that would be ``0.0s``."""
    if seconds is None:
        return ""
    return f"{max(1, round(seconds * 1000))}ms" if 0 < seconds < 0.1 else span(seconds)


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    return (end - start) / timedelta(seconds=1) if start and end else None


def lasted(start: datetime, end: datetime) -> str:
    """``7m12s``; never negative, though the clocks of two machines may differ."""
    return duration(max(0.0, (end - start).total_seconds()))


@dataclass(frozen=True, slots=True)
class LocalTime:
    """Times by the clock of a job's zone, as read `now`."""

    now: datetime
    zone: ZoneInfo

    def time(self, at: datetime) -> str:
        """``09:05``, ``09:05:30``; of another day than today ``2026-11-19 09:05``."""
        local = at.astimezone(self.zone)
        text = f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
        is_today = local.date() == self.now.astimezone(self.zone).date()
        return text if is_today else f"{local:%Y-%m-%d} {text}"

    def full(self, at: datetime) -> str:
        """``2026-11-20 09:05 CET``."""
        local = at.astimezone(self.zone)
        return f"{local:%Y-%m-%d} {local:{'%H:%M:%S' if local.second else '%H:%M'}} {local:%Z}"

    def since(self, start: datetime) -> str:
        return lasted(start, self.now)


# Jobs and runs.


def outcome_words(outcome: str | None) -> str:
    """``timed out``; nothing for none."""
    return RunState(outcome).words if outcome else ""


def state_words(job: JobRecord, now: datetime) -> str:
    """The state; of a paused job why and until when, else whether its `due_by` has passed."""
    due = job.success_due_at
    if due and due < now:
        return f"{job.state} ({ahead(due, now)})"
    pause = pause_words(job.paused_note, job.paused_until) if job.paused else ""
    return job.state + (f" ({'' if job.state == 'paused' else 'paused '}{pause})" if pause else "")


def dropped_words(run: Run) -> str:
    """About attempts of which no record is kept."""
    if not run.attempts_dropped:
        return ""
    return f"{run.attempts_dropped} earlier attempts, of which nothing else is kept"


def reason_words(run: Run) -> str:
    """The reason, the run that blocked it, and when it is due."""
    parts = [run.reason or ""]
    if run.blocked_by and not run.attempts:
        parts.append(f"blocked by {run.blocked_by}")
    if run.waits_for_others and run.state.is_open:
        parts.append(f"waits for {run.after or 'the jobs that it follows'}")
    if run.overlapped_with:
        parts.append(f"overlapped with {run.overlapped_with}")
    if run.due_at and run.state.is_open:
        parts.append(f"due {stamp(run.due_at)}")
    return ", ".join(part for part in parts if part)


def span_of(run: Run) -> str:
    if run.ticks == 1:
        return ""
    return f"{run.ticks} ticks from {stamp(run.first_nominal_at)}"


def progress_words(progress: Progress | None) -> str:
    """``40/100 (40%) loading``."""
    if progress is None:
        return ""
    done = f"{progress.done:,}" + ("" if progress.total is None else f"/{progress.total:,}")
    share = "" if progress.share is None else f"({progress.share:.0%})"
    return " ".join(filter(None, (done, share, harmless(progress.text))))


def items_words(batch: Batch | None) -> str:
    """``120/600 items (20%), 2 failed``."""
    if batch is None:
        return ""
    share = f" ({batch.done / batch.total:.0%})" if batch.total else ""
    failed = f", {batch.failed:,} failed" if batch.failed else ""
    return f"{batch.done:,}/{batch.total:,} items{share}{failed}"


def share_of_step(step: StepRecord) -> float:
    if step.done:
        return 1.0
    if step.run is None:
        return 0.0
    if not step.run.state.is_open:
        return 1.0
    if step.run.batch:
        return step.run.batch.done / max(1, step.run.batch.total)
    return (step.run.progress and step.run.progress.share) or 0.0


def running_steps_words(steps: Sequence[StepRecord]) -> str:
    """``words 120/600 items (20%), 2 failed; scan 40/100 (40%)``: the running steps."""
    return "; ".join(
        f"{step.name} {items_words(step.run.batch) or progress_words(step.run.progress)}".rstrip()
        for step in steps
        if step.run and step.run.state in (RunState.RUNNING, RunState.RETRYING)
    )


LONGEST_PARAM = 60


def param_words(params: Mapping[str, Any]) -> str:
    """``files=[312 values], tree='docs'``: on one line."""
    return harmless(", ".join(f"{name}={value_words(params[name])}" for name in sorted(params)))


def value_words(value: Any) -> str:
    text = repr(value)
    if len(text) <= LONGEST_PARAM:
        return text
    match value:
        case list():
            return f"[{len(value):,} values]"
        case dict():
            return f"{{{len(value):,} names}}"
        case _:
            return f"{text[: LONGEST_PARAM - 3]}..."


# Logs and failures, and what is safe on a terminal.


#: Sequences that colour text or move the cursor.
CONTROL_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")


def harmless(text: str) -> str:
    """The text on one line, without control characters of a terminal."""
    if text.isprintable():
        return text
    text = CONTROL_SEQUENCE.sub("", text)
    return "".join(c if c.isprintable() else " " for c in text)


def json_text(value: Any) -> str:
    """Letters beyond ASCII stay; characters that a terminal cannot print are escaped.

    But for those that JSON escapes as a pair, which YAML does not understand.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False)
    is_kept = {c: c.isprintable() or c == "\n" or c > "\uffff" for c in {*text}}
    return "".join(c if is_kept[c] else json.dumps(c)[1:-1] for c in text)


class LogText:
    """Lines of one log as text; remembers their numbers, to say how many were dropped."""

    def __init__(self) -> None:
        self._last: dict[tuple[str | None, int], int] = {}

    def of(self, lines: Iterable[LogLine]) -> Iterator[str]:
        for line in lines:
            if dropped := self.dropped_before(line):
                yield dropped
            yield f"{stamp(line.at)}  {label_of(line)}{harmless(line.text)}"

    def dropped_before(self, line: LogLine) -> str:
        """Call it for each line, in order."""
        if line.number == 0:  # written by the ledger itself
            return ""
        place = (line.step, line.attempt)
        dropped = line.number - self._last.get(place, 0) - 1
        self._last[place] = line.number
        return f"({dropped:,} {'line' if dropped == 1 else 'lines'} dropped)" if dropped > 0 else ""


def failure_lines(failure: Failure) -> Iterator[str]:
    """The traceback as text, below a line that says whose it is."""
    yield f"{stamp(failure.at)}  {label_of(failure, always=True)}failed"
    yield from (f"  {harmless(line)}" for line in failure.traceback.splitlines())


def label_of(line: LogLine | Failure, *, always: bool = False) -> str:
    """``load#3, attempt 2: ``, or nothing for a first attempt of a run without steps."""
    attempt = f"attempt {line.attempt}" if line.attempt > 1 or always else None
    label = ", ".join(filter(None, (line.step, attempt)))
    return f"{label}: " if label else ""


# Actions.


#: How many entries a page searches for the latest ones about one job.
ENTRIES_SEARCHED = 1_000


#: Jobs and changes that are named in one line.
NAMED = 5


def who(by: Actor) -> str:
    """``ann``, ``ann via deploy``"""
    return f"{by.name} via {by.via}" if by.via else by.name


def where(by: Actor) -> str:
    """``cli host-1``, ``page 10.0.0.7``"""
    return f"{by.origin} {by.place}".rstrip()


def targets(entry: Entry) -> str:
    """What the action is about; of many jobs the first few."""
    jobs = entry.action.jobs
    if len(jobs) > NAMED and entry.action.target not in jobs:
        return listed(jobs, NAMED)
    return entry.action.target


def what_words(entry: Entry) -> Iterator[str]:
    """What became of the action and what it changed, a clause each."""
    action = entry.action
    if entry.error:
        yield entry.error
    match action.verb, entry.result:
        case "resume", since if is_ms(since):
            yield f"paused since {stamp(instant(since))}"
        case "undrain", since if is_ms(since):
            yield f"drained since {stamp(instant(since))}"
        case "trigger" | "retry" | "cancel", word if word:
            yield word
    shown = action.changes if len(action.jobs) <= 1 else action.changes[:NAMED]
    for change in shown:
        words = f"{change.key}: {change.text}" if change.text else change.key
        yield words if change.job == action.target else f"{change.job} {words}"
    more = len(action.jobs) - len({change.job for change in shown})
    if shown and more > 0:
        yield f"and {plural(more, 'more job')}"


def is_ms(text: str) -> bool:
    """Whether it is a time in milliseconds, up to the year 5138."""
    return text.isdecimal() and len(text) <= 14


def removal_words(ledger: Ledger, job: str) -> str:
    """``report was removed at 2026-03-01 02:00:00Z by ann: no longer needed``; empty where the
    record does not have it.
    """
    for entry in ledger.actions.search(ActionQuery(job=job, limit=100, newest=ENTRIES_SEARCHED)):
        is_removed = any(c.job == job and c.key == "removed" for c in entry.action.changes)
        if entry.outcome is Outcome.DONE and is_removed:
            action = entry.action
            reason = f": {action.reason}" if action.reason else ""
            by = f"{who(action.by)} ({action.verb}, {where(action.by)})"
            return harmless(f"{job} was removed at {stamp(entry.at)} by {by}{reason}")
    return ""
