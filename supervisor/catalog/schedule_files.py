"""Schedule files -> JobSpecs: everything that is wrong is found at once, or nothing is loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from supervisor.catalog.faults import JobFault, item_faults
from supervisor.catalog.job_checks import Tasks, check_defaults, check_job
from supervisor.catalog.yaml_source import (
    UNREADABLE,
    KeyPath,
    UnusableFile,
    YamlDocument,
    content_of,
    decoded,
    read,
)
from supervisor.errors import Problem, ScheduleFilesInvalid, SecretMissing, closest, shown
from supervisor.job.secrets import (
    DIRECTORY_VARIABLE,
    FORMS,
    has_references,
    malformed,
    not_in,
    outside,
    resolved,
    texts_in,
)
from supervisor.job.spec import MOST_JOBS, JobSpec
from supervisor.lists.files import FILE_CHECKS
from supervisor.lists.files import FORMS as WRITTEN_FORMS
from supervisor.lists.keys import ADDRESSES
from supervisor.settings import DEFAULT_PREFIX

# What features write in a form of their own.


def without_forms(values: Mapping[str, Any], year: int) -> tuple[dict[str, Any], list[JobFault]]:
    """A job's values with what features write in a form of their own as the core reads it.

    year: the one that it is now.
    """
    plain, faults = dict(values), list[JobFault]()
    for form in WRITTEN_FORMS:
        if form.key in plain:
            plain[form.key], wrong = form.read(plain[form.key], year)
            faults += item_faults(form.key, wrong)
    return plain, faults


def with_forms(values: Mapping[str, Any], year: int) -> dict[str, Any]:
    """A loaded job's values as they are written, where loading that gives the same."""
    written = dict(values)
    for form in WRITTEN_FORMS:
        if form.key in written:
            written[form.key] = form.write(written[form.key], year)
    return written


# The references to secrets in a job of a schedule file, and what is wrong with them.


def reference_faults(
    spec: JobSpec, environ: Mapping[str, str] | None, directory: Path | None = None
) -> Iterator[JobFault]:
    """References that are malformed; with `environ`, those that it does not have; with
    `directory`, those to files outside of it.
    """
    for path, text in texts_in(spec.params):
        if has_references(text):
            what = f"'params': {text!r} would be handed on as it is"
            yield JobFault(("params",), what, "give it to a step, in its 'kwargs'", path)
    steps = [{"args": step.args, "kwargs": step.kwargs} for step in spec.steps]
    given: dict[str, Any] = {"args": spec.args, "kwargs": spec.kwargs, "steps": steps}
    given |= {key: each.texts(getattr(spec, key)) for key, each in ADDRESSES.items()}
    for key, value in given.items():
        for path, text in texts_in(value):
            if references := malformed(text):
                what = f"{key!r}: {references[0]!r} is not a reference to a secret"
                yield JobFault((key,), what, FORMS, path)
            elif directory and (references := outside(text, directory)):
                hint = f"as in {directory}/name; or set {DIRECTORY_VARIABLE} as for the workers"
                yield JobFault((key,), f"{key!r}: {references[0]}: {not_in(directory)}", hint, path)
            elif environ is not None and (missing := unresolved(text, environ)):
                yield JobFault((key,), f"{key!r}: {missing}", None, path)


def unresolved(text: str, environ: Mapping[str, str]) -> str | None:
    """Why a secret in the text is missing in this environment; None if none is."""
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
    """All jobs of some schedule files."""

    specs: Mapping[str, JobSpec]
    """By name."""

    digest: str
    """Equal for two sets exactly when their specs are."""

    sources: Mapping[str, str]
    """By name the place of the job: "file:line"."""

    files: tuple[Path, ...] = ()
    """All that were read."""


def load(
    path: Path,
    app_tasks: Tasks | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    prefix: str = DEFAULT_PREFIX,
    year: int | None = None,
    are_all: bool = True,
    secrets: Path | None = None,
    text: bytes | None = None,
) -> ScheduleSet:
    """All jobs of one file, or of the *.yaml and *.yml files in a directory.

    prefix: of the ledger that they are for, which is in the names of its serial queues. year: the
    one that it is now, and that holidays are computed around; by default as the clock says.
    are_all: they follow no jobs but each other; else `after` is not checked. text: of `path`, which
    is no file then.
    With `app_tasks`, a job whose task is not among them, or does not take the job's arguments, is
    a problem; with `environ`, so is a reference to a secret that is not there; with `secrets`, so
    is one to a file outside of that directory.

    Raises ScheduleFilesInvalid with every problem of every file.
    """
    loading = _Loading(app_tasks, environ, year or datetime.now(UTC).year, prefix, secrets)
    with suppress(_Enough):
        for file in loading.files_of(path) if text is None else [path]:
            loading.add(file, text)
        if are_all:
            loading.check_together()
    return loading.done()


def _digest(specs: Mapping[str, JobSpec]) -> str:
    digest = hashlib.sha256()
    for name in sorted(specs):
        keys = specs[name].model_dump(mode="json", exclude_defaults=True)
        digest.update(json.dumps(keys, sort_keys=True).encode() + b"\0")
    return digest.hexdigest()


class _Enough(Exception):
    """There are MOST_PROBLEMS."""


