"""Which jobs may follow which: unknown names, and circles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from supervisor.errors import closest
from supervisor.job.spec import JobSpec

#: Up to this many unknown names get a hint: it takes a search through all jobs.
MOST_HINTS = 50


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
    """Each circle at the first of its jobs; one of several circles that share a job."""
    order = {job: number for number, job in enumerate(specs)}
    reported: set[str] = set()
    for circle in closed_ways(specs):
        if reported.isdisjoint(circle):
            reported.update(circle)
            at = circle.index(first := min(circle, key=order.__getitem__))
            way = [*circle[at:], *circle[:at], first]
            what = f"'after': a circle, {' after '.join(way)}"
            place = specs[first].after.index(way[1])
            yield FollowingProblem(first, ("after", place), what, "none of them would ever run")


def closed_ways(specs: Mapping[str, JobSpec]) -> Iterator[list[str]]:
    """Paths that end where they began; of circles that share jobs at least one.

    A search in depth from each job through those that it follows, which visits none twice.
    """
    visited: set[str] = set()
    for job in specs:
        way: dict[str, None] = {}
        rest: list[Iterator[str]] = [iter((job,))]
        while rest:
            name = next(rest[-1], None)
            if name is None:
                rest.pop()
                if way:
                    visited.add(way.popitem()[0])
            elif name in way:
                names = [*way]
                yield names[names.index(name) :]
            elif name in specs and name not in visited:
                way[name] = None
                rest.append(iter(specs[name].after))
