"""What the ledger knows of jobs: read, never changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TypeVar

from supervisor.errors import UnknownJob, UnreadableJob
from supervisor.job.durations import Durations
from supervisor.job.spec import GuardedTaskSpec, JobSpec
from supervisor.ledger.functions import Call
from supervisor.ledger.job_record import (
    MARK_FIELDS,
    NO_RUNS,
    JobRecord,
    Mark,
    OpenRuns,
    Origin,
    counted,
    job_from,
    mark_from,
    origin_from,
)
from supervisor.ledger.reader import CHUNK, Reader, chunks
from supervisor.ledger.specs import guarded_spec, job_spec, read_job, read_spec
from supervisor.times import instant

T = TypeVar("T")


#: Jobs whose open runs one call counts, runs of all of them, and calls that are sent ahead. The
#: server takes a millisecond or two for a call; a job with a hundred thousand runs takes many.
JOBS_COUNTED, RUNS_COUNTED, COUNTS_AHEAD = 50, 500, 20


#: Jobs whose last runs one call reads: with 200 runs each, it takes the server some milliseconds.
JOBS_TRACED = 10


#: Of a job with a longer history, so many of the last runs say how long one takes.
MOST_DURATIONS = 1_000


@dataclass(frozen=True, slots=True)
class Loaded:
    """Jobs that are loaded."""

    specs: Mapping[str, JobSpec]

    unread: Mapping[str, str]
    """Texts of those that this version cannot read."""

    origins: Mapping[str, Origin]

    files_version: int = 0
    """The version with which schedule files were loaded last."""

    def of(self, source: str) -> Loaded:
        """The jobs of one source."""

        def own(jobs: Mapping[str, T]) -> dict[str, T]:
            return {name: job for name, job in jobs.items() if self.origins[name].source == source}

        return Loaded(own(self.specs), own(self.unread), own(self.origins), self.files_version)


class JobReads(Reader):
    """The jobs of the ledger, and what has become of them."""

    def scheduled(self) -> dict[str, JobSpec]:
        """The loaded jobs by name, sorted, whatever their source; without loaded().unread."""
        texts = sorted(self._fields(self.keys.jobs).items())
        return {name: spec for name, text in texts if (spec := job_spec(text))}

    def scheduled_with(self, field: str) -> list[JobSpec]:
        """The loaded jobs that give this field of theirs, by name. The others are not read: of all
        of them, thousands of specs would stay in memory.
        """
        texts = self.client.hscan_iter(self.keys.jobs, count=1_000)
        likely = {name: text for name, text in texts if f'"{field}"' in text}
        specs = (job_spec(text) for _, text in sorted(likely.items()))
        return [spec for spec in specs if spec is not None and field in spec.model_fields_set]

    def loaded(self, names: Collection[str] | None = None) -> Loaded:
        """All loaded jobs, or those of the named ones that are loaded."""
        # An origin is never newer than the text that is read after it: load.lua compares versions.
        version = int(self.client.hget(self.keys.beat, "files") or 0)
        if names is None:
            origins, jobs = self._fields(self.keys.sources), self._fields(self.keys.jobs)
        else:
            origins = self._some_fields(self.keys.sources, names)
            jobs = self._some_fields(self.keys.jobs, names)
        if late := jobs.keys() - origins.keys():  # put between the two, or of unknown origin
            origins |= self._some_fields(self.keys.sources, late)
            again = self._some_fields(self.keys.jobs, late)
            jobs = {name: text for name, text in jobs.items() if name not in late} | again
        texts = sorted(jobs.items())
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

    def links(self) -> str:
        """The version with which an `after` was edited or a job removed last."""
        return self.client.hget(self.keys.beat, "linked") or "0"

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
        specs = self.some_specs([name])
        if specs:
            return specs[name]
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

    def edited_since(self, version: int) -> set[str]:
        """The jobs that were loaded, edited or removed with a newer version."""
        if int(self.client.hget(self.keys.beat, "version") or 0) == version:
            return set()
        return set(self.client.zrangebyscore(self.keys.edited, f"({version}", "+inf"))

    def loaded_digest(self) -> str | None:
        """Names the set of schedule files that is loaded."""
        return self.client.hget(self.keys.beat, "config")

    def jobs(self) -> list[JobRecord]:
        return self.records_of(list(self.specs().values()))

    def job(self, name: str) -> JobRecord:
        """Raises UnknownJob."""
        return self.records_of([self.spec(name)])[0]

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
            for some, lines_of_some in zip(portions, replies, strict=True):
                # There are no lines where none of them has an open run.
                for (job, _), (cursor, line) in zip(
                    some, lines_of_some, strict=bool(lines_of_some)
                ):
                    if line:
                        counts[job] = counts.get(job, NO_RUNS) + counted(line)
                    if cursor:
                        left.append((job, cursor))
            to_count = left
        return counts
