"""Renders templates and writes the files to a directory, where it leaves all other files alone.

A rendered file begins with a marker, a line that names its target and its path: a copy of it in
another place is no rendered file. JSON has no comments; there the marker is the first key.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from supervisor.catalog.schedule_files import load
from supervisor.catalog.yaml_source import text_of
from supervisor.errors import REFUSED, SupervisorError

Files = Mapping[str, str]
"""Rendered files: paths below the output directory, and their text."""


class Templates:
    """The templates of one target."""

    def __init__(self, target: str, **shared: Any) -> None:
        self._environment = Environment(
            loader=PackageLoader("supervisor.deploy", f"templates/{target}"),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self._environment.filters.update(
            text=text, flow=flow, unit=unit, unit_word=unit_word, unit_command=unit_command
        )
        self._environment.globals.update(shared)

    def add_filters(self, **filters: Callable[..., str]) -> None:
        self._environment.filters.update(filters)

    def render(self, name: str, **values: Any) -> str:
        return self._environment.get_template(f"{name}.j2").render(values)


def text(value: str) -> str:
    """A text in YAML, on one line."""
    line = yaml.safe_dump(value, default_style='"', allow_unicode=True, width=sys.maxsize)
    return str(line).removesuffix("\n")


def flow(values: Iterable[str]) -> str:
    return f"[{', '.join(map(text, values))}]"


def unit(value: str) -> str:
    """A text in a unit file, in which % begins a specifier."""
    return value.replace("%", "%%")


def unit_word(value: str) -> str:
    """One of several words in a unit file, in quotes if it needs them."""
    escaped = unit(value.replace("\\", "\\\\").replace('"', '\\"'))
    plain = escaped and not any(char.isspace() or char in "\"'\\;" for char in value)
    return escaped if plain else f'"{escaped}"'


def unit_command(arguments: Iterable[str]) -> str:
    """A command line of ExecStart=, where $ begins a variable too."""
    return " ".join(unit_word(argument.replace("$", "$$")) for argument in arguments)


class InTheWay(SupervisorError):
    """A file that this command did not write is where it has to write one."""

    exit_code = REFUSED


@dataclass(frozen=True, slots=True)
class Difference:
    """Paths below the directory, by how writing would change them."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def lines(self) -> Iterator[str]:
        for word in ("added", "changed", "removed"):
            yield from (f"{word:8}{path}" for path in getattr(self, word))


def marker(target: str, path: str) -> str:
    words = f'{path}, by "supervisor render {target}"; edits here are lost.'
    return f'{{"//": {json.dumps(words)},' if path.endswith(".json") else f"# {words}"


def stamped(target: str, files: Files) -> Files:
    return {path: f"{marker(target, path)}\n{below(path, text)}" for path, text in files.items()}


def below(path: str, text: str) -> str:
    """The text after the marker, which in JSON contains the first brace."""
    return text.removeprefix("{\n") if path.endswith(".json") else text


def difference(directory: Path, target: str, files: Files) -> Difference:
    """Raises InTheWay."""
    files = stamped(target, files)
    ours = dict(rendered_before(directory, target))
    for path in files.keys() - ours.keys():
        if os.path.lexists(directory / path):
            what = "was not rendered by this command; move it, or choose another DIR"
            raise InTheWay(f"{directory / path} {what}")
    return Difference(
        added=tuple(sorted(files.keys() - ours.keys())),
        changed=tuple(sorted(path for path in files if ours.get(path, files[path]) != files[path])),
        removed=tuple(sorted(ours.keys() - files.keys())),
    )


def write(directory: Path, target: str, files: Files) -> Difference:
    """Raises InTheWay before it writes anything, and SupervisorError for what it cannot write."""
    changes, texts = difference(directory, target, files), stamped(target, files)
    try:
        for path in (*changes.added, *changes.changed):
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(texts[path])
        for path in changes.removed:
            (directory / path).unlink()
            remove_if_empty((directory / path).parent, directory)
    except OSError as error:
        raise SupervisorError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return changes


def write_secrets(directory: Path, files: Files) -> Sequence[str]:
    """Writes files with secrets, which only their owner can read, and returns their paths.

    All or none, since two of them contain the same password. Raises InTheWay if one exists, and
    SupervisorError if one cannot be written.
    """
    if existing := [path for path in files if os.path.lexists(directory / path)]:
        what = "leave out --make-secrets, or remove all of them"
        raise InTheWay(f"{directory} has {', '.join(existing)}: {what}")
    try:
        for path, content in files.items():
            descriptor = os.open(directory / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(content)
    except OSError as error:
        raise SupervisorError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return [*files]


def rendered_before(directory: Path, target: str) -> Iterator[tuple[str, str]]:
    """Paths and texts of the files that begin with their marker; links are none of them."""
    for file in sorted(directory.rglob("*")):
        if file.is_file() and not file.is_symlink():
            path = file.relative_to(directory).as_posix()
            text = file.read_text(errors="replace")
            if text.partition("\n")[0] == marker(target, path):
                yield path, text


def remove_if_empty(folder: Path, top: Path) -> None:
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


# The schedule files of a ConfigMap.


KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")

#: Kubernetes limits an object to 1 MiB.
LARGEST = 1_000_000


def texts_of(path: Path) -> Mapping[str, str]:
    """The schedule files by file name.

    Raises ScheduleFilesInvalid, and SupervisorError for what a ConfigMap cannot hold.
    """
    folder = path if path.is_dir() else path.parent
    texts = dict(named(file, folder) for file in load(path).files)
    size = sum(len(content.encode()) for content in texts.values())
    if size > LARGEST:
        raise SupervisorError(f"{path}: {size:,} bytes are too many for a ConfigMap")
    return texts


def named(file: Path, directory: Path) -> tuple[str, str]:
    """The file's key in a ConfigMap, and its text. Raises SupervisorError."""
    if file != directory / file.name:
        raise SupervisorError(f"{file}: a ConfigMap has no folders: put all files into one")
    if not KEY.fullmatch(file.name):
        what = "may only have letters, digits, '-', '_' and '.'"
        raise SupervisorError(f"{file}: the name of a file in a ConfigMap {what}")
    return file.name, text_of(file)


def block(content: str, indent: int) -> str:
    """The content as YAML: a readable block if that keeps each character, else in quotes."""
    lines = "".join(
        f"{' ' * indent}{line}" if line.strip() else line for line in content.splitlines(True)
    )
    try:
        if yaml.safe_load(f"a: |\n{lines}z: 0\n") == {"a": content, "z": 0}:
            return f"|\n{lines.removesuffix(chr(10))}"
    except yaml.YAMLError:
        pass
    return text(content)
