"""What the ledger knows of jobs, runs and beat: read, never changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

from pydantic import ValidationError

from supervisor.errors import UnknownJob, UnknownRun, UnreadableJob
from supervisor.job.durations import Durations
from supervisor.job.run import OPEN_STATES, Run, RunState
from supervisor.job.spec import KEPT_AT_HAND, OWN, GuardedTaskSpec, JobSpec
from supervisor.job.when import When
from supervisor.ledger.functions import Call, Functions
from supervisor.ledger.records import (
    MARK_FIELDS,
    NO_RUNS,
    BeatRecord,
    JobRecord,
    Mark,
    OpenRuns,
    Origin,
    beat_from,
    counted,
    job_from,
    mark_from,
    origin_from,
    run_from,
)
from supervisor.ledger.replies import instant, ms_of, optional_instant
from supervisor.ledger.requests import NOT_LEADING, Leadership
from supervisor.logs import get_logger
from supervisor.store.connection import Client, Pipeline, RedisError, may_pass
from supervisor.store.keys import Keys

# Runs whose messages were sent and that have not begun.


#: For how long it is reported that a queue is shared with another ledger.
SHARED_KEPT = timedelta(minutes=15)

#: The fields of a run's hash that a SentRun is made of.
SENT_RUN_FIELDS = ("state", "queue", "sends", "queued", "job")


@dataclass(frozen=True, slots=True)
class SentRun:
    id: str

    queue: str | None
    """Where to; empty if its record has lost that, None of a run that is not queued, or has no
    record."""

    sent_at: datetime

    sends: int
    """How often a message was sent for the attempt to come, last at `sent_at`."""

    queued_at: datetime
    job: str | None


def sent_run_from(run_id: str, sent: float, values: Sequence[str | None]) -> SentRun:
    """`sent`: its score, in ms; and the values of SENT_RUN_FIELDS."""
    state, queue, sends, queued, job = values
    return SentRun(
        run_id,
        (queue or "") if state == RunState.QUEUED else None,
        instant(sent),
        sends=int(sends or 0) or 1,
        queued_at=instant(queued or sent),
        job=job,
    )


def read_run(run_id: str, fields: Mapping[str, str]) -> Run | None:
    """The run; None, logged once, if its record cannot be read: the others go on without it."""
    try:
        return run_from(run_id, fields)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        note_run(run_id, repr(error)[:200])
        return None


@lru_cache(maxsize=10_000)
def note_run(run_id: str, error: str) -> None:
    """Logged once for each run in a process."""
    log.error("run not read", run=run_id, error=error)


# Jobs as texts in the ledger, which another version of this code may have written.
#
# A version knows the keys of its time. A job that it cannot read - after a rollback, or on a
# standby that is not upgraded yet - is logged once and passed over.


log = get_logger("supervisor.ledger")


S = TypeVar("S", bound=JobSpec)


def read_spec(kind: type[S], text: str) -> S | None:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        note(text, words(error))
        return None


def read_job(text: str) -> JobSpec | None:
    """The job; None if this version cannot read it.

    What jobs have in common is validated once; they differ in what is their own.
    """
    try:
        said = json.loads(text)
        own = {key: said.pop(key) for key in OWN if key in said}
    except (ValueError, TypeError, AttributeError):
        return read_spec(JobSpec, text)
    is_known = "name" in own and all(type(own[key]) is OWN[key] for key in own)
    kind = _kind(json.dumps(said)) if is_known and "after" not in said else None
    if kind is None:  # one that follows others may not follow itself
        return read_spec(JobSpec, text)
    if "args" in own:
        own["args"] = tuple(own["args"])
    return kind.with_own(own)


@lru_cache(maxsize=1_000)
def _kind(text: str) -> JobSpec | None:
    """A job that stands for all of its kind, of JSON; None if this version cannot read it."""
    try:
        return JobSpec.model_validate({**json.loads(text), "name": "any"})
    except ValidationError:
        return None


@lru_cache(maxsize=KEPT_AT_HAND)
def job_spec(text: str) -> JobSpec | None:
    """The same, cached: jobs are read far more often than they change."""
    return read_job(text)


@lru_cache(maxsize=KEPT_AT_HAND)
def guarded_spec(text: str) -> GuardedTaskSpec | None:
    """The same for a task that is guarded by code."""
    return read_spec(GuardedTaskSpec, text)


def times_of(text: str) -> tuple[Any, ...] | None:
    """JobSpec.when of a job, even if its other keys cannot be read."""
    try:
        said = json.loads(text)
        return When.model_validate({k: said[k] for k in When.model_fields if k in said}).when
    except (ValueError, TypeError):
        return None


def words(error: ValidationError) -> str:
    """Which keys are at fault; never their values, which may be secret."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)


