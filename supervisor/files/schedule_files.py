"""Schedule files -> JobSpecs: everything that is wrong is found at once, or nothing is loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from supervisor.errors import Problem, ScheduleFilesInvalid, SecretMissing, closest
from supervisor.files.calendars import Calendars
from supervisor.files.job_checks import JobFault, check_defaults, check_job, item_faults
from supervisor.files.yaml_source import (
    UNREADABLE,
    Document,
    KeyPath,
    UnusableFile,
    check_inside,
    decoded,
    read,
    shown,
    text_of,
)
from supervisor.job.following import following_problems
from supervisor.job.secrets import FORMS, has_references, malformed, resolved, texts_in
from supervisor.job.spec import MOST_JOBS, JobSpec
from supervisor.settings import DEFAULT_PREFIX

# The references to secrets in a job of a schedule file, and what is wrong with them.


def reference_faults(spec: JobSpec, environ: Mapping[str, str] | None) -> Iterator[JobFault]:
    """References that are malformed and, with `environ`, those that it does not have."""
    for path, text in texts_in(spec.params):
        if has_references(text):
            what = f"'params': {text!r} would be handed on as it is"
            yield JobFault(("params",), what, "give it to a step, in its 'kwargs'", path)
    steps = [{"args": step.args, "kwargs": step.kwargs} for step in spec.steps]
    given: dict[str, Any] = {"args": spec.args, "kwargs": spec.kwargs, "steps": steps}
    secrets = [[each.url, each.secret] for each in spec.notify]
    for key, value in {**given, "ping_url": spec.ping_url, "notify": secrets}.items():
        for path, text in texts_in(value):
            if found := malformed(text):
                what = f"{key!r}: {found[0]!r} is not a reference to a secret"
                yield JobFault((key,), what, FORMS, path)
            elif environ is not None and (missing := unresolved(text, environ)):
                yield JobFault((key,), f"{key!r}: {missing}", None, path)


def unresolved(text: str, environ: Mapping[str, str]) -> str | None:
    """Why the text has no secret in this environment; None when it has all of them."""
    try:
        resolved(text, environ)
    except SecretMissing as error:
        return str(error)
    return None


SUFFIXES = (".yaml", ".yml")
TOP_LEVEL = ("jobs", "defaults")

#: More would not help, and takes its time.
MOST_PROBLEMS = 1_000

#: For a job that makes our own code fail: the loaded jobs stay, as with any other problem.
UNJUDGED = "cannot be judged, which is a fault of celery-beat-supervisor"

#: Characters of one; it may quote what the file says.
LONGEST_PROBLEM = 500


@dataclass(frozen=True, slots=True)
class ScheduleSet:
    """specs: by job name; sources: job name -> "file:line"; files: all that were read.

    digest: equal for two sets exactly when their specs are.
    """

    specs: Mapping[str, JobSpec]
    digest: str
    sources: Mapping[str, str]
    files: tuple[Path, ...] = ()


def load(
    path: Path,
    known_tasks: Collection[str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    prefix: str = DEFAULT_PREFIX,
    year: int | None = None,
    are_all: bool = True,
) -> ScheduleSet:
    """All jobs of one file, or of the *.yaml and *.yml files in a directory.

    prefix: of the ledger that they are for, which is in the names of its serial queues. year: the
    one that it is now, and that holidays are computed around; by default as the clock says.
    are_all: they follow no jobs but each other; else who is followed is not looked at.
    With `known_tasks`, a job whose task is not among them is a problem; with `environ`, a reference
    to a secret that is not there. Raises ScheduleFilesInvalid with every problem of every file.
    """
    directory = path if path.is_dir() else path.parent
    calendars = Calendars(directory, year or datetime.now(UTC).year)
    loading = _Loading(known_tasks, environ, calendars, prefix)
    with suppress(_Enough), closing(calendars):
        for file in loading.files_of(path):
            loading.add(file)
        if are_all:
            loading.check_followers()
    return loading.done()


def load_text(
    text: bytes,
    known_tasks: Collection[str] | None = None,
    prefix: str = DEFAULT_PREFIX,
) -> ScheduleSet:
    """All jobs of what stands on standard input; calendars lie in the current directory.

    Who is followed is not looked at.
    """
    file, calendars = Path("-"), Calendars(Path(), datetime.now(UTC).year)
    loading = _Loading(known_tasks, None, calendars, prefix)
    with suppress(_Enough), closing(calendars):
        loading.add(file, text)
    return loading.done()


def _digest(specs: Mapping[str, JobSpec]) -> str:
    content = {name: spec.model_dump(mode="json") for name, spec in specs.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class _Enough(Exception):
    """There are MOST_PROBLEMS."""


@dataclass(slots=True)
class _Loading:
    """What was found so far, file by file."""

    known_tasks: Collection[str] | None
    environ: Mapping[str, str] | None
    calendars: Calendars
    prefix: str
    specs: dict[str, JobSpec] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    documents: dict[str, tuple[Document, Path]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def done(self) -> ScheduleSet:
        """Once the calendars are closed, so that their problems are known. Raises as `load`."""
        if problems := [*self.problems, *self.calendars.problems]:
            raise ScheduleFilesInvalid(problems[: MOST_PROBLEMS + 1])
        files = (*self.files, *self.calendars.files)
        return ScheduleSet(self.specs, _digest(self.specs), self.sources, files)

    def files_of(self, path: Path) -> list[Path]:
        """The files to read, sorted by name; hidden ones are an editor's, or another tool's."""
        try:
            if not path.is_dir():
                path.stat()
                return [path]
            names = sorted(entry.name for entry in path.iterdir())
        except OSError as error:
            self._problem(path, 1, f"cannot be read: {error.strerror}")
            return []
        files = [path / name for name in names if not name.startswith(".")]
        return [file for file in files if file.suffix in SUFFIXES and self._is_in(path, file)]

    def _is_in(self, directory: Path, file: Path) -> bool:
        try:
            check_inside(directory, file)
        except UnusableFile as error:
            self._problem(file, error.line, error.what, error.hint)
            return False
        return True

    def add(self, file: Path, content: bytes | None = None) -> None:
        """content: of what is no file."""
        self.files.append(file)
        try:
            document = read(text_of(file) if content is None else decoded(content))
        except UnusableFile as error:
            self._problem(file, error.line, error.what, error.hint)
            return
        for fault in document.faults:
            self._problem(file, fault.line, fault.what, fault.hint, job=_job_of(fault.path))
        if document.data is not UNREADABLE:
            self._add_jobs(file, document)

    def _add_jobs(self, file: Path, document: Document) -> None:
        top = document.data
        if top is None:
            self._problem(file, 1, "the file is empty", "for no jobs: jobs: {}")
            return
        if not isinstance(top, dict):
            self._problem(file, document.line_of(()), "the file is not a mapping", "jobs: first")
            return
        for key in top:
            if key not in TOP_LEVEL:
                hint = closest(key, TOP_LEVEL) or "known are jobs and defaults"
                self._problem(file, document.line_of((key,)), f"unknown key {shown(key)}", hint)
        if "jobs" not in top:
            self._problem(file, document.line_of(()), "'jobs' is missing", "for none: jobs: {}")
        defaults = self._defaults(file, document)
        for name, own in self._mapping_at(file, document, "jobs").items():
            try:
                self._add_job(file, document, name, own, defaults)
            except (_Enough, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - a fault of ours, of this one job only
                line = document.line_of(("jobs", name))
                self._problem(file, line, f"{UNJUDGED}: {error!r}", job=name)

    def check_followers(self) -> None:
        """Once all jobs are known: those of files follow jobs of files."""
        for fault in following_problems(self.specs):
            document, file = self.documents[fault.job]
            line = document.line_of(("jobs", fault.job, "after", fault.place))
            self._problem(file, line, fault.what, fault.hint, job=fault.job)

    def _mapping_at(self, file: Path, document: Document, key: str) -> dict[str, Any]:
        value = document.data.get(key, {})
        if isinstance(value, dict):
            return value
        if value is not UNREADABLE:
            what = "is empty" if value is None else "is not a mapping"
            self._problem(
                file, document.line_of((key,)), f"{key!r} {what}", f"for none: {key}: {{}}"
            )
        return {}

    def _defaults(self, file: Path, document: Document) -> dict[str, Any]:
        values = self._mapping_at(file, document, "defaults")
        resolved, file_faults = self.calendars.resolve(values)
        defaults, faults = check_defaults(resolved)
        if "notify" in defaults:
            shared = JobSpec(name="job", task="task", every=60, notify=defaults["notify"])
            faults += reference_faults(shared, self.environ)
        for fault in [*faults, *item_faults("exclude", file_faults)]:
            line = document.line_of(_place(("defaults",), fault, values))
            self._problem(file, line, f"defaults: {fault.what}", fault.hint)
        return defaults

    def _add_job(
        self, file: Path, document: Document, name: str, own: Any, defaults: Mapping[str, Any]
    ) -> None:
        line = document.line_of(("jobs", name))
        if self._is_new(file, line, name) and own is not UNREADABLE:
            if not isinstance(own, dict):
                self._problem(file, line, "is not a mapping of keys to values", job=name)
                return
            resolved, file_faults = self.calendars.resolve(own)
            spec, faults = check_job(name, resolved, defaults, self.known_tasks)
            self.specs[name] = spec.kept_apart(self.prefix)
            if spec.after:
                self.documents[name] = (document, file)
            missing = reference_faults(spec, self.environ)
            faults += [fault for fault in missing if fault.keys != ("notify",) or "notify" in own]
            for fault in [*faults, *item_faults("exclude", file_faults)]:
                at = document.line_of(_place(("jobs", name), fault, own))
                self._problem(file, at, fault.what, fault.hint, job=name)

    def _is_new(self, file: Path, line: int, name: str) -> bool:
        if name in self.sources:
            what = f"this job is also in {self.sources[name]}"
            self._problem(file, line, what, "rename one of the two", job=name)
            return False
        self.sources[name] = f"{file}:{line}"
        if len(self.sources) == MOST_JOBS + 1:
            self._problem(
                file, line, f"more than {MOST_JOBS:,} jobs", "this is the first too many", job=name
            )
        return True

    def _problem(
        self, file: Path, line: int, what: str, hint: str | None = None, job: str | None = None
    ) -> None:
        if len(self.problems) == MOST_PROBLEMS:
            what, hint = f"more than {MOST_PROBLEMS:,} problems", "the rest is not looked for"
            self.problems.append(Problem(str(file), line, None, what, hint))
            raise _Enough
        if len(what) > LONGEST_PROBLEM:
            what = f"{what[: LONGEST_PROBLEM - 3]}..."
        self.problems.append(Problem(str(file), line, job, what, hint))


def _job_of(path: KeyPath) -> str | None:
    return str(path[1]) if len(path) > 1 and path[0] == "jobs" else None


def _place(parent: KeyPath, fault: JobFault, values: Mapping[str, Any]) -> KeyPath:
    """Where the fault's first key stands that is written there; else the parent itself."""
    return next(((*parent, key, *fault.path) for key in fault.keys if key in values), parent)
