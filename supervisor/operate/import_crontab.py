"""A crontab(5) file -> jobs of a task that runs a command.

The five fields mean here what they mean to Debian's cron, so they are taken over as they stand.
What a crontab says beside them is translated where there is a key for it, and reported where there
is none: see `_Reading`, one method for each kind of line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from supervisor.errors import InvalidSchedule, NotTranslatable
from supervisor.operate.import_text import Found, Item, LeftOut, Remark
from supervisor.schedule.cron import parse

# A command of a crontab: what the shell gets of it, and a name for it.


#: Words that only prepare what follows them.
PREPARING = frozenset(
    {"cd", "test", "[", "[[", ":", ".", "source", "export", "set", "umask", "ulimit", "sleep"}
)

#: Words that run the rest of the line.
RUNNING = frozenset(
    {"sudo", "exec", "env", "time", "nice", "ionice", "nohup", "chronic", "timeout", "command"}
)

INTERPRETER = re.compile(r"(?:python|bash|sh|dash|zsh|perl|ruby|php|node)[\d.]*")
ASSIGNMENT = re.compile(r"\w+=.*", re.S)
SCRIPT_SUFFIXES = (".sh", ".bash", ".py", ".pl", ".rb", ".php", ".js")

#: An option, or the number or duration that belongs to one: `nice -n 10`, `timeout 5m`.
OPTION = re.compile(r"-.*|\d+[smhd]?")
PLAIN = re.compile(r"[A-Za-z][\w.:-]*")


#: Characters of a command in which its name is looked for.
LONGEST_START = 1_000


def shell_text(command: str) -> str:
    r"""What cron hands to the shell: `\%` is `%`. Raises NotTranslatable for a bare `%`.

    A bare % ends the command in cron, and what follows is its standard input.
    """
    parts = re.findall(r"\\.|[^\\]|\\$", command)
    if "%" in parts:
        raise NotTranslatable(
            "a bare % ends a command in cron and what follows is its input; "
            "put that into the command, or write \\% for a percent sign"
        )
    return "".join("%" if part == "\\%" else part for part in parts)


def name_of(command: str) -> str:
    """What a person would call it: its program, and the first plain word after it."""
    start = command[:LONGEST_START]
    words = next(filter(None, map(_without_wrappers, _simple_commands(start))), [])
    if not words:
        return "command"
    program, *rest = words
    if INTERPRETER.fullmatch(_base(program)) and (script := _script(rest)):
        program, *rest = script
    argument = next((word for word in rest if not OPTION.fullmatch(word)), "")
    base = _base(argument) if "://" not in argument else ""
    return "-".join([_base(program), *([base] if PLAIN.fullmatch(base) else [])])


def _simple_commands(command: str) -> Iterator[list[str]]:
    """The words between `&&`, `||`, `;` and `|`, without brackets and redirections."""
    for part in re.split(r"&&|\|\||[;|&](?!\d)", command):
        words = re.sub(r"\d?[<>]+&?\s*\S*", " ", part).strip().lstrip("({ ").rstrip(")} ")
        try:
            yield shlex.split(words)
        except ValueError:
            yield words.split()


def _without_wrappers(words: Sequence[str]) -> list[str]:
    """Nothing of what only prepares; else from the program on."""
    left = list(words)
    while left and (ASSIGNMENT.fullmatch(left[0]) or _base(left[0]) in RUNNING):
        is_wrapper = not ASSIGNMENT.fullmatch(left.pop(0))
        while is_wrapper and left and OPTION.fullmatch(left[0]):
            left.pop(0)
    return [] if left and left[0] in PREPARING else left


def _script(words: Sequence[str]) -> list[str]:
    """What an interpreter runs, or nothing where that is text of its own (`-c`)."""
    for place, word in enumerate(words):
        if word == "-m":
            return list(words[place + 1 :])
        if word in ("-c", "-e", "-r"):
            return []
        if not word.startswith("-"):
            return list(words[place:])
    return []


def _base(word: str) -> str:
    name = PurePosixPath(word).name
    return next((name.removesuffix(s) for s in SCRIPT_SUFFIXES if name.endswith(s)), name)


# The lines of a crontab(5): what each of them is, not yet what it means.


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


LONGEST_DESCRIPTION = 1000

#: `5/15`: 5 alone to most crons, 5-59/15 to others.
STEP_OVER_ONE = re.compile(r"(?:^|[\s,])\w+/")

ZONES = ("CRON_TZ", "TZ")


def read_crontab(
    text: str, *, file: str, task: str, timezone: str = "UTC", system: bool = False
) -> list[Item]:
    """All that the crontab holds, in its order.

    timezone: of the machine whose cron reads the file; a CRON_TZ in the file wins over it.
    """
    reading = _Reading(file, task, timezone)
    for number, original, line in lines_of(text, system=system):
        reading.add(f"{file}:{number}", original, line)
    reading.settle_comments()
    return reading.items


@dataclass(slots=True)
class _Reading:
    """What was found so far; a comment waits here to become the next job's description."""

    file: str
    task: str
    machine_zone: str
    items: list[Item] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    zones: dict[str, str] = field(default_factory=dict)

    def add(self, source: str, original: str, line: Line) -> None:
        match line:
            case Comment():
                self.comments.append(line)
            case Blank():
                self.settle_comments()
            case Assignment():
                self.settle_comments()
                self._assign(source, original.strip(), line)
            case JobLine():
                self._job(source, original.strip(), line)
            case Unknown():
                self.settle_comments()
                why = "neither a job, nor a comment, nor NAME=value"
                self.items.append(LeftOut(source, why, [original.strip()]))

    def settle_comments(self) -> None:
        """Comments that no job follows at once stay comments."""
        if self.comments:
            self.items.append(Remark([comment.text for comment in self.comments]))
            self.comments.clear()

    def _assign(self, source: str, original: str, line: Assignment) -> None:
        if line.name in ZONES:
            self.zones[line.name] = line.value.removeprefix(":")
            if line.name == "TZ":
                self.items.append(Remark([f"{source}: {original}", TZ_REMARK]))
        elif why := _why_not(line):
            self.items.append(LeftOut(source, why, [original]))

    def _job(self, source: str, original: str, line: JobLine) -> None:
        description = self._description()
        try:
            self.items.append(self._found(source, line, description))
        except NotTranslatable as error:
            self.items.append(LeftOut(source, str(error), [original]))

    def _found(self, source: str, line: JobLine, description: str) -> Found:
        _check_when(line.when)
        command = shell_text(line.command)
        values = {
            "task": self.task,
            "kwargs": {"command": command},
            "description": description,
            "cron": line.when,
            "timezone": self._zone(),
        }
        user = f", as user {line.user}" if line.user else ""
        return Found(source, name_of(command), values, comments=[f"{source}{user}"])

    def _zone(self) -> str:
        return next((self.zones[name] for name in ZONES if self.zones.get(name)), self.machine_zone)

    def _description(self) -> str:
        """The comment right above a job, unless it is a legend, a job switched off, or a novel."""
        text = " ".join(comment.text for comment in self.comments).strip()
        is_other = any(comment.is_legend or comment.is_disabled_job for comment in self.comments)
        if is_other or len(text) > LONGEST_DESCRIPTION:
            self.settle_comments()
            return ""
        self.comments.clear()
        return text


TZ_REMARK = "Taken for the zone of the times below; Debian's cron sets it for the commands alone."


def _check_when(when: str) -> None:
    """Raises NotTranslatable for what cron knows and the product does not, or crons dispute."""
    if when == "@reboot":
        raise NotTranslatable("it runs when the machine starts, which is no time of the clock")
    if STEP_OVER_ONE.search(when):
        raise NotTranslatable(
            "a step after a single value means different things to different crons; "
            "write the range, such as 5-59/15"
        )
    try:
        parse(when)
    except InvalidSchedule as error:
        raise NotTranslatable(str(error)) from None


def _why_not(line: Assignment) -> str | None:
    """Why a line of the environment is not translated; None where nothing is lost."""
    match line.name, line.value:
        case ("MAILTO", "") | ("MAILFROM", _) | ("SHELL", "/bin/sh"):
            return None
        case "MAILTO", _:
            reason = "nobody is mailed what a command prints; watch the outcomes of the jobs"
        case "SHELL", _:
            reason = "the task decides which shell runs a command"
        case "RANDOM_DELAY", _:
            reason = "every job is due at its nominal time"
        case _:
            reason = "commands do not get it; set it where the worker runs, or in the task"
    return f"{line.name}: {reason}"
