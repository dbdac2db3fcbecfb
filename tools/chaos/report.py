"""What a campaign came to: plain text tables for people, JSON for machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from tools.chaos.chronicle import Chronicle, Kind
from tools.chaos.evidence import Evidence, Finding
from tools.chaos.intervals import covered
from tools.chaos.judgement import PLACES, judge, open_runs, overtaken
from tools.chaos.overlaps import Overlap, overlaps
from tools.chaos.waits import (
    ALLOWED_BETWEEN_RUNS,
    ALLOWED_FOR_LOSS,
    ALLOWED_FOR_NEXT_TICK,
    ALLOWED_SECONDS,
    waits,
)

TICKS = ("ticks", *PLACES, "open", "executions", "died", "rescued")
OVERLAPS = (
    *("witnessed", "spanning", "counted", "witnessed_s", "spanning_s", "counted_s"),
    *("excused", "unexcused"),
)
WAITS = ("longest_s", "outside_windows_s", "judged")

NOTES = f"""\
overlaps: attempts beside which a later one was at work, by the witness and by the ledger. The
  witness leaves out the time in which a process was frozen; with that time they are spanning, which
  is what the ledger can know of; it counts more where the report of an end was held for up to five
  seconds, in which a successor began. Excused are those that touch a frozen worker, and no others.
waits: from an execution's end, or from when the next run was due, to the next start; the longest,
  and the longest outside of the windows above, in which nothing can be expected to start at once.
  The latter is judged where one run may be at work: at most {ALLOWED_SECONDS:g} s for a run that
  waits, for the lease, one look of beat and the way to a worker, and {ALLOWED_FOR_LOSS:g} s more
  where its message may have been lost twice; {ALLOWED_FOR_NEXT_TICK:g} s where
  it is the next tick that starts; {ALLOWED_BETWEEN_RUNS:g} s from one run to the next that waits
  for its lock, also with no beat, where no process was ended."""


def report(
    seed: int,
    minutes: float,
    all_evidence: Sequence[Evidence],
    chronicle: Chronicle,
    of_service: Sequence[Finding] = (),
) -> dict[str, Any]:
    """`of_service`: findings that are about no job."""
    findings = [*of_service, *(finding for evidence in all_evidence for finding in judge(evidence))]
    return {
        "seed": seed,
        "minutes": minutes,
        "kills": dict(chronicle.kills.most_common()),
        "other_faults": dict(chronicle.others.most_common()),
        "died_unasked": dict(chronicle.unasked.most_common()),
        "windows": {
            kind.value: {
                "count": sum(window.kind is kind for window in chronicle.windows),
                "seconds": seconds(chronicle, kind),
            }
            for kind in Kind
        },
        "jobs": {evidence.job.name: of_job(evidence) for evidence in all_evidence},
        "findings": [asdict(finding) for finding in findings],
        "strikes": chronicle.strikes,
        "window_list": [asdict(window) for window in chronicle.windows],
    }


def seconds(chronicle: Chronicle, kind: Kind) -> float:
    return round(covered(w.interval for w in chronicle.windows if w.kind is kind), 1)


def of_job(evidence: Evidence) -> dict[str, Any]:
    seen = overlaps(evidence.executions, evidence.job.at_once, evidence.windows)
    whole = [replace(execution, at_work=(execution.whole,)) for execution in evidence.executions]
    spanning = overlaps(whole, evidence.job.at_once, evidence.windows)
    waited = list(waits(evidence))
    return {
        "ticks": evidence.counted("ticks"),
        **{place: evidence.counted(place) for place in PLACES},
        "open": open_runs(evidence),
        "executions": len(evidence.executions),
        "died": sum(execution.end == "died" for execution in evidence.executions),
        "rescued": evidence.counted("rescued"),
        "outcomes": {what: n for what, n in sorted(evidence.counters.items()) if ":" in what},
        "overlaps": {
            "witnessed": len(overtaken(seen)),
            "spanning": len(overtaken(spanning)),
            "counted": evidence.counted("overlaps"),
            "witnessed_s": total(seen),
            "spanning_s": total(spanning),
            "counted_s": round(evidence.counted("overlap_ms") / 1000, 2),
            "excused": sum(overlap.excuse is not None for overlap in seen),
            "unexcused": sum(overlap.excuse is None for overlap in seen),
        },
        "waits": {
            "longest_s": longest(wait.interval.length for wait in waited),
            "outside_windows_s": longest(wait.judged_seconds for wait in waited),
            "judged": evidence.job.must_move,
            "long": [asdict(w) for w in waited if w.interval.length > ALLOWED_SECONDS],
        },
    }


def total(seen: Sequence[Overlap]) -> float:
    return round(sum(overlap.seconds for overlap in seen), 2)


def longest(seconds_waited: Iterable[float]) -> float:
    return round(max(seconds_waited, default=0.0), 1)


def as_text(made: dict[str, Any]) -> str:
    jobs = made["jobs"]
    kills = sum(made["kills"].values())
    windows = made["windows"].items()
    return "\n\n".join(
        (
            f"seed {made['seed']}, {made['minutes']:g} minutes, {kills} kills",
            table(("fault", "times"), [*made["kills"].items(), *made["other_faults"].items()]),
            table(("died unasked", "times"), made["died_unasked"].items() or [("nobody", 0)]),
            table(
                ("window", "count", "seconds"), [(k, w["count"], w["seconds"]) for k, w in windows]
            ),
            table(("job", *TICKS), [(name, *pick(job, TICKS)) for name, job in jobs.items()]),
            table(
                ("overlaps", *OVERLAPS),
                [(name, *pick(job["overlaps"], OVERLAPS)) for name, job in jobs.items()],
            ),
            table(
                ("waits", *WAITS),
                [(name, *pick(job["waits"], WAITS)) for name, job in jobs.items()],
            ),
            table(
                ("job", "outcome", "runs"),
                [(name, *what) for name, job in jobs.items() for what in job["outcomes"].items()],
            ),
            NOTES,
            verdict(made["findings"]),
        )
    )


def pick(values: dict[str, Any], keys: Iterable[str]) -> list[Any]:
    return [values[key] for key in keys]


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    cells = [tuple(columns), *(tuple(map(word, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def word(value: Any) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def verdict(findings: Sequence[dict[str, str]]) -> str:
    if not findings:
        return "every promise was kept"
    lines = [f"{found['kind']}: {found['job']}: {found['detail']}" for found in findings]
    return "\n".join((f"{len(findings)} promises not kept", *lines))