@lru_cache(maxsize=10_000)
def note(text: str, problems: str) -> None:
    """Logged once for each text in a process."""
    log.error("job not read by this version", job=name_in(text), problems=problems)


def name_in(text: str) -> str | None:
    try:
        return str(json.loads(text)["name"])
    except (ValueError, TypeError, KeyError):
        return None


T = TypeVar("T")

#: Jobs or runs read in one pipeline: no reply keeps the server busy for long.
CHUNK = 500

#: Jobs whose open runs one call counts, runs of all of them, and calls that are sent ahead. The
#: server takes a millisecond or two for a call; a job with a hundred thousand runs takes many.
JOBS_COUNTED, RUNS_COUNTED, COUNTS_AHEAD = 50, 500, 20

#: Jobs whose last runs one call reads: with 200 runs each, it takes the server some milliseconds.
JOBS_TRACED = 10

#: Of a job with a longer history, so many of the last runs say how long one takes.
MOST_DURATIONS = 1_000


@dataclass(frozen=True, slots=True)
class Loaded:
    """Jobs that are loaded. unread: texts of those that this version cannot read.

    files_version: the version with which schedule files were loaded last.
    """

    specs: Mapping[str, JobSpec]
    unread: Mapping[str, str]
    origins: Mapping[str, Origin]
    files_version: int = 0

    def of(self, source: str) -> Loaded:
        """The jobs of one source."""

        def own(jobs: Mapping[str, T]) -> dict[str, T]:
            return {name: job for name, job in jobs.items() if self.origins[name].source == source}

        return Loaded(own(self.specs), own(self.unread), own(self.origins), self.files_version)


