"""Lines of files that other processes are writing to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def whole_lines(path: Path) -> list[str]:
    """Those that have been written to their end.

    A reader may see a part of a line, although it was written at once: the file grows by pages.
    """
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file that has one in a line; lines of another kind are left out."""
    return [json.loads(line) for line in whole_lines(path) if line.startswith("{")]
