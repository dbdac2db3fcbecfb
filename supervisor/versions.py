"""Ends the process where a library is of a version that this package does not work with."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

#: As in pyproject.toml, which an installation with --no-deps does not obey.
SUPPORTED = {
    "celery": ">=5.4,<5.8",
    "celery-redbeat": ">=2.3.2,<2.5",
    "redis": ">=5.0.1",
}


def unsupported() -> str | None:
    """In one sentence: a library that is installed in a version that is not supported."""
    for name, supported in SUPPORTED.items():
        try:
            found = version(name)
        except PackageNotFoundError:  # copied here without its metadata
            continue
        oldest, *newer = map(numbers, supported.split(","))
        if numbers(found) < oldest or any(numbers(found) >= first for first in newer):
            return (
                f"celery-beat-supervisor does not work with {name} {found}: install a version that"
                f" it works with, pip install '{name}{supported}' (docs/compatibility.md)"
            )
    return None


def numbers(text: str) -> tuple[int, ...]:
    """``>=5.4`` and ``5.4.0rc1`` as numbers that compare."""
    release = re.search(r"\d+(\.\d+)*", text)
    return tuple(map(int, release[0].split("."))) if release else ()


if refusal := unsupported():
    raise SystemExit(refusal)
