"""Programs that some tests need and that no Python package brings."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

PACKAGES = {
    "curl": "curl",
    "jq": "jq",
    "ip": "iproute2",
    "tc": "iproute2",
    "rabbitmq-server": "rabbitmq-server",
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "amtool": "prometheus-alertmanager",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "redis-server": "redis-server",
    "openssl": "openssl",
    "faketime": "faketime",
    "nginx": "nginx-light",
}


def needed(program: str) -> str:
    """The program's path; without it the test is skipped, which `.ci/run` does not let pass."""
    path = shutil.which(program)
    if path is None:
        import pytest  # the bench has none

        pytest.skip(f"{program} is not installed (Debian package {PACKAGES[program]})")
    return path


def output_of(program: str, *arguments: str | Path) -> str:
    """What it prints when it finds nothing wrong; fails the test when it does."""
    command = [needed(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def optional(program: str) -> pytest.MarkDecorator:
    """For tests of what others check as well: no package of every Debian has the program."""
    import pytest

    return pytest.mark.skipif(shutil.which(program) is None, reason=f"no {program} here")
