"""Calendar files that `exclude` names -> the dates they hold.

They are read when schedule files are, and a job's spec holds what they said: beat and workers need
no file, and a change of a calendar is a change of each job that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.errors import Problem
from supervisor.files.ical import texts_of as ical_texts
from supervisor.files.text_files import UnusableFile, check_inside, text_of
from supervisor.files.yaml_source import UNREADABLE, shown
from supervisor.hints import closest
from supervisor.job.exclusions import Calendar, InvalidExclusion, parse_all
from supervisor.job.faults import ItemFault

Reader = Callable[[str], tuple[list[str], list[tuple[int, InvalidExclusion]]]]
"""A file's text -> exclusions, and what is wrong on which lines."""


def lines_of(text: str) -> tuple[list[str], list[tuple[int, InvalidExclusion]]]:
    """One exclusion a line; what follows a # is a comment."""
    texts, faults = list[str](), list[tuple[int, InvalidExclusion]]()
    for number, line in enumerate(text.splitlines(), start=1):
        if content := line.partition("#")[0].strip():
            try:
                parse_all([content])
                texts.append(content)
            except InvalidExclusion as error:
                faults.append((number, error))
    return texts, faults


READERS: Mapping[str, Reader] = {"file": lines_of, "ical": ical_texts}


@dataclass(slots=True)
class Calendars:
    """The calendar files of one directory; each is read, and its problems are told, once."""

    directory: Path
    problems: list[Problem] = field(default_factory=list)
    _read: dict[tuple[str, Path], Calendar] = field(default_factory=dict)

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
            self._read[kind, file] = self._content(READERS[kind], file)
        return self._read[kind, file]

    def _content(self, reader: Reader, file: Path) -> Calendar:
        try:
            texts, faults = reader(text_of(file))
        except UnusableFile as error:
            self.problems.append(Problem(str(file), error.line, None, error.what, error.hint))
            return Calendar()
        self.problems += [
            Problem(str(file), line, None, str(error), error.hint) for line, error in faults
        ]
        return Calendar(parse_all(texts).texts)
