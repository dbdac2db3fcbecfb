"""The lines of a crontab(5): what each of them is, not yet what it means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from supervisor.errors import InvalidSchedule
from supervisor.timing.cron_fields import parse

#: More than a job's arguments may be; cron itself takes a thousand characters.
LONGEST_LINE = 16 * 1024

#: For lines without blanks at their ends.
_ASSIGNMENT = re.compile(r"""(["']?)([A-Za-z_]\w*)\1\s*=\s*(.*)""")
_WHEN = r"(@\S+|\S+(?:[ \t]+\S+){4})"
_JOB = re.compile(rf"{_WHEN}[ \t]+(\S.*)")
_SYSTEM_JOB = re.compile(rf"{_WHEN}[ \t]+(\S+)[ \t]+(\S.*)")

#: The legend of the fields that distributions and tutorials put above the first job.
_LEGEND = re.compile(r"[|.*┌│├└]|m(in(ute)?)?\s+h(our)?\s+d", re.I)


@dataclass(frozen=True, slots=True)
class Assignment:
    """``NAME = value``, the quotes around the value taken off."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Comment:
    text: str

    @property
    def is_legend(self) -> bool:
        return bool(_LEGEND.match(self.text))

    @property
    def is_disabled_job(self) -> bool:
        match = _JOB.fullmatch(self.text)
        return match is not None and _is_cron(_fields(match[1]))


@dataclass(frozen=True, slots=True)
class JobLine:
    """when: the nickname or the five fields as they stand there; user: of a system crontab."""

    when: str
    user: str | None
    command: str


@dataclass(frozen=True, slots=True)
class Blank:
    pass


@dataclass(frozen=True, slots=True)
class Unknown:
    pass


Line = Assignment | Comment | JobLine | Blank | Unknown


def lines_of(text: str, *, system: bool) -> Iterator[tuple[int, str, Line]]:
    """Number, text and meaning of each line; with `system` jobs have a user's column."""
    for number, line in enumerate(text.split("\n"), start=1):
        yield number, line.rstrip("\r"), _line(line.rstrip("\r"), system=system)


def _line(line: str, *, system: bool) -> Line:
    stripped = line.strip()
    if not stripped:
        return Blank()
    if len(stripped) > LONGEST_LINE:
        return Unknown()
    if stripped.startswith("#"):
        return Comment(stripped.lstrip("#").strip())
    if match := _ASSIGNMENT.fullmatch(stripped):
        return Assignment(match[2], _unquoted(match[3]))
    return _system_job(stripped) if system else _job(stripped)


def _job(line: str) -> Line:
    match = _JOB.fullmatch(line)
    return JobLine(_fields(match[1]), None, match[2]) if match else Unknown()


def _system_job(line: str) -> Line:
    match = _SYSTEM_JOB.fullmatch(line)
    return JobLine(_fields(match[1]), match[2], match[3]) if match else Unknown()


def _fields(when: str) -> str:
    return when.lower() if when.startswith("@") else " ".join(when.split())


def _is_cron(when: str) -> bool:
    try:
        parse(when)
    except InvalidSchedule:
        return when == "@reboot"
    return True


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value
