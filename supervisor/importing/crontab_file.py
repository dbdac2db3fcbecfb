"""A crontab(5) file -> jobs of a task that runs a command.

The five fields mean here what they mean to Debian's cron, so they are taken over as they stand.
What a crontab says beside them is translated where there is a key for it, and reported where there
is none: see `_Reading`, one method for each kind of line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from supervisor.errors import InvalidSchedule, NotTranslatable
from supervisor.importing.commands import name_of, shell_text
from supervisor.importing.crontab_lines import (
    Assignment,
    Blank,
    Comment,
    JobLine,
    Line,
    Unknown,
    lines_of,
)
from supervisor.importing.found import Found, Item, LeftOut, Remark
from supervisor.timing.cron_fields import parse

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
