"""The text of a file that people put into the schedules' directory."""

from __future__ import annotations

from pathlib import Path

from supervisor.errors import SupervisorError

LARGEST_FILE = 1024 * 1024


class UnusableFile(SupervisorError):
    """The file is not what can be read here; `line` is where, counted from 1."""

    def __init__(self, what: str, hint: str | None = None, line: int = 1) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.line = line


def check_inside(directory: Path, file: Path) -> None:
    """Links may point around inside the directory, but not out of it. Raises UnusableFile."""
    try:
        target = file.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        if _is_link(file):
            raise UnusableFile("cannot be read: a link that leads nowhere") from None
        raise UnusableFile("cannot be read: No such file or directory") from None
    if not target.is_relative_to(directory.resolve()):
        hint = "put the file itself here"
        raise UnusableFile(f"links out of its directory, to {target}", hint)


def _is_link(file: Path) -> bool:
    try:
        return file.is_symlink()
    except (OSError, ValueError):  # of a name that no file can have
        return False


def text_of(file: Path) -> str:
    """Raises UnusableFile."""
    try:
        if not file.is_file():
            raise UnusableFile("is not a regular file")
        with file.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UnusableFile(f"cannot be read: {error.strerror}") from None
    if len(content) > LARGEST_FILE:
        raise UnusableFile("is larger than 1 MiB", "split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnusableFile("is not UTF-8 text", line=line) from None