@dataclass(slots=True)
class _Loading:
    """What was found so far, file by file."""

    app_tasks: Tasks | None
    environ: Mapping[str, str] | None
    year: int
    prefix: str
    secrets: Path | None = None
    specs: dict[str, JobSpec] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    documents: dict[str, YamlDocument] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def done(self) -> ScheduleSet:
        """Raises as `load`."""
        if self.problems:
            raise ScheduleFilesInvalid(self.problems)
        return ScheduleSet(self.specs, _digest(self.specs), self.sources, tuple(self.files))

    def files_of(self, path: Path) -> list[Path]:
        """The files to read, sorted by name; hidden ones are an editor's, or another tool's."""
        try:
            if not path.is_dir():
                path.stat()
                return [path]
            names = sorted(entry.name for entry in path.iterdir())
        except OSError as error:
            is_absent = isinstance(error, FileNotFoundError)
            hint = "`supervisor init` writes a first schedule file" if is_absent else None
            self._problem(path, 1, f"cannot be read: {error.strerror}", hint)
            return []
        files = [path / name for name in names if not name.startswith(".")]
        return [file for file in files if file.suffix in SUFFIXES]

    def add(self, file: Path, content: bytes | None = None) -> None:
        """content: of what is no file."""
        self.files.append(file)
        try:
            document = read(decoded(content_of(file) if content is None else content))
        except UnusableFile as error:
            self._problem(file, error.line, error.what, error.hint)
            return
        document.file = file
        for fault in document.faults:
            self._problem(file, fault.line, fault.what, fault.hint, job=_job_of(fault.path))
        if document.data is not UNREADABLE:
            self._add_jobs(document)

    def _add_jobs(self, document: YamlDocument) -> None:
        top = document.data
        if top is None:
            self._fault(document, (), "the file is empty", "for no jobs: jobs: {}")
            return
        if not isinstance(top, dict):
            self._fault(document, (), "the file is not a mapping", "jobs: first")
            return
        for key in top:
            if key not in TOP_LEVEL:
                hint = closest(key, TOP_LEVEL) or "known are jobs and defaults"
                self._fault(document, (key,), f"unknown key {shown(key)}", hint)
        if "jobs" not in top:
            self._fault(document, (), "'jobs' is missing", "for none: jobs: {}")
        defaults = self._defaults(document)
        for name, own in self._mapping_at(document, "jobs").items():
            try:
                self._add_job(document, name, own, defaults)
            except (_Enough, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - a fault of ours, of this one job only
                self._fault(document, ("jobs", name), f"{UNJUDGED}: {error!r}")

    def check_together(self) -> None:
        """Called once all jobs are known: jobs of files follow only jobs of files."""
        for fault in (fault for check in FILE_CHECKS for fault in check(self.specs)):
            path = ("jobs", fault.job, *fault.path)
            self._fault(self.documents[fault.job], path, fault.what, fault.hint)
        jobs: dict[str, str] = {}
        for spec in self.specs.values():
            if spec.entry and jobs.setdefault(spec.entry, spec.name) != spec.name:
                what = f"'entry': {shown(spec.entry)} is that of job {jobs[spec.entry]!r} too"
                self._fault(self.documents[spec.name], ("jobs", spec.name, "entry"), what)

    def _mapping_at(self, document: YamlDocument, key: str) -> dict[str, Any]:
        value = document.data.get(key, {})
        if isinstance(value, dict):
            return value
        if value is not UNREADABLE:
            what = "is empty" if value is None else "is not a mapping"
            self._fault(document, (key,), f"{key!r} {what}", f"for none: {key}: {{}}")
        return {}

    def _defaults(self, document: YamlDocument) -> dict[str, Any]:
        values = self._mapping_at(document, "defaults")
        plain, form_faults = without_forms(values, self.year)
        defaults, faults = check_defaults(plain)
        if addresses := {key: defaults[key] for key in ADDRESSES.keys() & defaults.keys()}:
            shared = JobSpec(name="job", task="task", every=60, **addresses)
            faults += reference_faults(shared, self.environ, self.secrets)
        for fault in [*faults, *form_faults]:
            path = ("defaults", *fault.place_in(values))
            self._fault(document, path, f"defaults: {fault.what}", fault.hint)
        return defaults

    def _add_job(
        self, document: YamlDocument, name: str, own: Any, defaults: Mapping[str, Any]
    ) -> None:
        path = ("jobs", name)
        if not self._is_new(document, name) or own is UNREADABLE:
            return
        if not isinstance(own, dict):
            self._fault(document, path, "is not a mapping of keys to values")
            return
        plain, form_faults = without_forms(own, self.year)
        spec, faults = check_job(name, plain, defaults, self.app_tasks)
        spec = self.specs[name] = spec.kept_apart(self.prefix)
        if spec.after or spec.entry:
            self.documents[name] = document
        missing = reference_faults(spec, self.environ, self.secrets)
        faults += [fault for fault in missing if fault.keys[0] in own]
        for fault in [*faults, *form_faults]:
            self._fault(document, (*path, *fault.place_in(own)), fault.what, fault.hint)

    def _is_new(self, document: YamlDocument, name: str) -> bool:
        path = ("jobs", name)
        if name in self.sources:
            what = f"this job is also in {self.sources[name]}"
            self._fault(document, path, what, "rename one of the two")
            return False
        self.sources[name] = f"{document.file}:{document.line_of(path)}"
        if len(self.sources) == MOST_JOBS + 1:
            self._fault(document, path, f"more than {MOST_JOBS:,} jobs", "the first too many")
        return True

    def _fault(
        self, document: YamlDocument, path: KeyPath, what: str, hint: str | None = None
    ) -> None:
        """Reports a problem at a path in a file."""
        self._problem(document.file, document.line_of(path), what, hint, _job_of(path))

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
