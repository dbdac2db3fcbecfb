"""An installation of many jobs with a week of history, and `serve` on it, to look at its pages.

    python -m tools.installation --jobs 300

1. Jobs of six teams are loaded into the ledger of an embedded server, with all that became of their
   ticks in the last week (history.py).
2. Some of them fail, since hours or now and then; some time out, grow slower, hang, are paused, or
   have runs that wait (habits.py). Three days ago there was no beat for 40 minutes.
3. From then on ticks become runs as before, which end in their time, and a beat and workers say
   that they are there. With `--still` nothing begins and ends any more.

The address is printed, with a token to log in with.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from supervisor.process import die_with_parent
from supervisor.settings import TOKEN
from tests.ports import free_port
from tests.processes import started
from tests.waiting import scaled, status_of, wait_until
from tools.installation.history import installed

PROJECT = """\
import os
from celery import Celery
from supervisor.app import supervise

app = Celery("installation", broker=os.environ["SUPERVISOR_REDIS_URL"])
supervise(app)
"""


@contextmanager
def served(directory: Path, url: str, token: str, **environ: str) -> Iterator[tuple[str, int]]:
    """The address of `supervisor serve` on the installation, and its process id."""
    (directory / "installation_app.py").write_text(PROJECT)
    port = free_port()
    words = [sys.executable, "-m", "supervisor", "-A", "installation_app", "serve"]
    environment = {**os.environ, "SUPERVISOR_REDIS_URL": url, TOKEN: token, **environ}
    environment["PYTHONPATH"] = f"{directory}:{Path(__file__).parents[1]}"
    words += ["--port", str(port)]
    log = directory / "serve.log"
    process = started(words, directory, log, environment, preexec_fn=die_with_parent)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: is_ready(address) or process.poll() is not None, 60, every=0.2)
        if process.poll() is not None:
            raise SystemExit(log.read_text())
        yield address, process.pid
    finally:
        process.terminate()
        status_of(process)


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", timeout=scaled(5)).is_success
    except httpx.TransportError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.installation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--still", action="store_true", help="Nothing happens any more.")
    parser.add_argument("--for", dest="minutes", type=float, default=60, help="Minutes to run.")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # what it has started ends with it
    began = time.monotonic()
    token = "a token of the installation"
    with tempfile.TemporaryDirectory() as folder, installed(Path(folder), options.jobs) as made:
        installation, processes, url = made
        summary: Mapping[str, object] = {"jobs": len(installation.habits), "redis": url}
        with served(Path(folder), url, token) as (address, pid):
            summary = {**summary, "address": address, "token": token, "pid of serve": pid}
            summary = {**summary, "filled in": f"{time.monotonic() - began:.0f} s"}
            sys.stdout.write("".join(f"{name}: {fact}\n" for name, fact in summary.items()))
            sys.stdout.flush()
            ends_at = time.monotonic() + 60 * options.minutes
            while time.monotonic() < ends_at:
                installation.keep_alive()
                processes.say()
                if not options.still:
                    installation.go_on()
                time.sleep(2)


if __name__ == "__main__":
    main()
