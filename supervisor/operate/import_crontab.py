"""A crontab(5) file -> jobs of a task that runs a command.

The five fields mean here what they mean to Debian's cron, so they are copied as they stand. The
rest of a crontab is translated where a job has a key for it, and reported where it has none.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from supervisor.errors import InvalidSchedule, NotTranslatable
from supervisor.files.import_text import Found, Item, LeftOut, Remark
from supervisor.schedule.cron import parse

# A command: what the shell gets, and a name for the job.


#: Commands that only prepare the one that follows.
PREPARING = frozenset(
    {"cd", "test", "[", "[[", ":", ".", "source", "export", "set", "umask", "ulimit", "sleep"}
)

#: Commands that run the rest of the line.
RUNNING = frozenset(
    {"sudo", "exec", "env", "time", "nice", "ionice", "nohup", "chronic", "timeout", "command"}
)

INTERPRETER = re.compile(r"(?:python|bash|sh|dash|zsh|perl|ruby|php|node)[\d.]*")
ASSIGNMENT = re.compile(r"\w+=.*", re.S)
SCRIPT_SUFFIXES = (".sh", ".bash", ".py", ".pl", ".rb", ".php", ".js")

#: An option, or the number or duration that belongs to one: `nice -n 10`, `timeout 5m`.
OPTION = re.compile(r"-.*|\d+[smhd]?")
PLAIN = re.compile(r"[A-Za-z][\w.:-]*")

#: Only this many characters of a command are searched for its name.
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
    """What a person would call the command: its program and its first plain argument."""
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
    """The words from the program on; empty for a command that only prepares another."""
    left = list(words)
    while left and (ASSIGNMENT.fullmatch(left[0]) or _base(left[0]) in RUNNING):
        is_wrapper = not ASSIGNMENT.fullmatch(left.pop(0))
        while is_wrapper and left and OPTION.fullmatch(left[0]):
            left.pop(0)
    return [] if left and left[0] in PREPARING else left


def _script(words: Sequence[str]) -> list[str]:
    """What an interpreter runs; empty for code on the command line (`-c`)."""
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


# The lines of a crontab.


#: More than a job's arguments may be; cron itself takes a thousand characters.
LONGEST_LINE = 16 * 1024

LONGEST_DESCRIPTION = 1000

#: When the machine starts; the job runs when the service does.
AT_START = "@reboot"

ZONES = ("CRON_TZ", "TZ")

TZ_REMARK = "Taken for the zone of the times below; Debian's cron sets it for the commands alone."

#: These are for lines without blanks at their ends.
ASSIGNMENT_LINE = re.compile(r"""(["']?)([A-Za-z_]\w*)\1\s*=\s*(.*)""")
JOB_LINE = re.compile(r"(?P<when>@\S+|\S+(?:[ \t]+\S+){4})[ \t]+(?P<command>\S.*)")
USER_AND_COMMAND = re.compile(r"(\S+)[ \t]+(\S.*)")

#: The legend of the fields that distributions and tutorials put above the first job.
LEGEND = re.compile(r"[|.*┌│├└]|m(in(ute)?)?\s+h(our)?\s+d", re.I)

#: `5/15`: 5 alone to most crons, 5-59/15 to others.
STEP_OVER_ONE = re.compile(r"(?:^|[\s,])\w+/")


def read_crontab(
    text: str, *, file: str, task: str, timezone: str = "UTC", system: bool = False
) -> list[Item]:
    """Everything in the crontab, in its order.

    timezone: of the machine whose cron reads the file; a CRON_TZ in the file wins over it.
    system: whether jobs have a user column, as in /etc/crontab.
    """
    reading = _Reading(task, timezone, system)
    for number, line in enumerate(text.split("\n"), start=1):
        reading.add(f"{file}:{number}", line.strip())
    reading.settle_comments()
    return reading.items


@dataclass(slots=True)
class _Reading:
    """What was found so far. Comments wait here to become the next job's description."""

    task: str
    machine_zone: str
    system: bool
    items: list[Item] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    zones: dict[str, str] = field(default_factory=dict)

    def add(self, source: str, line: str) -> None:
        if line.startswith("#") and len(line) <= LONGEST_LINE:
            self.comments.append(line.lstrip("#").strip())
            return
        if not line:
            self.settle_comments()
        elif len(line) > LONGEST_LINE:
            self._leave_out(source, line)
        elif match := ASSIGNMENT_LINE.fullmatch(line):
            self._assign(source, line, match[2], _unquoted(match[3]))
        elif job := _job_of(line, self.system):
            self._add_job(source, line, *job)
        else:
            self._leave_out(source, line)

    def settle_comments(self) -> None:
        """Comments that no job follows at once stay comments."""
        if self.comments:
            self.items.append(Remark(list(self.comments)))
            self.comments.clear()

    def _leave_out(self, source: str, line: str) -> None:
        self.settle_comments()
        why = "neither a job, nor a comment, nor NAME=value"
        self.items.append(LeftOut(source, why, [line]))

    def _assign(self, source: str, line: str, name: str, value: str) -> None:
        self.settle_comments()
        if name in ZONES:
            self.zones[name] = value.removeprefix(":")
            if name == "TZ":
                self.items.append(Remark([f"{source}: {line}", TZ_REMARK]))
        elif why := _lost_with(name, value):
            self.items.append(LeftOut(source, f"{name}: {why}", [line]))

    def _add_job(self, source: str, line: str, when: str, user: str, command: str) -> None:
        description = self._description()
        zone = next((self.zones[name] for name in ZONES if self.zones.get(name)), self.machine_zone)
        try:
            _check_when(when)
            command = shell_text(command)
        except NotTranslatable as error:
            self.items.append(LeftOut(source, str(error), [line]))
            return
        values = {
            "task": self.task,
            "kwargs": {"command": command},
            "description": description,
            **({"run_at_start": True} if when == AT_START else {"cron": when, "timezone": zone}),
        }
        comment = f"{source}, as user {user}" if user else source
        self.items.append(Found(source, name_of(command), values, comments=[comment]))

    def _description(self) -> str:
        """The comment right above a job, unless it is a legend, a disabled job, or very long."""
        text = " ".join(self.comments).strip()
        is_other = any(LEGEND.match(line) or _is_disabled_job(line) for line in self.comments)
        if is_other or len(text) > LONGEST_DESCRIPTION:
            self.settle_comments()
            return ""
        self.comments.clear()
        return text


def _job_of(line: str, system: bool) -> tuple[str, str, str] | None:
    """The nickname or five fields, the user (of a system crontab), and the command."""
    match = JOB_LINE.fullmatch(line)
    if match is None:
        return None
    when, user, command = match["when"], "", match["command"]
    when = when.lower() if when.startswith("@") else " ".join(when.split())
    if system:
        columns = USER_AND_COMMAND.fullmatch(command)
        if columns is None:
            return None
        user, command = columns[1], columns[2]
    return when, user, command


def _is_disabled_job(comment: str) -> bool:
    job = _job_of(comment, system=False)
    if job is None:
        return False
    try:
        parse(job[0])
    except InvalidSchedule:
        return job[0] == AT_START
    return True


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value


def _check_when(when: str) -> None:
    """Raises NotTranslatable for what jobs cannot have, or crons disagree about."""
    if when == AT_START:
        return
    if STEP_OVER_ONE.search(when):
        raise NotTranslatable(
            "a step after a single value means different things to different crons; "
            "write the range, such as 5-59/15"
        )
    try:
        parse(when)
    except InvalidSchedule as error:
        raise NotTranslatable(str(error)) from None


def _lost_with(name: str, value: str) -> str | None:
    """What is lost with this environment variable; None if it would change nothing."""
    match name, value:
        case ("MAILTO", "") | ("MAILFROM", _) | ("SHELL", "/bin/sh"):
            return None
        case "MAILTO", _:
            return "what a command prints is not mailed; watch the outcomes of the jobs"
        case "SHELL", _:
            return "the task decides which shell runs a command"
        case "RANDOM_DELAY", _:
            return "every job is due at its nominal time"
        case _:
            return "commands do not get it; set it where the worker runs, or in the task"
