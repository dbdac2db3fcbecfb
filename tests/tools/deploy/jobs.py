"""Jobs, and the plan of the processes they need."""

from __future__ import annotations

from pathlib import Path

from supervisor.catalog.schedule_files import load
from supervisor.deploy.plan import ProcessPlan
from supervisor.job.spec import JobSpec

ROOT = Path(__file__).parents[3]

APP = "examples.app"


def examples() -> list[JobSpec]:
    return list(load(ROOT / "schedules").specs.values())


def job(name: str, **keys: object) -> JobSpec:
    own = {"task": "t"} if "steps" not in keys else {}
    return JobSpec.model_validate({"name": name, "every": "1m", **own, **keys})


def plan_of(*jobs: JobSpec) -> ProcessPlan:
    return ProcessPlan.of(jobs, APP, concurrency=4)
