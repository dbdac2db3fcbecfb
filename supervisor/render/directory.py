"""Rendered files -> a directory: what we rendered before is replaced or removed, the rest stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from supervisor.errors import SupervisorError
from supervisor.render.templating import Files, marker


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


def difference(directory: Path, target: str, files: Files) -> Difference:
    """Raises ForeignFile."""
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
    found = difference(directory, target, files)
    for path in (*found.added, *found.changed):
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(files[path])
    for path in found.removed:
        (directory / path).unlink()
        remove_if_empty((directory / path).parent, directory)
    return found


def rendered_before(directory: Path, target: str) -> Iterator[tuple[str, str]]:
    """Files with our line at the top; links are somebody else's."""
    first = marker(target)
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.is_symlink():
            text = path.read_text(errors="replace")
            if text.partition("\n")[0] == first:
                yield str(path.relative_to(directory)), text


def remove_if_empty(folder: Path, top: Path) -> None:
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
