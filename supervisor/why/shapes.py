"""The JSON of an answer: the sentences, and the facts that they were made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from supervisor.display.plans import surprise_shape
from supervisor.display.shapes import instant, run_shape
from supervisor.display.steps import step_shape
from supervisor.runs.run import Blocker
from supervisor.why.facts import Calendar, Facts, RunFacts


def answer_shape(facts: Facts, sentences: Sequence[str]) -> dict[str, Any]:
    return {
        "job": facts.job.spec.name,
        "nominal_at": instant(facts.at),
        "sentences": list(sentences),
        "facts": facts_shape(facts),
    }


def facts_shape(facts: Facts) -> dict[str, Any]:
    job, beat = facts.job, facts.beat
    return {
        "now": instant(facts.now),
        "watermark": instant(facts.watermark),
        "run": found_shape(facts.run) if facts.run else None,
        "other_runs": [run_shape(run) for run in facts.others],
        "open_runs": [found_shape(found) for found in facts.open_runs],
        "schedule": calendar_shape(facts.calendar) if facts.calendar else None,
        "paused": job.paused,
        "paused_at": instant(facts.paused_at),
        "paused_note": job.paused_note,
        "paused_until": instant(job.paused_until),
        "beat_leads": not facts.beat_away,
        "beat_last_tick_at": instant(beat.last_tick_at),
        "problems": list(beat.problems),
        "nothing_begins_until": instant(facts.grace_until),
        "oldest_nominal_at": instant(facts.oldest_at),
    }


def found_shape(found: RunFacts) -> dict[str, Any]:
    usual, then = found.usual, found.run.blocker
    away, crew = found.away, found.crew
    return run_shape(found.run) | {
        "admitted_at": instant(found.admitted_at),
        "queue": found.queue,
        "duplicates": found.run.duplicates,
        "note": found.run.note,
        "no_beat_from": instant(away.start) if away else None,
        "no_beat_until": instant(away.end) if away else None,
        "crew": crew and {"workers": crew.workers, "processes": crew.processes},
        "usual": usual and {"p95_seconds": usual.p95, "attempts": usual.attempts},
        "steps": [step_shape(step) for step in found.steps],
        "blocker_then": blocker_shape(then) if then else None,
        "blocker": found_shape(found.blocker) if found.blocker else None,
    }


def blocker_shape(then: Blocker) -> dict[str, Any]:
    return {
        "at": instant(then.at),
        "state": then.state,
        "attempt": then.attempt,
        "fencing_token": then.fencing_token,
        "lease_ends_at": instant(then.lease_ends_at),
    }


def calendar_shape(calendar: Calendar) -> dict[str, Any]:
    surprise = calendar.surprise
    return {
        "is_tick": calendar.is_tick,
        "is_excluded": calendar.excluded,
        "before": instant(calendar.before),
        "after": instant(calendar.after),
        "clock_change": surprise_shape(surprise) if surprise else None,
    }
