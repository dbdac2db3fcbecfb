"""Calendar files that `exclude` names -> the dates they hold.

They are read when schedule files are, and a job's spec holds what they said: beat and workers need
no file, and a change of a calendar is a change of each job that names it.

All calendars of a load are read by one child process, within one budget: of files, of processor
time, of memory. A calendar that uses it up is a problem, and so is each that would come after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.child_processes import Child, Limits, Work
from supervisor.errors import Problem
from supervisor.files.ical import Reading
from supervisor.files.ical import texts_of as ical_texts
from supervisor.files.text_files import UnusableFile, check_inside, text_of
from supervisor.files.yaml_source import UNREADABLE, shown
from supervisor.hints import closest
from supervisor.job.exclusions import MOST_SPANS, Calendar, InvalidExclusion, parse_all
from supervisor.job.faults import ItemFault

#: Problems of one calendar; who has more of them is not helped by the rest.
MOST_FAULTS = 1_000

#: Of all calendars of a load together. Three hundred yearly events take one second.
MOST_FILES = 100
LIMITS = Limits(cpu_seconds=10, memory=512 << 20)

Reader = Callable[[str], Reading]
"""A file's text -> exclusions, and what is wrong on which lines."""


def lines_of(text: str) -> Reading:
    """One exclusion a line; what follows a # is a comment."""
    yield 1
    texts, faults = list[str](), list[tuple[int, InvalidExclusion]]()
    for number, line in enumerate(text.splitlines(), start=1):
        if content := line.partition("#")[0].strip():
            try:
                parse_all([content])
                texts.append(content)
            except InvalidExclusion as error:
                faults.append((number, error))
                if len(faults) == MOST_FAULTS:
                    break
    return texts, faults


READERS: Mapping[str, Reader] = {"file": lines_of, "ical": ical_texts}


@dataclass(slots=True)
class Calendars:
    """The calendar files of one directory; each is read, and its problems are told, once."""

    directory: Path
    problems: list[Problem] = field(default_factory=list)
    _read: dict[tuple[str, Path], Calendar] = field(default_factory=dict)
    _child: Child | None = None
    _used_up_by: Path | None = None

    def close(self) -> None:
        if self._child:
            self._child.end()
        self._child = None

    @property
    def files(self) -> tuple[Path, ...]:
        """Those that were read, each once."""
        return tuple(dict.fromkeys(file for _, file in self._read))

    def resolve(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[ItemFault]]:
        """A job's values with dates where `exclude` names files, and what is wrong with these."""
        items = values.get("exclude")
        if not isinstance(items, list):
            return dict(values), []
        resolved, faults = [], list[ItemFault]()
        for number, item in enumerate(items):
            try:
                resolved.append(self._calendar(item) if isinstance(item, dict) else item)
            except UnusableFile as error:
                faults.append(ItemFault((number,), error.what, error.hint))
                resolved.append(Calendar())
        return {**values, "exclude": resolved}, faults

    def _calendar(self, item: dict[str, Any]) -> Calendar:
        if UNREADABLE in item.values():
            return Calendar()
        kind, name = next(iter(item.items()), ("", None))
        if len(item) != 1 or kind not in READERS:
            meant = closest(kind, READERS) if len(item) == 1 else None
            hint = meant or "such as {file: holidays.txt} or {ical: holidays.ics}"
            raise UnusableFile(f"{shown(item)} does not name one calendar file", hint)
        if not isinstance(name, str) or not name:
            raise UnusableFile(f"{shown(name)} is not the name of a file")
        file = self.directory / name
        if (kind, file) not in self._read:
            try:
                check_inside(self.directory, file)
            except UnusableFile as error:
                raise UnusableFile(f"{shown(name)} {error.what}", error.hint) from None
            if len(self._read) == MOST_FILES:
                raise UnusableFile(f"more than {MOST_FILES} calendar files", "join some of them")
            self._read[kind, file] = self._content(kind, file)
        return self._read[kind, file]

    def _content(self, kind: str, file: Path) -> Calendar:
        try:
            texts, faults = self._followed(kind, file, text_of(file))
        except UnusableFile as error:
            self.problems.append(Problem(str(file), error.line, None, error.what, error.hint))
            return Calendar()
        self.problems += [Problem(str(file), *fault) for fault in faults]
        return Calendar(texts)

    def _followed(self, kind: str, file: Path, text: str) -> Followed:
        """What the child makes of the text. Raises UnusableFile when it cannot within LIMITS."""
        if self._used_up_by:
            what = f"is not read: {self._used_up_by.name} used up {TOGETHER}"
            raise UnusableFile(what)
        if self._child is None:
            self._child = Child(_in_child, LIMITS)
            self._child.receive()
        self._child.send((kind, text))
        line = 1
        try:
            while isinstance(found := self._child.receive(), int):
                line = found
                self._child.send(None)
        except (ChildProcessError, MemoryError):
            self._child, self._used_up_by = None, file
            hint = "look at the rule here, or list the dates in a {file: ...}"
            raise UnusableFile(f"takes more than {TOGETHER}", hint, line) from None
        texts, faults = found
        return texts, faults


#: The budget in words.
TOGETHER = (
    f"the {LIMITS.cpu_seconds} seconds of processor time, or {LIMITS.memory >> 20} MiB of memory, "
    "that all calendars have together"
)

Followed = tuple[tuple[str, ...], list[tuple[int, None, str, str | None]]]


def _in_child() -> Work:
    """Texts of calendars -> what they say; before that the lines that take a while, one by one."""
    followed: Followed | None = None
    while True:
        kind, text = yield followed
        try:
            texts, faults = yield from READERS[kind](text)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a library's, of which any may come
            texts, faults = [], [(1, InvalidExclusion(f"cannot be read: {error!r}", None))]
        found = parse_all(texts).texts
        if len(found) > MOST_SPANS:
            what = f"{len(found):,} dates and ranges; {MOST_SPANS:,} are allowed"
            faults.append((1, InvalidExclusion(what, None)))
        said = [(line, None, str(error), error.hint) for line, error in faults[:MOST_FAULTS]]
        followed = (() if faults else found), said
