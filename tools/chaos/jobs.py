"""The jobs under fire, one line each: a job of every overlap policy, most due every second."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

LEASE_TTL = 4

#: Of a long body: no lease that is not renewed lasts until its end.
LONG_SECONDS = (LEASE_TTL + 1.0, LEASE_TTL + 3.5)

#: What all jobs have in common: leases that run out soon, and no limit of crashes.
COMMON: Mapping[str, Any] = {"lease_ttl": f"{LEASE_TTL}s", "on_crash": "rerun", "max_crashes": 1000}


@dataclass(frozen=True, slots=True)
class ChaosJob:
    name: str
    overlap: str

    longest: float = 2.5
    """Bound of a random duration, in seconds; of a share of the bodies it is LONG_SECONDS."""

    long_share: float = 0.25

    every: int = 1
    """Seconds from one nominal time to the next."""

    task: str = "work"

    at_once: int = 1
    """Runs that may work together."""

    after: str = ""
    """The job that it follows, which gives it its nominal times."""

    version: int | None = None
    """Of a job that is edited, one more each time."""

    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keeps_waiting(self) -> bool:
        """Whether a run that is due waits for the lock: then it must start soon."""
        return self.overlap.startswith("queue_")

    @property
    def must_move(self) -> bool:
        """Whether it stands still when none of its runs is at work."""
        return self.at_once == 1 and not self.after

    @property
    def reruns(self) -> bool:
        return bool(self.settings["on_crash"] == "rerun")

    @property
    def is_sent_by_celery(self) -> bool:
        """Whether its messages go through the outbox."""
        return self.task == "work_by_celery"

    @property
    def settings(self) -> dict[str, Any]:
        times = {"after": [self.after]} if self.after else {"every": f"{self.every}s"}
        own = {
            "task": f"tools.chaos.app.{self.task}",
            **times,
            "args": [0.1, self.longest, self.long_share],
            "overlap": self.overlap,
        }
        if self.version is not None:
            own["kwargs"] = {"version": self.version}
        return {**COMMON, **own, **self.more}


def follower(name: str, after: str, **more: Any) -> ChaosJob:
    """Of short runs that all wait for their turn: each end of the other job has one of them."""
    return ChaosJob(name, "queue_all", 0.3, long_share=0.0, after=after, more=more)


#: Of the workers; one without processes of their own for runs cannot have `overlap: replace`.
POOL = os.environ.get("CHAOS_POOL") or "prefork"

RETRIED: Mapping[str, Any] = {"max_retries": 2, "retry_backoff": "1s"}

#: queue_all is given work that it can keep up with: otherwise its backlog outlives the chaos. What
#: is left lying of `rare` no next tick brings forward by the way.
EVERY_JOB = (
    ChaosJob("skip", "skip"),
    ChaosJob("queue_one", "queue_one", version=0),
    ChaosJob("queue_all", "queue_all", every=5),
    ChaosJob("rare", "queue_one", long_share=1.0, every=30),
    ChaosJob("replace", "replace", more={"stop_grace": "1s"}),
    ChaosJob("allow", "allow", at_once=2, more={"max_running": 2}),
    ChaosJob("requeue", "requeue", more={"requeue_delay": "1s"}),
    ChaosJob("serial", "queue_one", more={"serial": True}),
    ChaosJob("retries", "skip", task="stumble", more=RETRIED),
    ChaosJob("no_rerun", "queue_one", more={"on_crash": "fail"}),
    ChaosJob("outbox", "queue_one", task="work_by_celery", more=RETRIED),
    follower("after_skip", after="skip", after_policy="done"),
    follower("after_after", after="after_skip", after_policy="done"),
    follower("after_retries", after="retries"),
    follower("after_latest", after="queue_all", after_policy="done", after_match="latest"),
)

JOBS = [job for job in EVERY_JOB if POOL == "prefork" or job.overlap != "replace"]

QUEUES = "celery,serial.serial"


#: The one that is edited.
[EDITED] = [job.name for job in JOBS if job.version is not None]


def schedule_file(version: int = 0) -> str:
    """version: of the job that is edited."""
    jobs = [replace(job, version=version) if job.name == EDITED else job for job in JOBS]
    return yaml.safe_dump({"jobs": {job.name: job.settings for job in jobs}}, sort_keys=False)
