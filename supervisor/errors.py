"""Every error this package raises on purpose: a class for what code tells apart by its type.

SupervisorError
├── ScheduleFilesInvalid   schedule files have problems; all of them are listed
├── AccessFileInvalid      the access file has problems; all of them are listed
├── InvalidSchedule        an expression that names no times
├── InvalidJob             a job that is put at run time has problems; all of them are listed
├── InvalidRequest         a request that makes no sense for its job
├── InvalidKey             a lock's key that the arguments cannot fill
├── InvalidGuard           a task's or a call's `guard` is wrong
├── NoQueue                the app's routes and queues have none for a message
├── NotTranslatable        a schedule, or a part of one, that a schedule file cannot express
├── NotConfigured          a setting that the command needs is absent, or cannot be read
├── SecretMissing          a reference to a secret that this process does not have
├── NotFound               there is nothing of this name
│   ├── UnknownJob         a job name that no loaded schedule file has
│   │   └── UnreadableJob  a job that only another version of this package can read
│   └── UnknownRun         a run id the ledger does not know (any more)
├── Conflict               refused as things are: too many jobs, a run that has ended
│   ├── JobConflict        another version of the job is loaded than its editor has seen
│   └── JobElsewhere       the name is that of a job of another source
├── WrongSchema            the ledger was written by another version of this package
├── ForeignLedger          the ledger holds the jobs of another app
├── Unavailable            a server that is needed does not answer
├── UnusableReturn         a task returned what is no result, or what later steps cannot be given
├── OutputTooLarge         a program that a job runs wrote more than it may
└── JobRaised              the job raised what would stop its worker's process

RunInterrupted, a BaseException, raised inside a job's code
├── LeaseLost              its lease ended or went to another run
└── RunCancelled           it was cancelled or replaced
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Self

# Hints for misspelt words.


#: To compare a word with this many takes a tenth of a second.
MOST_COMPARED = 5_000


def did_you_mean(word: str, words: Iterable[str], ratio: float = 0.6) -> str:
    """A hint such as `` (did you mean 'overlap'?)``, or nothing when none of the words is close.

    ratio: how much of the words is the same, higher where words that look alike mean other things.
    Of very many words only those with the same first letter are considered.
    """
    words = list(words)
    if len(words) > MOST_COMPARED:
        words = [each for each in words if each[:1] == word[:1]][:MOST_COMPARED]
    close = get_close_matches(word, words, n=1, cutoff=ratio)
    return f" (did you mean {close[0]!r}?)" if close else ""


def closest(word: object, words: Iterable[str]) -> str | None:
    """The same hint without its brackets, for a problem that adds its own."""
    hint = did_you_mean(word, words) if isinstance(word, str) else ""
    return hint.removeprefix(" (").removesuffix(")") or None


def shown(value: Any, length: int = 60) -> str:
    """The value as a problem's text quotes it: in YAML's words, on one line, cut when long."""
    is_word = value is None or isinstance(value, bool)
    text = {True: "true", False: "false", None: "null"}[value] if is_word else repr(value)
    return text if len(text) <= length else f"{text[: length - 3]}..."


#: Exit codes of the command line other than 0: docs/reference/commands.md.
WRONG, USAGE, NOT_FOUND, REFUSED, UNAVAILABLE = 1, 2, 3, 4, 5


class SupervisorError(Exception):
    """The base class of all errors below. The command line prints it and exits with `exit_code`.

    `args` are what it is made of, so that copies are equal: of pickle, and of Celery, which stores
    a class and its `args`. Where they are no text, `_text` is.
    """

    exit_code = WRONG
    _text = ""

    def __str__(self) -> str:
        return self._text or super().__str__()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing wrong in one place of one schedule file; lines count from 1."""

    file: str
    line: int
    job: str | None
    what: str
    hint: str | None = None

    def __str__(self) -> str:
        job = f" job {self.job!r}:" if self.job else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.file}:{self.line}:{job} {self.what}{hint}"


