"""A copy of the checkout in which one mutant after the other is judged, as lines of JSON say.

For Lua, the tests and all that they import are imported once; a fork of that judges each mutant.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import Phase
from hypothesis import settings as hypothesis_settings

from tools.mutants.judges import JUDGES

LOG = Path("judged.log")

#: A sequence that shows the mutant will do: to make it shorter takes minutes.
hypothesis_settings.register_profile("judge", deadline=None, phases=[Phase.generate])

#: Most mutants are noticed by the tests that come first: the others are not collected for them.
FIRST = 4


def import_tests() -> None:
    """Those of Lua, without pytest's own assertions, which say more and notice nothing more."""
    for pattern, tests in JUDGES.items():
        for test in tests if pattern.endswith(".lua") else ():
            import_module(test.removesuffix(".py").replace("/", "."))


def is_noticed(tests: list[str], is_lua: bool, seconds_each: float) -> bool:
    """Whether a test fails, or the tests do not end in time. seconds_each: for a file of them."""
    quiet = ["-q", "--no-header", "-p", "no:cacheprovider"]
    # What was imported before pytest came keeps its plain assertions.
    arguments = ["-x", *quiet, "-W", "ignore::pytest.PytestAssertRewriteWarning", *tests]
    if is_lua:
        arguments.append("--hypothesis-profile=judge")
        judge = os.fork()
        if not judge:
            os.setsid()
            log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os._exit(pytest.main(arguments))
    else:  # the mutant must be imported
        with LOG.open("w") as log:
            judge = subprocess.Popen(
                [sys.executable, "-m", "pytest", *arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
            ).pid
    ends_at = time.monotonic() + seconds_each * len(tests)
    while time.monotonic() < ends_at:
        ended, status = os.waitpid(judge, os.WNOHANG)
        if ended:
            # 0: all passed, 1: some failed. Any other: the tests could not be run.
            return os.waitstatus_to_exitcode(status) != 0
        time.sleep(0.02)
    os.killpg(judge, signal.SIGKILL)
    os.waitpid(judge, 0)
    return True


def main() -> None:
    import_tests()
    for line in sys.stdin:
        asked = json.loads(line)
        file = Path(asked["file"])
        whole = file.read_text()
        started = time.monotonic()
        try:
            file.write_text(asked["text"])
            noticed = any(
                is_noticed(tests, file.suffix == ".lua", asked["seconds_each"])
                for tests in (asked["tests"][:FIRST], asked["tests"][FIRST:])
                if tests
            )
        finally:
            file.write_text(whole)
        words = LOG.read_text(errors="replace").splitlines()
        by = next(
            (word for word in words if word.startswith(("FAILED", "ERROR"))), "".join(words[-1:])
        )
        answer = {"noticed": noticed, "by": by, "seconds": round(time.monotonic() - started, 1)}
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
