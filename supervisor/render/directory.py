"""Rendered files -> a directory: what we rendered before is replaced or removed, the rest stays.

Each begins with a line that names its target and its own path: a copy of it elsewhere is not ours.
JSON has no comments; there it is the first key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from supervisor.errors import SupervisorError
from supervisor.render.templating import Files


class ForeignFile(SupervisorError):
    """A file that we did not render is where one of ours belongs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(f"{path} was not rendered by this command; move it, or choose another DIR")


@dataclass(frozen=True, slots=True)
class Difference:
    """Paths below the directory, by what writing would do to them."""

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
    """What comes after the marker: that of JSON has the brace in it."""
    return text.removeprefix("{\n") if path.endswith(".json") else text


def difference(directory: Path, target: str, files: Files) -> Difference:
    """Raises ForeignFile."""
    files = stamped(target, files)
    ours = dict(rendered_before(directory, target))
    for path in files.keys() - ours.keys():
        if os.path.lexists(directory / path):
            raise ForeignFile(directory / path)
    return Difference(
        added=tuple(sorted(files.keys() - ours.keys())),
        changed=tuple(sorted(path for path in files if ours.get(path, files[path]) != files[path])),
        removed=tuple(sorted(ours.keys() - files.keys())),
    )


def write(directory: Path, target: str, files: Files) -> Difference:
    """Raises ForeignFile before anything is written."""
    found, texts = difference(directory, target, files), stamped(target, files)
    for path in (*found.added, *found.changed):
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(texts[path])
    for path in found.removed:
        (directory / path).unlink()
        remove_if_empty((directory / path).parent, directory)
    return found


def rendered_before(directory: Path, target: str) -> Iterator[tuple[str, str]]:
    """Files with our line at the top; links are somebody else's."""
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