class FilesInvalid(SupervisorError):
    """Files have problems, and nothing of them was applied."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = tuple(sorted(problems, key=lambda p: (p.file, p.line)))
        self._text = "\n".join(map(str, self.problems))
        super().__init__(self.problems)


class ScheduleFilesInvalid(FilesInvalid):
    """The schedule files have problems."""


class AccessFileInvalid(FilesInvalid):
    """The access file has problems."""

    exit_code = USAGE


class InvalidSchedule(SupervisorError, ValueError):
    """The schedule expression names no times."""


class NotFound(SupervisorError, LookupError):
    """There is no job, run or queue of this name."""

    exit_code = NOT_FOUND


class UnknownJob(NotFound):
    """No loaded job has this name."""

    def __init__(self, job: str, jobs: Iterable[str] = ()) -> None:
        self._text = f"unknown job {job!r}{did_you_mean(job, jobs)}"
        super().__init__(job)


class UnreadableJob(UnknownJob):
    """The job was loaded by another version of this package, and this one cannot read it."""

    exit_code = REFUSED

    def __init__(self, job: str) -> None:
        super().__init__(job)
        what = f"job {job!r} was loaded by another version of celery-beat-supervisor"
        self._text = f"{what}, and cannot be read by this one (docs/how-to/upgrading.md)"


class UnknownRun(NotFound):
    """The ledger does not have this run, or no longer has it."""

    def __init__(self, run_id: str, why: str | None = None) -> None:
        self._text = f"unknown run {run_id!r}" + (f": {why}" if why else "")
        super().__init__(run_id, why)


class InvalidJob(SupervisorError, ValueError):
    """A job that is put at run time has problems, listed in `problems`. Nothing was changed.

    `job` is empty if several jobs were put or removed; then each problem names its job. `places`
    has for each problem the keys that lead to what it is about, as far as that is known.
    """

    exit_code = USAGE

    def __init__(
        self, job: str, problems: Sequence[str], places: Sequence[tuple[str | int, ...]] = ()
    ) -> None:
        self.job = job
        self.problems = tuple(problems)
        self.places = tuple(places) or ((),) * len(self.problems)
        self._text = (f"job {job!r}: " if job else "") + "; ".join(problems)
        super().__init__(job, self.problems, self.places)


class Conflict(SupervisorError):
    """What is loaded or recorded does not allow it. Nothing was changed. HTTP answers 409."""

    exit_code = REFUSED


class JobConflict(Conflict):
    """The loaded version of the job is not the expected one. Nothing was changed.

    `version` is the loaded version, and 0 if the job is not loaded.
    """

    def __init__(self, job: str, version: int) -> None:
        self.version = version
        state = f"its version is {version} by now" if version else "it is not loaded"
        self._text = f"job {job!r} was changed by another: {state}; read it again"
        super().__init__(job, version)


class JobElsewhere(Conflict):
    """A job of another source has this name. Nothing was changed."""

    def __init__(self, job: str, place: str, own_place: str = "") -> None:
        here = f", and this one is {own_place}" if own_place else ""
        self._text = (
            f"job {job!r} is loaded from elsewhere: {place or 'a schedule file'}{here}; change it"
            " there, or choose another name"
        )
        super().__init__(job, place, own_place)


class WrongSchema(SupervisorError):
    """A newer or an older version of this package wrote the ledger. Nothing was changed."""

    exit_code = REFUSED

    def __init__(self, of_ledger: int, own: int) -> None:
        hint = "install the version that the other processes run, and start this one again"
        self._text = (
            f"the ledger has schema {of_ledger} and this version of celery-beat-supervisor "
            f"writes schema {own}: {hint} (docs/how-to/upgrading.md)"
        )
        super().__init__(of_ledger, own)


class ForeignLedger(SupervisorError):
    """The ledger holds the jobs of another app, which a beat or an `apply` would remove."""

    exit_code = REFUSED

    def __init__(self, owner: str, own: str) -> None:
        self._text = (
            f"the ledger is that of the app {owner!r}, and this is {own!r}: give one of them a "
            "prefix or a Redis database of its own; if they are Celery() objects of one project, "
            f"give each of them supervise(..., owner={owner!r}); if this app is to have the ledger "
            "from now on, because it was renamed, run `supervisor -A proj apply --take-over`"
        )
        super().__init__(owner, own)


class Unavailable(SupervisorError):
    """A server does not answer; what was asked can be tried again when it does."""

    exit_code = UNAVAILABLE


class InvalidRequest(SupervisorError, ValueError):
    """The request makes no sense for its job. HTTP answers 400."""

    exit_code = USAGE


class InvalidKey(SupervisorError, ValueError):
    """The lock's key is not a valid template, or names an argument that the run does not have."""

    exit_code = USAGE


class NotTranslatable(SupervisorError, ValueError):
    """A schedule file cannot express what is to be imported."""


class InvalidGuard(SupervisorError, ValueError):
    """The `guard` of a task or a call has problems, listed in `problems`."""

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        self._text = f"{where}: " + "; ".join(problems)
        super().__init__(where, self.problems)


class NotConfigured(SupervisorError):
    """A required setting is missing or invalid."""

    exit_code = USAGE


class SecretMissing(SupervisorError, LookupError):
    """This process does not have the secret that a schedule file refers to."""

    def __init__(self, reference: str, why: str) -> None:
        self._text = f"{reference}: {why}"
        super().__init__(reference, why)


class NoQueue(SupervisorError):
    """The app's routes and queues have none for a message."""


class UnusableReturn(SupervisorError, ValueError):
    """What a task returned is no result, or cannot be handed on to the later steps of its run."""


class OutputTooLarge(SupervisorError):
    """A program that `run_command` captures wrote more than `max_output` bytes to one stream."""


class JobRaised(SupervisorError):
    """The job raised what would stop its worker's process: SystemExit, MemoryError, or anything
    else that is not an Exception.
    """

    @classmethod
    def of(cls, raised: BaseException) -> Self:
        return cls(f"{type(raised).__name__}: {raised}".removesuffix(": "))


class RunInterrupted(BaseException):
    """Raised in a job's code to end it: the job should clean up and return within `stop_grace`.

    It is not a subclass of Exception, so ``except Exception`` does not catch it.
    """


class LeaseLost(RunInterrupted):
    """The run lost its lease: another run may have started, and their writes may collide."""


class RunCancelled(RunInterrupted):
    """The run was cancelled, or replaced by a newer one."""
