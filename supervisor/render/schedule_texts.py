"""A directory of schedule files -> the texts of a ConfigMap that holds the same jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from supervisor.errors import SupervisorError
from supervisor.files.schedule_files import load
from supervisor.files.text_files import text_of
from supervisor.render.templating import text

KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")

#: Kubernetes takes 1 MiB for all of an object.
LARGEST = 1_000_000


class NotInConfigMap(SupervisorError):
    """The schedule files are too large for a ConfigMap, or are not all in one directory."""


def texts_of(path: Path) -> Mapping[str, str]:
    """By file name: schedule files and the calendars that they name, and no other file.

    Raises ScheduleFilesInvalid, NotInConfigMap.
    """
    wanted = load(path)
    found = dict(named(file, path if path.is_dir() else path.parent) for file in wanted.files)
    size = sum(len(content.encode()) for content in found.values())
    if size > LARGEST:
        raise NotInConfigMap(f"{path}: {size:,} bytes are too many for a ConfigMap")
    with TemporaryDirectory() as directory:
        for name, content in found.items():
            (Path(directory) / name).write_text(content)
        if load(Path(directory)).digest != wanted.digest:
            raise NotInConfigMap(f"{path}: the files changed while they were read")
    return found


def named(file: Path, directory: Path) -> tuple[str, str]:
    """The file's key in a ConfigMap, and its text. Raises NotInConfigMap."""
    if file != directory / file.name:
        raise NotInConfigMap(f"{file}: a ConfigMap holds the files beside each other, no folders")
    if not KEY.fullmatch(file.name):
        what = "only the letters a to z, digits, '-', '_' and '.'"
        raise NotInConfigMap(f"{file}: the name of a file in a ConfigMap has {what}")
    return file.name, text_of(file)


def block(content: str, indent: int) -> str:
    """The content as YAML: readable where that keeps every character of it."""
    lines = "".join(
        f"{' ' * indent}{line}" if line.strip() else line for line in content.splitlines(True)
    )
    try:
        if yaml.safe_load(f"a: |\n{lines}z: 0\n") == {"a": content, "z": 0}:
            return f"|\n{lines.removesuffix(chr(10))}"
    except yaml.YAMLError:
        pass
    return text(content)
