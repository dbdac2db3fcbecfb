"""A YAML text as plain data that knows the line of every key, with its faults collected.

Built from the parser's events and not by its composer: the C composer recurses as deep as the text
nests and crashes the process, and events show anchors and tags that nodes hide.

What is read is the part of YAML that has one meaning: YAML 1.2 scalars (true and false are the
only booleans, no base-60 numbers, dates stay text), keys are text, no anchors, aliases or tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import Any

import yaml

from supervisor.errors import SupervisorError, shown

#: The C parser is ten times faster; both give the same events.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

DEEPEST = 20

#: Characters of a number. Python refuses to write those of thousands of digits, also in a message.
LONGEST_NUMBER = 100

KeyPath = tuple[str | int, ...]
"""Where a value is: ("jobs", "nightly", "args", 0)."""


class _Unreadable:
    """Stands for a value whose fault is reported already."""

    def __repr__(self) -> str:
        return "UNREADABLE"


UNREADABLE = _Unreadable()


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with the text."""

    line: int
    path: KeyPath
    """To the value that it is about."""

    what: str
    hint: str | None = None


@dataclass(slots=True)
class YamlDocument:
    """A text that was read."""

    data: Any = None
    """Of dict, list, str, int, float, bool, None and UNREADABLE."""

    file: Path = Path("-")
    """Which the text was read from; '-' for standard input."""

    lines: dict[KeyPath, int] = field(default_factory=dict)
    """Those of keys, counted from 1."""

    faults: list[Fault] = field(default_factory=list)

    def line_of(self, path: KeyPath) -> int:
        """The line of the key, or of the nearest enclosing one that the text has."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read(text: str) -> YamlDocument:
    """The one document in `text`. After a syntax error `data` is UNREADABLE."""
    reader = _Reader(text)
    try:
        reader.read()
    except yaml.YAMLError as error:
        reader.document.faults.append(_syntax_fault(error, text))
        reader.document.data = UNREADABLE
    except _TooDeep as error:
        fault = Fault(error.line, (), f"nested deeper than {DEEPEST} levels")
        reader.document.faults.append(fault)
        reader.document.data = UNREADABLE
    return reader.document


class _TooDeep(Exception):
    def __init__(self, line: int) -> None:
        self.line = line


class _Reader:
    """Builds the values from the events; one method for each kind of node."""

    def __init__(self, text: str) -> None:
        self.events: Iterator[Any] = yaml.parse(text, Loader=LOADER)
        self.document = YamlDocument()

    def read(self) -> None:
        for event in self.events:
            if isinstance(event, yaml.NodeEvent):
                self.document.data = self._value(event, ())
            elif isinstance(event, yaml.DocumentEndEvent):
                break
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._fault(event, (), "a second document begins here", "one document a file")
                break

    def _value(self, event: Any, path: KeyPath) -> Any:
        self.document.lines.setdefault(path, _line(event))
        if isinstance(event, yaml.AliasEvent):
            self._fault(event, path, f"alias *{event.anchor} is not allowed", "write it out")
            return UNREADABLE
        if event.anchor is not None:
            self._fault(event, path, f"anchor &{event.anchor} is not allowed", "write it out")
        tagged = event.tag is not None
        if tagged:
            self._fault(event, path, f"tag {event.tag} is not allowed", "leave it out")
        value = self._untagged(event, path)
        return UNREADABLE if tagged else value

    def _untagged(self, event: Any, path: KeyPath) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, path)
        if len(path) >= DEEPEST:
            raise _TooDeep(_line(event))
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path)
        return self._mapping(path)

    def _scalar(self, event: Any, path: KeyPath) -> Any:
        if not event.implicit[0]:  # quoted, or a block
            return event.value
        try:
            return plain_value(event.value)
        except ValueError:
            self._fault(event, path, "a number of too many digits", "quote it if it is text")
            return UNREADABLE

    def _sequence(self, path: KeyPath) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            values.append(self._value(event, (*path, len(values))))
        return values

    def _mapping(self, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        first: dict[str, int] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            here = (*path, event.value if isinstance(event, yaml.ScalarEvent) else "")
            key = self._key(event, path)
            if key in first:
                what = f"{shown(key)} is given twice"
                self._fault(event, here, what, f"first on line {first[key]}")
                self._pass_over()
                continue
            if key is not None:
                first[key] = self.document.lines[here] = _line(event)
            value = self._value(next(self.events), here)
            if key is not None:
                values[key] = value
        return values

    def _pass_over(self) -> None:
        """The value of a key that was given before."""
        depth = 0
        for event in self.events:
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth == 0:
                return

    def _key(self, event: Any, path: KeyPath) -> str | None:
        """The key, or None where it is not text, which is then reported."""
        faults = len(self.document.faults)
        key = self._value(event, (*path, ""))
        if isinstance(key, str):
            return key
        if len(self.document.faults) == faults:
            hint = f'quote it: "{event.value}"' if isinstance(event, yaml.ScalarEvent) else None
            self._fault(event, path, f"key {shown(key)} is not text", hint)
        return None

    def _fault(self, event: Any, path: KeyPath, what: str, hint: str | None) -> None:
        self.document.faults.append(Fault(_line(event), path, what, hint))


_PLAIN: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile(r"~|null|Null|NULL|"), lambda text: None),
    (re.compile(r"true|True|TRUE"), lambda text: True),
    (re.compile(r"false|False|FALSE"), lambda text: False),
    (re.compile(r"[-+]?(?:0|[1-9][0-9]*)"), int),
    (re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+"), lambda text: int(text, 0)),
    (re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"), lambda t: float(t.replace(".", ""))),
)


def plain_value(text: str) -> Any:
    """An unquoted scalar as YAML 1.2 reads it, but a number with leading zeros stays text.

    Raises ValueError for a number longer than LONGEST_NUMBER.
    """
    if text[:1].isalpha() and text[:1] not in "nNtTfF":
        return text
    for pattern, convert in _PLAIN:
        if pattern.fullmatch(text):
            if len(text) > LONGEST_NUMBER:
                raise ValueError(f"a number of {len(text):,} characters")
            return convert(text)
    return text


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _syntax_fault(error: yaml.YAMLError, text: str) -> Fault:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        what = ", ".join(part for part in (error.context, error.problem) if part)
        return Fault(line, (), f"not valid YAML: {what}", _usual_cause(text, line))
    character, position = getattr(error, "character", None), getattr(error, "position", 0)
    named = f": U+{character:04X}" if isinstance(character, int) else ""
    what = f"not valid YAML: a character that YAML does not allow{named}"
    return Fault(text.count("\n", 0, position) + 1, (), what)


def _usual_cause(text: str, number: int) -> str | None:
    line = "".join(text.splitlines()[number - 1 : number])
    if re.match(r"\s*cron:\s*[*@]", line):
        return f'quote the expression: cron: "{line.partition(":")[2].strip()}"'
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "indent with spaces, not with tabs"
    return None


# The text of a file that people put into the schedules' directory.


LARGEST_FILE = 1024 * 1024


class UnusableFile(SupervisorError):
    """The file is not what can be read here; `line` is where, counted from 1."""

    def __init__(self, what: str, hint: str | None = None, line: int = 1) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.line = line


def text_of(file: Path) -> str:
    """Raises UnusableFile."""
    return decoded(content_of(file))


def content_of(file: Path) -> bytes:
    """The bytes of a file; of one that is too large, one too many. Raises UnusableFile."""
    try:
        if not S_ISREG(file.stat().st_mode):
            raise UnusableFile("is not a regular file")
        with file.open("rb") as stream:
            return stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UnusableFile(f"cannot be read: {error.strerror}") from None


def decoded(content: bytes) -> str:
    """Raises UnusableFile."""
    if len(content) > LARGEST_FILE:
        raise UnusableFile("is larger than 1 MiB", "split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnusableFile("is not UTF-8 text", line=line) from None
