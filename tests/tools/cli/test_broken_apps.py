"""Apps whose libraries do not go together: one clear error, and no traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.acceptance import warm

MISSING = """
from kombu.utils.nosuch import retry
"""

#: As libraries do that were written for another kombu.
PATCHED = """
import kombu.connection
from celery import Celery
from supervisor.app import supervise

def retry_over_time(fun, catch, args=(), kwargs=None, errback=None):
    raise AssertionError("it takes other arguments today")

kombu.connection.retry_over_time = retry_over_time
app = supervise(Celery("proj", broker={url!r}))
app.conf.beat_schedule = {{"nightly": {{"task": "proj.nightly", "schedule": 60}}}}
"""


def run(directory: Path, url: str, *words: str) -> tuple[int, str, str]:
    environ = {**os.environ, "PYTHONPATH": str(directory), "SUPERVISOR_REDIS_URL": url}
    done = warm.run(("-m", "supervisor", "-A", "broken", *words), directory, environ)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", [("adopt", "--dry-run"), ("doctor",), ("check",)], ids=str)
def test_an_import_that_fails_in_the_app_is_one_error(
    tmp_path: Path, redis_url: str, words: tuple[str, ...]
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(MISSING)
    code, _, error = run(tmp_path, redis_url, *words)
    assert (code, error) == (
        2,
        "Error: the app 'broken' cannot be imported: No module named 'kombu.utils.nosuch'"
        f" ({file}:2)\n",
    )


def test_a_kombu_that_a_library_has_broken_is_one_finding_of_doctor(
    tmp_path: Path, redis_url: str
) -> None:
    (tmp_path / "broken.py").write_text(PATCHED.format(url=redis_url))
    code, out, error = run(tmp_path, redis_url, "doctor")
    assert "the broker cannot be reached: kombu cannot connect: TypeError" in out, error
    assert (code, "Traceback" in out + error) == (1, False)
    code, out, error = run(tmp_path, redis_url, "adopt", "--dry-run")
    assert (code, "beat_schedule: 1 job to be imported" in out) == (0, True), error
