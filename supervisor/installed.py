"""Refuses an environment that this package cannot work in, before anything else is imported.

1. PyPI's `supervisor` (supervisord) installs into the same folder, and both break. Whichever is
   installed later replaces the `__init__.py` and `process.py` of the other. So this module is not
   only imported by the package's own `__init__.py`, but by every module that programs begin with.
2. A library may be of a version that is not supported, or that another one does not work with.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

_FOLDER = Path(__file__).parent
_THEIRS = [name for name in ("supervisord.py", "supervisorctl.py") if (_FOLDER / name).exists()]

if _THEIRS:
    raise ImportError(
        f"{_FOLDER} also holds {' and '.join(_THEIRS)} of PyPI's 'supervisor'"
        " (supervisord): it and 'celery-beat-supervisor' cannot share an environment."
        " Uninstall both, then install only 'celery-beat-supervisor'."
    )
if not (_FOLDER / "__init__.py").exists():
    raise ImportError(
        f"{_FOLDER} lacks files, as after `pip uninstall supervisor` (supervisord):"
        " `pip install --force-reinstall --no-deps celery-beat-supervisor` brings them back."
    )

#: As in pyproject.toml, which an installation with --no-deps does not obey.
SUPPORTED = {
    "celery": ">=5.4,<5.8",
    "celery-redbeat": ">=2.3.2,<2.5",
    "redis": ">=5.0.1",
}


def unsupported() -> str | None:
    """A sentence about a library that is installed in a version that is not supported."""
    for name, supported in SUPPORTED.items():
        version = installed(name)
        oldest, *newer = map(numbers, supported.split(","))
        if version and (
            numbers(version) < oldest or any(numbers(version) >= first for first in newer)
        ):
            return (
                f"celery-beat-supervisor does not work with {name} {version}: install a version"
                f" that it works with, pip install '{name}{supported}'"
                " (docs/reference/compatibility.md)"
            )
    return None


def mismatched() -> str | None:
    """A sentence about what kombu needs for Redis, which `pip` installs only if it is asked to."""
    kombu = installed("kombu")
    for needed in (kombu and requires("kombu")) or ():
        if not re.search(r"extra == ['\"]redis['\"]", needed):
            continue
        name = re.match(r"[\w.-]+", needed)[0]  # type: ignore[index]
        version, oldest = installed(name), re.search(r">=\s*([\d.]+)", needed)
        if version is None or (oldest and numbers(version) < numbers(oldest[1])):
            return (
                f"kombu {kombu} needs {name}{f' {oldest[1]} or later' if oldest else ''}, and"
                f" {f'{name} {version}' if version else 'none'} is installed: install versions that"
                f" go together, pip install 'celery[redis]=={installed('celery')}' 'kombu[redis]'"
                " (docs/reference/compatibility.md)"
            )
    return None


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:  # or copied here without its metadata
        return None


def numbers(text: str) -> tuple[int, ...]:
    """``>=5.4`` and ``5.4.0rc1`` as numbers that compare."""
    release = re.search(r"\d+(\.\d+)*", text)
    return tuple(map(int, release[0].split("."))) if release else ()


if refusal := unsupported() or mismatched():
    raise SystemExit(refusal)
