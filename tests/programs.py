"""Programs that some tests and checks need and that no Python package brings.

``python -m tests.programs`` prints the Debian packages of those that `.ci/run` needs and that are
missing.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

#: Program -> Debian package.
PACKAGES = {
    "chromium": "chromium",
    "curl": "curl",
    "jq": "jq",
    "ip": "iproute2",
    "tc": "iproute2",
    "luacheck": "lua-check",
    "rabbitmq-server": "rabbitmq-server",
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "amtool": "prometheus-alertmanager",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "redis-server": "redis-server",
    "openssl": "openssl",
    "faketime": "faketime",
    "nginx": "nginx-light",
    "initdb": "postgresql",
    "systemd-analyze": "systemd",
}

#: `make test-rabbitmq` needs it, and says so itself.
NOT_IN_CI = frozenset({"rabbitmq-server"})


def found(program: str) -> str | None:
    """The program's path. Debian has those of a PostgreSQL server in a folder of its version."""
    if program == "initdb":
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        return str(versions[-1]) if versions else None
    return shutil.which(program)


def missing_packages() -> list[str]:
    absent = (program for program in PACKAGES.keys() - NOT_IN_CI if found(program) is None)
    return sorted({PACKAGES[program] for program in absent})


def absence_of(program: str) -> str:
    """Why a test is skipped; `.ci/run` looks for these words."""
    return f"{program} is not installed (Debian package {PACKAGES[program]})"


def needed(program: str) -> str:
    """The program's path; without it the test is skipped, which `.ci/run` does not let pass."""
    path = found(program)
    if path is None:
        import pytest  # the bench has none

        pytest.skip(absence_of(program))
    return path


def needs(program: str) -> pytest.MarkDecorator:
    """The same as a mark."""
    import pytest

    return pytest.mark.skipif(found(program) is None, reason=absence_of(program))


def output_of(program: str, *arguments: str | Path) -> str:
    """What it prints when it finds nothing wrong; fails the test when it does."""
    command = [needed(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


if __name__ == "__main__":
    print(*missing_packages(), sep="\n")  # noqa: T201
