"""What is refused, whatever the schedule files say of their jobs.

Names that other sources have, and the removal of most jobs at once, or of all by an empty
directory, as by a wrong mount.
"""

from __future__ import annotations

from collections.abc import Collection

from supervisor.catalog.schedule_files import ScheduleSet
from supervisor.errors import Problem
from supervisor.ledger.job_reads import Loaded
from supervisor.ledger.job_record import FILES

#: A removal of this many jobs or more is refused if they are more than half of a source's.
LEAST_REMOVED = 5


def clashes(loaded: Loaded, files: ScheduleSet) -> list[Problem]:
    """The jobs of the files whose names other sources have, both places named; and those that are
    gone from the files while jobs of other sources follow them."""
    problems = left_behind(loaded, files)
    for name, place in files.sources.items():
        origin = loaded.origins.get(name)
        if origin and origin.source != FILES:
            file, _, line = place.rpartition(":")
            what = f"a job of this name is loaded from elsewhere: {origin.place}"
            problems.append(Problem(file, int(line), name, what, "rename one, or remove that one"))
    return problems


def left_behind(loaded: Loaded, files: ScheduleSet) -> list[Problem]:
    problems = []
    for name, spec in loaded.specs.items():
        for followed in spec.after if loaded.origins[name].source != FILES else ():
            origin = loaded.origins.get(followed)
            if origin and origin.source == FILES and followed not in files.specs:
                file, _, line = origin.place.rpartition(":")
                what = (
                    f"job {name!r} ({loaded.origins[name].place}) follows this job, which is gone"
                )
                hint = "take it out of that job's 'after' first"
                problems.append(Problem(file, int(line or 0), followed, what, hint))
    return problems


def mass_removal(loaded: Loaded, names: Collection[str], source: str = FILES) -> str | None:
    """A sentence if a source would remove more than half of its loaded jobs; else None."""
    own = loaded.of(source).origins
    removed = len(own.keys() - set(names))
    whose = "schedule files" if source == FILES else source
    if removed < LEAST_REMOVED or 2 * removed <= len(own):
        return None
    return f"{removed:,} of the {len(own):,} jobs of {whose} would be removed"


def removal_by_files(loaded: Loaded, files: ScheduleSet) -> str | None:
    """As `mass_removal`, and of any number of jobs by a directory without files: its mount may be
    gone."""
    own = loaded.of(FILES).origins
    if own and not files.files:
        return f"there are no schedule files, and the jobs of earlier ones ({len(own):,}) would go"
    return mass_removal(loaded, files.specs)
