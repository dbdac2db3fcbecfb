"""The ledger for a visitor who may see some jobs only: the others, and their runs, are hidden.

Names of hidden jobs still show where a visible one is linked to them: in the keys of its lock, in
`after`, in `blocked_by` and in reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from supervisor.errors import InvalidRequest, UnknownJob, UnknownRun
from supervisor.job.run import Run
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action
from supervisor.ledger.ledger import ANY_RUN, Ledger
from supervisor.ledger.reads import Loaded, read_job
from supervisor.ledger.records import BeatRecord, Origin
from supervisor.ledger.requests import RunRequest


@dataclass(frozen=True, slots=True)
class Scope:
    """Which jobs: those that one of the patterns fits, and that have all of the labels.

    jobs: patterns as of a shell, ``billing-*``; none fits all. labels: ``team=x``, or ``team``.
    """

    jobs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def is_everything(self) -> bool:
        return not self.jobs and not self.labels

    def may_be(self, name: str) -> bool:
        """Whether the job can be included, by its name alone."""
        return not self.jobs or any(fnmatchcase(name, pattern) for pattern in self.jobs)

    def includes(self, spec: JobSpec) -> bool:
        return self.may_be(spec.name) and all(map(spec.has_label, self.labels))

    def __str__(self) -> str:
        named = f"named {' or '.join(self.jobs)}" if self.jobs else ""
        labelled = f"labelled {' and '.join(self.labels)}" if self.labels else ""
        return "jobs " + (" and ".join(filter(None, (named, labelled))) or "of any name")


EVERYTHING = Scope()

#: The scope of the request that is being answered. Without one nothing can be read.
current_scope: ContextVar[Scope] = ContextVar("scope")


class ScopedLedger(Ledger):
    """Reads only what is in the scope of the present request."""

    @property
    def scope(self) -> Scope:
        return current_scope.get()

    def seen(self, names: Iterable[str]) -> set[str]:
        """Which of the jobs are in the scope. For a removed job, its last labels count."""
        scope = self.scope
        named = {name for name in names if scope.may_be(name)}
        if not scope.labels or not named:
            return named
        specs = super().some_specs(named)
        texts = self.read_each(
            sorted(named - specs.keys()), lambda pipe, n: pipe.hget(self.keys.job(n), "removed")
        )
        last = {name: spec for name, text in texts if text and (spec := read_job(text))}
        return {name for name, spec in {**specs, **last}.items() if scope.includes(spec)}

    def loaded(self, names: Collection[str] | None = None) -> Loaded:
        found = super().loaded(names)
        if self.scope.is_everything:
            return found
        specs = {name: spec for name, spec in found.specs.items() if self.scope.includes(spec)}
        # It is not known which labels a job has that cannot be read.
        unread = {n: text for n, text in found.unread.items() if n in self.seen([n])}
        origins = {n: at for n, at in found.origins.items() if n in specs or n in unread}
        return Loaded(specs, unread, origins, found.files_version)

    def removed(self) -> dict[str, JobSpec]:
        return {n: spec for n, spec in super().removed().items() if self.scope.includes(spec)}

    def origins(self) -> dict[str, Origin]:
        found = super().origins()
        return {name: found[name] for name in self.seen(found)}

    def specs(self) -> dict[str, JobSpec]:
        return {n: spec for n, spec in super().specs().items() if self.scope.includes(spec)}

    def each_spec(self) -> Iterator[JobSpec]:
        return filter(self.scope.includes, super().each_spec())

    def some_specs(self, names: Collection[str], *, remembered: bool = True) -> dict[str, JobSpec]:
        found = super().some_specs(names, remembered=remembered)
        return {name: spec for name, spec in found.items() if self.scope.includes(spec)}

    def spec_or_last(self, name: str) -> JobSpec:
        spec = super().spec_or_last(name)
        if not self.scope.includes(spec):
            raise UnknownJob(name)
        return spec

    def knows(self, name: str) -> bool:
        return super().knows(name) and name in self.seen([name])

    def scheduled_names(self) -> list[str]:
        return sorted(self.seen(super().scheduled_names()))

    def job_names(self) -> list[str]:
        return [*self.seen(super().job_names())]

    def run(self, run_id: str) -> Run:
        found = super().run(run_id)
        if found.job not in self.seen([found.job]):
            raise UnknownRun(run_id)
        return found

    def runs(self, run_ids: Sequence[str]) -> list[Run]:
        found = super().runs(run_ids)
        seen = self.seen({run.job for run in found})
        return [run for run in found if run.job in seen]

    def beat(self) -> BeatRecord:
        """Problems of schedule files are of jobs of any name."""
        found = super().beat()
        return found if self.scope.is_everything else replace(found, problems=())

    def trigger(
        self, spec: JobSpec, request: RunRequest = ANY_RUN, action: Action | None = None
    ) -> Run:
        """Raises InvalidRequest also for a lock of its own, which may be that of another job."""
        if request.key is not None and not self.scope.is_everything:
            raise InvalidRequest(f"key: who acts on {self.scope} only cannot choose a lock")
        return super().trigger(spec, request, action)
