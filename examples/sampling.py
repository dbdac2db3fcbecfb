"""sample-load: what this machine is doing, every two seconds. The plainest of jobs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from celery import shared_task

from examples.storage import database
from examples.witness import bound, witness

#: How long /proc/stat is watched for one reading of the CPU.
WINDOW_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Sample:
    sampled_at: float

    load: float
    """Runnable processes, mean of a minute."""

    cpu: float | None
    """Share in use; None where /proc does not tell."""

    memory: float | None
    """Share in use; None where /proc does not tell."""


@shared_task(name="examples.sample_load")
def sample_load(keep: int = 50_000) -> None:
    """Stores one sample and drops all but the last `keep`, which is a day and a bit."""
    with witness("sample-load"):
        sample = read_sample()
        with database() as db, db:
            db.execute(
                "INSERT INTO samples (sampled_at, load, cpu, memory) VALUES (?, ?, ?, ?)",
                (sample.sampled_at, sample.load, sample.cpu, sample.memory),
            )
            db.execute("DELETE FROM samples WHERE id <= (SELECT max(id) FROM samples) - ?", (keep,))
        bound()


def read_sample(proc: Path = Path("/proc")) -> Sample:
    return Sample(
        sampled_at=time.time(),
        load=os.getloadavg()[0],
        cpu=_cpu_in_use(proc / "stat"),
        memory=_memory_in_use(proc / "meminfo"),
    )


def _cpu_in_use(stat: Path) -> float | None:
    try:
        idle, total = _ticks(stat)
        time.sleep(WINDOW_SECONDS)
        idle_after, total_after = _ticks(stat)
    except FileNotFoundError:
        return None
    return 1 - (idle_after - idle) / max(1, total_after - total)


def _ticks(stat: Path) -> tuple[int, int]:
    """Idle and all clock ticks since boot: user, nice, system, idle, iowait, ... in one line."""
    ticks = [int(field) for field in stat.read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _memory_in_use(meminfo: Path) -> float | None:
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    except FileNotFoundError:
        return None
    total, available = (int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return 1 - available / total
