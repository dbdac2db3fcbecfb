"""The jobs under fire, one line each: a job of every overlap policy, due every second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

LEASE_TTL = 4

#: What all jobs have in common: leases that run out soon, and no end of patience with crashes.
COMMON: Mapping[str, Any] = {
    "every": "1s",
    "lease_ttl": f"{LEASE_TTL}s",
    "on_crash": "rerun",
    "max_crashes": 1000,
}


@dataclass(frozen=True, slots=True)
class ChaosJob:
    """longest: bound of a random duration, in seconds. at_once: runs that may work together."""

    name: str
    overlap: str
    longest: float = 2.5
    task: str = "work"
    at_once: int = 1
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keeps_waiting(self) -> bool:
        """Whether a run that is due waits for the lock: then somebody must start it soon."""
        return self.overlap.startswith("queue_")

    @property
    def reruns(self) -> bool:
        return bool(self.settings["on_crash"] == "rerun")

    @property
    def settings(self) -> dict[str, Any]:
        own = {
            "task": f"tests.chaos.app.{self.task}",
            "args": [0.1, self.longest],
            "overlap": self.overlap,
        }
        return {**COMMON, **own, **self.more}


#: queue_all is given work that it can keep up with: otherwise its backlog outlives the chaos.
JOBS = (
    ChaosJob("skip", "skip"),
    ChaosJob("queue_one", "queue_one"),
    ChaosJob("queue_all", "queue_all", longest=1.2),
    ChaosJob("replace", "replace", more={"stop_grace": "1s"}),
    ChaosJob("allow", "allow", at_once=2, more={"max_running": 2}),
    ChaosJob("requeue", "requeue", more={"requeue_delay": "1s"}),
    ChaosJob("serial", "queue_one", more={"serial": True}),
    ChaosJob("retries", "skip", task="stumble", more={"max_retries": 2, "retry_backoff": "1s"}),
    ChaosJob("no_rerun", "queue_one", more={"on_crash": "fail"}),
)

QUEUES = "celery,serial.serial"


def schedule_file() -> str:
    return yaml.safe_dump({"jobs": {job.name: job.settings for job in JOBS}}, sort_keys=False)
