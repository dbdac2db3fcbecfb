"""Ticks and requests get their places: what goes into admit.lua, and what comes out of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from supervisor.job.spec import JobSpec
from supervisor.ledger.connection import NotWritable, RedisError, Unavailable
from supervisor.ledger.readings import Readings
from supervisor.ledger.recalls import recalled
from supervisor.ledger.replies import Admission, Placement, admission
from supervisor.ledger.requests import RunRequest, request_facts
from supervisor.ledger.scripts import Call, Scripts
from supervisor.ledger.ticks import Leadership, Tick, tick_facts
from supervisor.runs.run import manual_id

#: Runs that one call places. To make the script's functions costs as much as a run or two; fifty
#: keep the server from all others for two or three milliseconds. A job that catches up has more.
RUNS_PER_CALL = 50

Facts = tuple[str | int, ...]


def admit_ticks(
    scripts: Scripts, ticks: Iterable[Tick], leadership: Leadership | None
) -> list[Admission]:
    placed: list[Tick] = []

    def facts() -> Iterator[Facts]:
        for tick in ticks:
            placed.append(tick)
            yield tick_facts(tick)

    places = list(places_of(scripts, facts(), leadership))
    return [admission(t.run_id, t.spec.name, p) for t, p in zip(placed, places, strict=True)]


def admit_requests(
    scripts: Scripts, readings: Readings, spec: JobSpec, requests: Sequence[RunRequest]
) -> list[Admission]:
    """A call whose reply is lost is made once more, under the same ids.

    Raises InvalidKey, RedisError when the server refuses one of them, and Unavailable: then it is
    not known which of them were recorded.
    """
    run_ids = [request.run_id or manual_id(spec.name) for request in requests]
    facts = [request_facts(spec, i, r) for i, r in zip(run_ids, requests, strict=True)]

    def admitted() -> list[Admission]:
        places = zip(run_ids, places_of(scripts, facts, None), strict=True)
        return [admission(run_id, spec.name, place) for run_id, place in places]

    asked_at = time.monotonic()
    try:
        admissions = admitted()
    except Unavailable:
        again, seconds = admitted(), time.monotonic() - asked_at
        admissions = [recalled(readings, each, seconds) for each in again]
    for each in admissions:
        if each.placement is Placement.FAILED:
            raise RedisError(each.reason)
    return admissions


def portions(runs: Iterable[Facts]) -> Iterator[list[Facts]]:
    """Some at a time. The ticks of a job stay together.

    Each moves the job's watermark: those of a call that was refused would be behind it for good.
    """
    portion: list[Facts] = []
    for facts in runs:
        if len(portion) >= RUNS_PER_CALL and not is_next_tick(portion[-1], facts):
            yield portion
            portion = []
        portion.append(facts)
    if portion:
        yield portion


def is_next_tick(before: Facts, facts: Facts) -> bool:
    return before[4] == facts[4] == "tick" and before[1] == facts[1]


def places_of(
    scripts: Scripts, runs: Iterable[Facts], leadership: Leadership | None
) -> Iterator[Sequence[str]]:
    token, keys = (leadership.token, (leadership.key,)) if leadership else ("", ())

    def calls() -> Iterator[Call]:
        for portion in portions(runs):
            fields = max(map(len, portion))
            filled = (facts + ("",) * (fields - len(facts)) for facts in portion)
            yield Call((token, fields, *chain.from_iterable(filled)), keys)

    for place in chain.from_iterable(scripts.stream("admit", calls())):
        if place[0] == Placement.FAILED and place[1].startswith(NotWritable.CODES):
            raise NotWritable(place[1])
        yield place
