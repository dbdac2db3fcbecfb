"""Which jobs may follow which: unknown names, and circles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from supervisor.errors import closest
from supervisor.job.spec import JobSpec

#: Up to this many unknown names get a hint: it takes a search through all jobs.
MOST_HINTS = 50

#: Up to this many circles are reported.
MOST_CIRCLES = 50


@dataclass(frozen=True, slots=True)
class FollowingProblem:
    """What is wrong with `after` of a job."""

    job: str

    path: tuple[str | int, ...]
    """Of a name in the list, from the job on."""

    what: str
    hint: str | None


def following_problems(
    specs: Mapping[str, JobSpec], others: Sequence[str] = (), removed: Collection[str] = ()
) -> list[FollowingProblem]:
    """Unknown names in `after`, and circles.

    others: names of further jobs, for hints. removed: of jobs that are removed.
    """
    return [*unknown_names(specs, others, removed), *circles(specs)]


def unknown_names(
    specs: Mapping[str, JobSpec], others: Sequence[str], removed: Collection[str]
) -> Iterator[FollowingProblem]:
    hints: dict[str, str | None] = {}
    for job, spec in specs.items():
        for place, name in enumerate(spec.after):
            if name in removed:
                what = f"'after': {name!r} would be removed"
                yield FollowingProblem(
                    job, ("after", place), what, "take it out there, or remove both at once"
                )
            elif name not in specs:
                if name not in hints and len(hints) < MOST_HINTS:
                    hints[name] = closest(name, [*specs, *others])
                what = f"'after': there is no job {name!r}"
                yield FollowingProblem(job, ("after", place), what, hints.get(name))


def circles(specs: Mapping[str, JobSpec]) -> Iterator[FollowingProblem]:
    """Circles, each at the first of its jobs; of those that share a job one."""
    order = {job: number for number, job in enumerate(specs)}
    followed = {job: specs[job].after for job in specs}
    for _ in range(MOST_CIRCLES):
        try:
            TopologicalSorter(followed).prepare()
        except CycleError as error:
            circle = error.args[1][:0:-1]
            at = circle.index(first := min(circle, key=order.__getitem__))
            way = [*circle[at:], *circle[:at], first]
            what = f"'after': a circle, {' after '.join(way)}"
            place = specs[first].after.index(way[1])
            yield FollowingProblem(first, ("after", place), what, "none of them would ever run")
            for job in circle:
                del followed[job]
        else:
            return
