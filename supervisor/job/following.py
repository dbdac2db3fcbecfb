"""Jobs that follow others: who follows whom, and what is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from supervisor.errors import closest
from supervisor.job.spec import JobSpec


@dataclass(frozen=True, slots=True)
class FollowingProblem:
    """What is wrong with `after` of a job; `place` is that of a name in the list."""

    job: str
    place: int
    what: str
    hint: str | None


def following_problems(
    specs: Mapping[str, JobSpec], others: Sequence[str] = (), removed: Collection[str] = ()
) -> list[FollowingProblem]:
    """Names in `after` that no job of the set has, and circles.

    others: names of further jobs, for hints. removed: of jobs that are taken away.
    """
    return [*unknown_names(specs, others, removed), *circles(specs)]


def unknown_names(
    specs: Mapping[str, JobSpec], others: Sequence[str], removed: Collection[str]
) -> Iterator[FollowingProblem]:
    for job, spec in specs.items():
        for place, name in enumerate(spec.after):
            if name in removed:
                what = f"'after': {name!r} would be removed"
                yield FollowingProblem(
                    job, place, what, "take it out there, or remove both at once"
                )
            elif name not in specs:
                what = f"'after': there is no job {name!r}"
                yield FollowingProblem(job, place, what, closest(name, [*specs, *others]))


def circles(specs: Mapping[str, JobSpec]) -> Iterator[FollowingProblem]:
    """Each circle once, at the first of its jobs."""
    settled: set[str] = set()
    order = {name: number for number, name in enumerate(specs)}
    for job in specs:
        circle = circle_from(job, specs, settled)
        if circle:
            first = min(circle, key=order.__getitem__)
            at = circle.index(first)
            way = [*circle[at:], *circle[:at], first]
            what = f"'after': a circle, {' after '.join(way)}"
            place = specs[first].after.index(way[1])
            yield FollowingProblem(first, place, what, "none of them would ever run")


def circle_from(job: str, specs: Mapping[str, JobSpec], settled: set[str]) -> list[str]:
    """The jobs of a circle that can be reached from `job`, each after the next; else empty.

    settled: jobs from which all has been looked at; those that are looked at now are added.
    """
    way: dict[str, None] = {}
    rest: list[Iterator[str]] = [iter((job,))]
    found: list[str] = []
    while rest:
        name = next(rest[-1], None)
        if name is None:
            rest.pop()
            if way:
                settled.add(way.popitem()[0])
        elif name in way:
            found = found or [*way][[*way].index(name) :]
        elif name in specs and name not in settled:
            way[name] = None
            rest.append(iter(specs[name].after))
    return found
