"""Puts, removals and loads of files in any order, beside a model in plain Python."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery import Celery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load, put_jobs
from supervisor.errors import JobConflict, JobElsewhere, SupervisorError
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.testing import empty
from tests.jobs import entered

NAMES = ("a", "b", "c")
SOURCES = ("runtime", "django")

names, sources = st.sampled_from(NAMES), st.sampled_from(SOURCES)
every, args = st.sampled_from((60, 3600)), st.sampled_from(((), (1,)))


def spec(name: str, every: int, args: tuple[Any, ...]) -> JobSpec:
    return JobSpec(name=name, task="t", every=timedelta(seconds=every), args=args)


wanted = st.dictionaries(names, st.tuples(every, args), max_size=3)

#: (source, jobs by name with None for one to be removed, which of them are of the version seen)
puts = st.tuples(
    sources,
    st.dictionaries(names, st.none() | st.tuples(every, args), min_size=1, max_size=3),
    st.sampled_from(("any", "seen", "outdated")),
)

steps = st.lists(st.tuples(st.just("put"), puts) | st.tuples(st.just("load"), wanted), max_size=12)


#: In place of a version that is not known yet.
WRITTEN = -1


class Model:
    """What is loaded: of each job its source, spec and version."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[str, JobSpec, int]] = {}

    def put(
        self, source: str, jobs: dict[str, JobSpec | None], versions: dict[str, int | None]
    ) -> type[SupervisorError] | None:
        """The error, if it is refused."""
        if any(name in self.jobs and self.jobs[name][0] != source for name in jobs):
            return JobElsewhere
        if any(v is not None and v != self.version(name) for name, v in versions.items()):
            return JobConflict
        self._write(source, jobs)
        return None

    def load(self, jobs: dict[str, JobSpec]) -> type[SupervisorError] | None:
        mine = {name for name, (source, *_) in self.jobs.items() if source == "files"}
        if any(name in self.jobs and name not in mine for name in jobs):
            return JobElsewhere
        self._write("files", {**dict.fromkeys(mine), **jobs})
        return None

    def version(self, name: str) -> int:
        return self.jobs[name][2] if name in self.jobs else 0

    def _write(self, source: str, jobs: dict[str, JobSpec | None]) -> None:
        for name, spec in jobs.items():
            if spec is None:
                self.jobs.pop(name, None)
            elif name not in self.jobs or self.jobs[name][1] != spec:
                self.jobs[name] = (source, spec, WRITTEN)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_puts_and_loads_do_as_the_model(
    steps: list[Any], ledger: Ledger, entries: Entries, app: Celery
) -> None:
    empty(ledger)
    model, newest = Model(), 0
    for kind, what in steps:
        if kind == "put":
            source, given_jobs, seen = what
            jobs = {n: spec(n, *keys) if keys else None for n, keys in given_jobs.items()}
            versions = {n: version_said(seen, model.version(n)) for n in jobs}
            refused = model.put(source, jobs, versions)
            done = attempt(put_jobs, ledger, entries, jobs, source, "here", versions)
        else:
            specs = {n: spec(n, *keys) for n, keys in what.items()}
            refused = model.load(specs)
            done = attempt(load, ledger, entries, specs, "digest", ledger.now())
        assert done == refused
        newest = agreed(ledger, model, newest)


def version_said(seen: str, version: int) -> int | None:
    return {"any": None, "seen": version, "outdated": version + 1}[seen]


def attempt(act: Any, *args: Any) -> type[Exception] | None:
    try:
        act(*args)
    except SupervisorError as error:
        return type(error)
    return None


def agreed(ledger: Ledger, model: Model, newest: int) -> int:
    """Takes over the versions of what was written just now; gives the newest of all so far."""
    loaded = ledger.loaded()
    assert loaded.specs == {name: spec for name, (_, spec, _) in model.jobs.items()}
    assert entered(ledger) == loaded.specs
    for name, (source, spec, version) in model.jobs.items():
        origin = loaded.origins[name]
        is_new = version == WRITTEN
        assert (origin.source, is_new) == (source, origin.version != version)
        assert not is_new or origin.version > newest
        model.jobs[name] = (source, spec, origin.version)
    others = [name for name, (source, *_) in model.jobs.items() if source != "files"]
    assert int(ledger.client.hget(ledger.keys.beat, "at_run_time") or 0) == len(others)
    assert ledger.client.hlen(ledger.keys.sources) == len(model.jobs)
    return max([newest, *(version for _, _, version in model.jobs.values())])