class Readings:
    """The reading half of the ledger."""

    leadership: Leadership = NOT_LEADING
    """In whose name its functions are called."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        self.functions = Functions(client, keys)

    def scheduled(self) -> dict[str, JobSpec]:
        """The loaded jobs by name, sorted, whatever their source; without loaded().unread."""
        texts = sorted(self._fields(self.keys.jobs).items())
        return {name: spec for name, text in texts if (spec := job_spec(text))}

    def scheduled_with(self, field: str) -> list[JobSpec]:
        """The loaded jobs that give this field of theirs, by name. The others are not read: of all
        of them, thousands of specs would stay in memory.
        """
        texts = self.client.hscan_iter(self.keys.jobs, count=1_000)
        found = dict(name_and_text for name_and_text in texts if f'"{field}"' in name_and_text[1])
        specs = (job_spec(found[name]) for name in sorted(found))
        return [spec for spec in specs if spec is not None and field in spec.model_fields_set]

    def loaded(self, names: Collection[str] | None = None) -> Loaded:
        """All loaded jobs, or those of the named ones that are loaded."""
        # An origin is never newer than the text that is read after it: load.lua compares versions.
        version = int(self.client.hget(self.keys.beat, "files") or 0)
        if names is None:
            origins, found = self._fields(self.keys.sources), self._fields(self.keys.jobs)
        else:
            origins = self._some_fields(self.keys.sources, names)
            found = self._some_fields(self.keys.jobs, names)
        if late := found.keys() - origins.keys():  # put between the two, or of no known origin
            origins |= self._some_fields(self.keys.sources, late)
            again = self._some_fields(self.keys.jobs, late)
            found = {name: text for name, text in found.items() if name not in late} | again
        texts = sorted(found.items())
        specs = {name: job_spec(text) for name, text in texts}
        return Loaded(
            specs={name: spec for name, spec in specs.items() if spec is not None},
            unread={name: text for name, text in texts if specs[name] is None},
            origins={name: origin_from(origins.get(name)) for name, _ in texts},
            files_version=version,
        )

    def due_jobs(
        self, portions: Iterable[Sequence[str]]
    ) -> Iterator[list[tuple[str | None, Mark]]]:
        """The specs, as texts, and marks of jobs that are due, a portion at a time.

        The server reads the next portions while the caller deals with this one.
        """
        calls = (Call((len(MARK_FIELDS), *MARK_FIELDS, *jobs)) for jobs in portions)
        for reply in self.functions.stream("due", calls):
            yield [(text, mark_from(values)) for text, *values in reply]

    def links(self) -> tuple[str, str]:
        """The versions of the last edit of an `after`, and of the last removal of a job."""
        linked, unlinked = self.client.hmget(self.keys.beat, ["linked", "unlinked"])
        return linked or "0", unlinked or "0"

    def origins(self) -> dict[str, Origin]:
        """Where the loaded jobs are from, by name."""
        texts = self._fields(self.keys.sources).items()
        return {name: origin_from(text) for name, text in texts}

    def removed(self) -> dict[str, JobSpec]:
        """The last specs of jobs that were removed, as long as their records are kept."""
        names = self.client.zrange(self.keys.removed, 0, -1)
        texts = self.read_each(names, lambda pipe, n: pipe.hget(self.keys.job(n), "removed"))
        specs = ((name, read_job(text)) for name, text in texts if text)
        return {name: spec for name, spec in specs if spec is not None}

    def specs(self) -> dict[str, JobSpec]:
        """All jobs by name, sorted: those of schedule files, and the tasks guarded in code."""
        return dict(sorted({**self.guarded(), **self.scheduled()}.items()))

    def guarded(self) -> dict[str, GuardedTaskSpec]:
        """The tasks guarded in code, by name."""
        texts = self._fields(self.keys.guarded).items()
        return {name: spec for name, text in texts if (spec := guarded_spec(text))}

    def each_spec(self) -> Iterator[JobSpec]:
        """All jobs as they are read, some maybe twice: only a few are in memory at once."""
        for _, text in self.client.hscan_iter(self.keys.guarded, count=CHUNK):
            if guarded := read_spec(GuardedTaskSpec, text):
                yield guarded
        for _, text in self.client.hscan_iter(self.keys.jobs, count=CHUNK):
            if spec := read_job(text):
                yield spec

    def spec(self, name: str) -> JobSpec:
        """Raises UnknownJob, and UnreadableJob of one that only another version knows."""
        found = self.some_specs([name])
        if found:
            return found[name]
        raise UnreadableJob(name) if self.knows(name) else UnknownJob(name, self.job_names())

    def spec_or_last(self, name: str) -> JobSpec:
        """The spec, or the last one of a removed job. Raises UnknownJob and UnreadableJob."""
        try:
            return self.spec(name)
        except UnknownJob:
            text = self.client.hget(self.keys.job(name), "removed")
            spec = read_job(text) if text else None
            if spec is None:
                raise
            return spec

    def former_specs(self, name: str) -> list[tuple[datetime, JobSpec | None]]:
        """What the job was, and until when, newest first: before each of its last FORMER_KEPT edits
        of its task or arguments. None for one that this version cannot read.
        """
        lines = self.client.lrange(self.keys.former(name), 0, -1)
        parts = (line.partition(" ") for line in lines)
        return [(instant(at), read_job(text)) for at, _, text in parts]

    def knows(self, name: str) -> bool:
        """Whether the ledger has the job, readable or not."""
        with self.client.pipeline(transaction=False) as pipe:
            pipe.hexists(self.keys.jobs, name)
            pipe.hexists(self.keys.guarded, name)
            return any(pipe.execute())

    def marks(self, names: Sequence[str]) -> dict[str, Mark]:
        """How far the ticks of these jobs have been dealt with."""
        replies = self.read_each(
            names, lambda pipe, name: pipe.hmget(self.keys.job(name), MARK_FIELDS)
        )
        return {name: mark_from(values) for name, values in replies}

    def paused(self, names: Sequence[str]) -> set[str]:
        """The jobs among these that are paused now."""
        replies = self.read_each(names, lambda pipe, name: pipe.hget(self.keys.job(name), "paused"))
        return {name for name, paused in replies if paused == "1"}

    def scheduled_names(self) -> list[str]:
        return sorted(self.client.hkeys(self.keys.jobs))

    def job_names(self) -> list[str]:
        return [*self.client.hkeys(self.keys.jobs), *self.client.hkeys(self.keys.guarded)]

    def some_specs(self, names: Collection[str], *, remembered: bool = True) -> dict[str, JobSpec]:
        """The specs of those of the named jobs that are known, and can be read.

        remembered: whether they are cached. A caller that goes through thousands of jobs once
        should not keep them all.
        """
        parse = job_spec if remembered else read_job
        in_order = sorted(names)
        if not in_order:
            return {}
        with self.client.pipeline(transaction=False) as pipe:
            pipe.hmget(self.keys.jobs, in_order)
            pipe.hmget(self.keys.guarded, in_order)
            scheduled, guarded = pipe.execute()
        specs: dict[str, JobSpec] = {}
        for name, text, guard in zip(in_order, scheduled, guarded, strict=True):
            own = parse(text) if text is not None else None
            spec = guarded_spec(guard) if text is None and guard is not None else own
            if spec is not None:
                specs[name] = spec
        return specs

    def jobs(self) -> list[JobRecord]:
        return self.records_of(list(self.specs().values()))

    def job(self, name: str) -> JobRecord:
        """Raises UnknownJob."""
        return self.records_of([self.spec(name)])[0]

    def durations_of(self, specs: Sequence[JobSpec]) -> dict[str, Durations]:
        """How long the runs in each job's history took, up to MOST_DURATIONS of the last."""
        most = min(MOST_DURATIONS, max((spec.history for spec in specs), default=0))
        portions = chunks([spec.name for spec in specs], JOBS_TRACED)
        calls = (Call((most, *some)) for some in portions)
        replies = chain.from_iterable(self.functions.stream("durations", calls))
        lines = zip(chain.from_iterable(portions), replies, strict=True)
        return {
            name: Durations(tuple(sorted(int(ms) / 1000 for ms in line.split())))
            for name, line in lines
        }

    def newest_version(self) -> int:
        """The newest version of any job that was loaded, edited or removed."""
        return int(self.client.hget(self.keys.beat, "version") or 0)

    def edited_since(self, version: int) -> set[str]:
        """The jobs that were loaded, edited or removed with a newer version."""
        if self.newest_version() == version:
            return set()
        return set(self.client.zrangebyscore(self.keys.edited, f"({version}", "+inf"))

    def loaded_digest(self) -> str | None:
        """Names the set of schedule files that is loaded."""
        return self.client.hget(self.keys.beat, "config")

    def run(self, run_id: str) -> Run:
        """Raises UnknownRun, also of a run whose record cannot be read."""
        fields = self.client.hgetall(self.keys.run(run_id))
        found = read_run(run_id, fields) if fields else None
        if found is None:
            raise UnknownRun(run_id, "its record cannot be read" if fields else None)
        return found

    def runs(self, run_ids: Sequence[str]) -> list[Run]:
        """The runs among these that the ledger still knows, without those it cannot read."""
        replies = self.read_each(run_ids, lambda pipe, run_id: pipe.hgetall(self.keys.run(run_id)))
        found = (read_run(run_id, fields) for run_id, fields in replies if fields)
        return [run for run in found if run is not None]

    def sent_runs(self, limit: int, skip: int = 0) -> list[SentRun]:
        """Runs that were published and have not begun, in the order in which they were sent."""
        sent = dict(self.client.zrange(self.keys.sent, skip, skip + limit - 1, withscores=True))
        replies = self.read_fields(list(sent), *SENT_RUN_FIELDS)
        return [sent_run_from(run_id, sent[run_id], values) for run_id, values in replies]

    def still_sent(self, run_ids: Sequence[str]) -> list[str]:
        """The runs among these that have not begun yet."""
        scores = self.read_each(run_ids, lambda pipe, run_id: pipe.zscore(self.keys.sent, run_id))
        return [run_id for run_id, at in scores if at is not None]

    def first_sent_at(self) -> datetime | None:
        """When the first of them was sent."""
        first = self.client.zrange(self.keys.sent, 0, 0, withscores=True)
        return instant(first[0][1]) if first else None

    def admitted_at(self, job: str, run_id: str) -> datetime | None:
        """When the run was admitted; None if it is not in its job's history."""
        return optional_instant(self.client.zscore(self.keys.history(job), run_id))

    def now(self) -> datetime:
        """The server's clock, by which all instants of the ledger are."""
        seconds, microseconds = self.client.time()
        return instant(seconds * 1000 + microseconds // 1000)

    def history(self, job: str, limit: int = 50) -> list[Run]:
        """The job's runs, newest first."""
        return self.runs(self.client.zrevrange(self.keys.history(job), 0, limit - 1))

    def shared_queues(self, now: datetime) -> list[tuple[str, str]]:
        """Queues by which messages of another ledger came lately, each with that ledger's name."""
        seen = self.client.hgetall(self.keys.shared_queues)
        recent = (name for name, ms in seen.items() if now - instant(ms) < SHARED_KEPT)
        return sorted((name.partition(" ")[0], name.partition(" ")[2]) for name in recent)

    def schema(self) -> int | None:
        """The number of the ledger's schema; None before the first process wrote to it."""
        found = self.client.get(self.keys.schema)
        return None if found is None else int(found)

    def beat(self) -> BeatRecord:
        return beat_from(self.client.hgetall(self.keys.beat))

    def records_of(self, specs: Sequence[JobSpec]) -> list[JobRecord]:
        """The records of these jobs, loaded or not."""
        open_runs = self.open_runs_of([spec.name for spec in specs])
        hashes = self.hashes_of([spec.name for spec in specs])
        origins = self._some_fields(self.keys.sources, [spec.name for spec in specs])
        return [
            job_from(spec, fields, open_runs.get(name, NO_RUNS), origins.get(name))
            for spec, (name, fields) in zip(specs, hashes, strict=True)
        ]

    def hashes_of(self, jobs: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
        """The hash of each job, which `job_from` reads."""
        return self.read_each(jobs, lambda pipe, job: pipe.hgetall(self.keys.job(job)))

    def open_runs_of(self, jobs: Sequence[str]) -> dict[str, OpenRuns]:
        """The open runs of each job that has any. Each call counts some, and the next goes on."""
        counts: dict[str, OpenRuns] = {}
        to_count = [(job, "0") for job in jobs]
        while to_count:
            portions = chunks(to_count, JOBS_COUNTED)
            calls = (Call((RUNS_COUNTED, *chain.from_iterable(some))) for some in portions)
            replies = self.functions.stream("open_runs", calls, COUNTS_AHEAD)
            left: list[tuple[str, str]] = []
            for some, found_of_some in zip(portions, replies, strict=True):
                # Nothing was found where none of them has an open run.
                for (job, _), (cursor, line) in zip(
                    some, found_of_some, strict=bool(found_of_some)
                ):
                    if line:
                        counts[job] = counts.get(job, NO_RUNS) + counted(line)
                    if cursor:
                        left.append((job, cursor))
            to_count = left
        return counts

    def last_runs(
        self,
        jobs: Sequence[str],
        fields: Sequence[str],
        limit: int,
        since: datetime | None = None,
        until: datetime | None = None,
        earlier: int = 0,
    ) -> Iterator[tuple[str, list[list[Any]]]]:
        """Each job with its last runs, newest first: the id, and the values of these fields.

        since and until: when they were admitted, both included; with them come up to `earlier` runs
        that were admitted before.
        """
        span = (ms_of(since) if since else "-inf", ms_of(until) if until else "+inf")
        portions = chunks(jobs, JOBS_TRACED)
        calls = (Call((limit, *span, earlier, len(fields), *fields, *some)) for some in portions)
        for some, replies in zip(portions, self.functions.stream("traces", calls), strict=True):
            yield from zip(some, replies, strict=True)

    def first_open(self, job: str, limit: int) -> list[Run]:
        """Up to `limit` of the job's runs that have not ended, in the order of admission."""
        runs: list[Run] = []
        start, key = 0, self.keys.history(job)
        while len(runs) < limit and (page := self.client.zrange(key, start, start + CHUNK - 1)):
            states = self.read_fields(page, "state")
            is_open = [run_id for run_id, state in states if state in OPEN_STATES]
            runs += self.runs(is_open[: limit - len(runs)])
            start += CHUNK
        return runs

    def at_work_in(self, processes: Collection[str]) -> list[tuple[str, str, str]]:
        """The running attempts that began with one of these proofs of life: run, token, worker.

        A run whose key is no record is passed over.
        """
        leases = self.client.zrange(self.keys.leases, 0, -1) if processes else []
        fields = ("state", "token", "worker", "process")
        attempts: list[tuple[str, str, str]] = []
        for run_id, reply in self.read_each(
            leases, lambda pipe, run_id: pipe.hmget(self.keys.run(run_id), fields), is_strict=False
        ):
            if isinstance(reply, RedisError):
                if may_pass(reply):
                    raise reply
                continue
            state, token, worker, proof = reply
            process, _, of = (proof or "").rpartition(" ")
            if state == RunState.RUNNING and of == token and process in processes:
                attempts.append((run_id, token, worker))
        return attempts

    def read_each(
        self,
        items: Iterable[T],
        ask: Callable[[Pipeline, T], object],
        *,
        is_strict: bool = True,
    ) -> Iterator[tuple[T, Any]]:
        """Each item with the reply to what is asked for it; a round trip for CHUNK of them.

        is_strict: an error of one is raised. Else it is its reply.
        """
        for chunk in chunks(list(items)):
            with self.client.pipeline(transaction=False) as pipe:
                for item in chunk:
                    ask(pipe, item)
                replies = pipe.execute(raise_on_error=is_strict)
            yield from zip(chunk, replies, strict=True)

    def read_fields(self, run_ids: Iterable[str], *fields: str) -> Iterator[tuple[str, Any]]:
        """Each run with a field of its record, or a list of several; None for one it has not."""

        def ask(pipe: Pipeline, run_id: str) -> None:
            if len(fields) == 1:
                pipe.hget(self.keys.run(run_id), fields[0])
            else:
                pipe.hmget(self.keys.run(run_id), fields)

        return self.read_each(run_ids, ask)

    def _some_fields(self, key: str, names: Collection[str]) -> dict[str, str]:
        fields: dict[str, str] = {}
        for some in chunks(list(names)):
            values = zip(some, self.client.hmget(key, some), strict=True)
            fields |= {name: value for name, value in values if value is not None}
        return fields

    def _fields(self, key: str) -> dict[str, str]:
        """A hash of any size, piece by piece, so that nothing waits for all of it."""
        return dict(self.client.hscan_iter(key, count=2 * CHUNK))


def chunks(items: Sequence[T], size: int = CHUNK) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
