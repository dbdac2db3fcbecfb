"""What the scripts, and those who show a run, need to know of its job: kept with the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.job.when import KINDS
from supervisor.times.durations import to_ms

if TYPE_CHECKING:
    from supervisor.job.spec import JobSpec


def rules_of(spec: JobSpec, lock: str) -> dict[str, Any]:
    """Of a run under this lock; times in ms."""
    return {
        "lock": lock,
        "serial": "" if spec.steps else spec.serial_lock,
        "overlap": spec.overlap.value,
        "max_running": spec.most_running or 0,
        "max_skips": spec.max_consecutive_skips or 0,
        "on_max_skips": spec.then.value,
        "max_wait": -1 if spec.max_wait is None else to_ms(spec.max_wait),
        "max_waiting": spec.max_waiting,
        "requeue_delay": to_ms(spec.requeue_delay),
        "max_requeues": spec.max_requeues,
        "start_deadline": to_ms(spec.start_deadline),
        "lease_ttl": to_ms(spec.lease_ttl),
        "on_crash": spec.on_crash.value,
        "max_crashes": spec.max_crashes,
        "history": spec.history,
        "on_lease_lost": spec.on_lease_lost.value,
        "stop_grace": to_ms(spec.stop_grace),
        **({"key": key} if (key := key_template(spec)) else {}),
        **({"ping": True} if spec.ping_url else {}),
        **mask_rule(spec),
    }


def key_template(spec: JobSpec) -> str | None:
    """Another one is an edit of the job. The caller of `start` chooses one for each run."""
    is_started = spec.steps and all(getattr(spec, kind) is None for kind in KINDS)
    return spec.key.replace("{task}", spec.work) if spec.key and not is_started else None


def mask_rule(spec: JobSpec) -> dict[str, Any]:
    mask = spec.mask if isinstance(spec.mask, bool) else list(spec.mask)
    return {"mask": mask} if mask else {}
