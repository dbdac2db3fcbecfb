"""Brings the ledger and RedBeat in line with the schedule files: only what differs is touched.

An edit is never retroactive: a job whose times changed starts counting now. Runs of a removed job
that are at work end as they end; those that wait are cancelled when their turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from supervisor.auditing import audit, note
from supervisor.entries import Entries
from supervisor.ledger.keys import Keys
from supervisor.ledger.replies import ms_of
from supervisor.ledger.runs import Ledger
from supervisor.ledger.scripts import HISTORY_TTL
from supervisor.spec import JobSpec
from supervisor.timing import schedule_of


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of jobs; `unchanged` is their number."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


def difference(loaded: Mapping[str, JobSpec], wanted: Mapping[str, JobSpec]) -> Changes:
    kept = loaded.keys() & wanted.keys()
    changed = {name for name in kept if loaded[name] != wanted[name]}
    return Changes(
        added=tuple(sorted(wanted.keys() - loaded.keys())),
        changed=tuple(sorted(changed)),
        removed=tuple(sorted(loaded.keys() - wanted.keys())),
        unchanged=len(kept) - len(changed),
    )


def kept_keys(keys: Keys, spec: JobSpec) -> tuple[str, ...]:
    """What is known of a job beside its spec; it outlives the job by the time runs are kept."""
    return keys.job(spec.name), keys.history(spec.name), keys.open(spec.name)


def load(
    ledger: Ledger, entries: Entries, wanted: Mapping[str, JobSpec], digest: str, now: datetime
) -> Changes:
    """Applies the difference in one transaction; `digest` names what is loaded from then on."""
    loaded = ledger.scheduled()
    changes = difference(loaded, wanted)
    keys = ledger.keys
    retimed = [name for name in changes.changed if loaded[name].when != wanted[name].when]
    for finding in audit(ledger, [loaded[name] for name in (*retimed, *changes.removed)]):
        note(finding)
    with ledger.client.pipeline(transaction=True) as pipe:
        for name in (*changes.added, *changes.changed):
            spec, before = wanted[name], loaded.get(name)
            pipe.hset(keys.jobs, name, spec.model_dump_json(exclude_defaults=True))
            if before is None or before.when != spec.when:
                pipe.hset(keys.job(name), "watermark", ms_of(now))
                pipe.hdel(keys.job(name), "audited_until")  # the audit begins anew
                entries.write(pipe, spec, schedule_of(spec).next_after(now))
            else:
                entries.rewrite(pipe, spec)
            if before is None or before.paused != spec.paused:
                pipe.hset(
                    keys.job(name), mapping={"paused": int(spec.paused), "paused_at": ms_of(now)}
                )
                pipe.hdel(keys.job(name), "paused_note", "paused_until")
                pipe.zrem(keys.pauses, name)
            for key in kept_keys(keys, spec):
                pipe.persist(key)
        for name in changes.removed:
            pipe.hdel(keys.jobs, name)
            entries.remove(pipe, name)
            # Runs at work still end and count; a job that comes back goes on counting.
            for key in kept_keys(keys, loaded[name]):
                pipe.expire(key, HISTORY_TTL)
        pipe.hset(keys.beat, "config", digest)
        pipe.execute()
    return changes
