"""What must hold of runs of several steps after any event, said of what lies in the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from supervisor.job.run_ids import StepId
from supervisor.job.spec import JobSpec
from supervisor.job.step_spec import StepSpec
from supervisor.ledger.ledger import Ledger
from supervisor.testing import slot_key

OPEN = ("waiting", "queued", "running", "retrying")
LETTERS = {
    "succeeded": "s",
    "failed": "f",
    "timed_out": "t",
    "lost": "l",
    "expired": "x",
    "cancelled": "c",
    "replaced": "c",
}

READ = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local value = {}
  if kind == 'hash' then value = redis.call('HGETALL', key) end
  if kind == 'set' then value = redis.call('SMEMBERS', key) end
  if kind == 'list' then value = redis.call('LRANGE', key, 0, -1) end
  if kind == 'string' then
    value = { (string.gsub(redis.call('GET', key), '[\\128-\\255]', '?')) }
  end
  if kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  found[#found + 1] = { key, redis.call('PTTL', key), kind, value }
end
return found
"""


def pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


@dataclass
class Seen:
    """All that lies in the ledger at one moment."""

    ledger: Ledger
    spec: JobSpec
    values: dict[str, Any] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, life, kind, value in self.ledger.client.eval(READ, 0):
            self.values[key] = pairs(value) if kind in ("hash", "zset") else value
            self.lives[key] = life

    def get(self, key: str) -> Any:
        return self.values.get(key, {})

    def run(self, run_id: str) -> Mapping[str, str]:
        found: Mapping[str, str] = self.get(self.ledger.keys.run(run_id))
        return found

    @property
    def runs(self) -> dict[str, Mapping[str, str]]:
        head = self.ledger.keys.run("")
        records = {k.removeprefix(head): v for k, v in self.values.items() if k.startswith(head)}
        return {run: v for run, v in records.items() if "job" in v}

    @property
    def roots(self) -> dict[str, Mapping[str, str]]:
        """Runs of the job itself, not what is below them."""
        return {run: v for run, v in self.runs.items() if "parent" not in v}

    @property
    def children(self) -> dict[str, Mapping[str, str]]:
        return {run: v for run, v in self.runs.items() if "parent" in v}

    def below(self, run_id: str) -> set[str]:
        return set(self.get(self.ledger.keys.below(run_id)))

    def in_state(self, *states: str) -> list[str]:
        """Steps and items, without batches at work: those that a worker may have to do with."""
        return sorted(
            run
            for run, v in self.children.items()
            if v["state"] in states and not ("foreach" in v and v["state"] == "running")
        )

    @property
    def batches(self) -> list[str]:
        """Those that wait for their items."""
        return sorted(
            run for run, v in self.children.items() if "foreach" in v and v["state"] == "queued"
        )

    def letters(self, batch: str) -> str:
        return "".join(self.get(self.ledger.keys.states(batch)))

    def step(self, name: str) -> StepSpec:
        return next(step for step in self.spec.steps if step.label == name)


def faults(seen: Seen, silent: set[str], cut: set[str], admitted: list[str]) -> Iterator[str]:
    """`silent`: runs whose own lock was made to run out, and nobody has looked since.

    cut: those whose lock ever was. admitted: all runs so far.
    """
    yield from of_what_is_open(seen)
    yield from of_stages(seen)
    yield from of_the_lock(seen, silent, cut)
    yield from of_indexes(seen)
    yield from of_batches(seen)
    yield from of_counters(seen)
    yield from of_what_is_left(seen, admitted)


def of_what_is_open(seen: Seen) -> Iterator[str]:
    for run in seen.runs:
        still = {
            child for child, v in seen.children.items() if v["parent"] == run and v["state"] in OPEN
        }
        if still != seen.below(run):
            yield f"open below {run}: {still} by their records, {seen.below(run)} by the set"
        is_open = seen.run(run)["state"] in OPEN
        if still and not is_open:
            yield f"{run} has ended before {still}"
        if is_open and seen.run(run).get("stage") and not still:
            yield f"{run} is open, and nothing below it"


def of_stages(seen: Seen) -> Iterator[str]:
    stops = seen.spec.on_step_failure == "stop"
    for run, v in seen.roots.items():
        if not v.get("stage"):
            continue
        for step in seen.spec.steps:
            record = seen.run(f"{run}~{step.label}")
            if bool(record) is not (step.priority >= int(v["stage"])):
                yield f"{run}~{step.label} at stage {v['stage']}: {record}"
            if record and step.priority > int(v["stage"]):
                if record["state"] in OPEN:
                    yield f"{run}~{step.label} is open at stage {v['stage']}"
                if stops and record["state"] != "succeeded":
                    yield f"{run} went on after {step.label} {record['state']}"
        if v["state"] not in OPEN:
            yield from of_outcome(seen, run, v)


def of_outcome(seen: Seen, run: str, v: Mapping[str, str]) -> Iterator[str]:
    steps = {step.label: seen.run(f"{run}~{step.label}").get("state") for step in seen.spec.steps}
    bad = {step for step, state in steps.items() if state not in (None, "succeeded")}
    if v["state"] == "succeeded" and (bad or None in steps.values()):
        yield f"{run} succeeded with {steps}"
    if v["state"] in ("failed", "expired") and v.get("error_step") not in bad:
        yield f"{run} {v['state']} by {v.get('error_step')}: {steps}"
    if v["state"] == "failed" and not bad:
        yield f"{run} failed with {steps}"
    if v["state"] not in ("succeeded", "failed", "expired", "cancelled", "replaced"):
        yield f"{run} {v['state']}"


def of_the_lock(seen: Seen, silent: set[str], cut: set[str]) -> Iterator[str]:
    keys, lock = seen.ledger.keys, seen.spec.lock
    state = seen.get(keys.lock_state(lock))
    holders = {run: int(k[7:]) for k, run in state.items() if k.startswith("holder:")}
    should = {run for run, v in seen.roots.items() if v["state"] in ("queued", "running")}
    if holders.keys() != should:
        yield f"the lock is held by {holders}, and should be by {should}"
    most = seen.spec.most_running
    if most is not None and len(holders) > most:
        yield f"more than {most} hold the lock: {holders}"
    slots = {slot_key(keys, lock, slot): run for run, slot in holders.items()}
    for key, run in slots.items():
        if run in silent:
            continue
        token = seen.run(run)["token"]
        if seen.get(key) != [token] or seen.lives[key] <= 0:
            yield f"{key} is {seen.get(key)}, not {token} of {run}"
        ends = {r: float(at) for r, at in seen.get(keys.leases).items()}
        late = [r for r, at in ends.items() if r.startswith(f"{run}~") and at > ends[run]]
        if late and run not in cut:
            yield f"the lock of {run} may run out before that of {late}"
    known = {keys.lock_state(lock), keys.waiting(lock)}
    for key in seen.values:
        if key.startswith(keys.lock(lock)) and key not in known and key not in slots:
            yield f"{key} is nobody's"


def of_indexes(seen: Seen) -> Iterator[str]:
    keys = seen.ledger.keys
    leases, outbox, sent, delayed = (
        set(seen.get(k)) for k in (keys.leases, keys.outbox, keys.sent, keys.delayed)
    )
    ended = {run for run, v in seen.runs.items() if v["state"] not in OPEN}
    for name in ("leases", "outbox", "sent", "delayed"):
        left = set(seen.get(getattr(keys, name))) & ended
        if left:
            yield f"ended and still in {name}: {left}"
    for run in seen.in_state(*OPEN):
        if run not in leases:
            yield f"{run} has no deadline"
    serial = seen.spec.serial_lock
    parked = set(seen.get(keys.waiting(serial))) if serial else set()
    for run in seen.in_state("queued"):
        if run not in outbox | sent | parked:
            yield f"{run} is queued, and nobody will send it"
    for run in seen.in_state("retrying"):
        if run not in delayed:
            yield f"{run} is to be tried again, and nobody will"
    if serial and len(at_work := seen.in_state("running")) > 1:
        yield f"at work at once on a serial queue: {at_work}"


def of_batches(seen: Seen) -> Iterator[str]:
    for batch, v in seen.children.items():
        if "foreach" not in v or "total" not in v:
            continue
        letters, total, opened = seen.letters(batch), int(v["total"]), int(v["next"])
        if len(letters) != total:
            yield f"{batch} has {total} items, and letters {letters}"
        counted = Counter({k[6:]: int(n) for k, n in v.items() if k.startswith("items:")})
        said: Counter[str] = Counter()
        for outcome, number in counted.items():
            said[LETTERS[outcome]] += number
        if said != Counter(letters.replace(".", "")):
            yield f"{batch} counted {counted}, and has letters {letters}"
        still = {int(item.partition("#")[2]) for item in seen.below(batch)}
        if {n for n in range(opened) if letters[n] == "."} != still or set(letters[opened:]) > {
            "."
        }:
            yield f"{batch} opened {opened} of {letters}, open are {still}"
        step = seen.step(str((StepId.of(batch) or StepId("", "")).step))
        if len(still) > (step.max_parallel or total):
            yield f"{batch} has too many open: {still}"
        if v["state"] not in OPEN:
            yield from of_ended_batch(batch, v, step, letters)


def of_ended_batch(batch: str, v: Mapping[str, str], step: StepSpec, letters: str) -> Iterator[str]:
    bad = len(letters) - letters.count("s")
    if v["state"] == "succeeded" and ("." in letters or bad > most_failed(step, len(letters))):
        yield f"{batch} succeeded with {letters}"
    if v["state"] == "failed" and not bad and v["reason"] != "another step failed":
        yield f"{batch} failed with {letters}: {v['reason']}"


def most_failed(step: StepSpec, total: int) -> int:
    if isinstance(step.max_failed, str):
        return int(step.max_failed.rstrip("%")) * total // 100
    return total if step.on_item_failure == "ignore" else step.max_failed or 0


def of_counters(seen: Seen) -> Iterator[str]:
    keys, name = seen.ledger.keys, seen.spec.name
    counted = {k[2:]: int(n) for k, n in seen.get(keys.job(name)).items() if k.startswith("n:")}
    came = sum(counted.get(kind, 0) for kind in ("ticks", "triggered"))
    went = sum(n for k, n in counted.items() if k.startswith(("finished:", "skipped:")))
    still = set(seen.get(keys.open(name)))
    if came != went + len(still):
        yield f"{came} came, {went} went, {still} are open"
    by_record = {r for r, v in seen.roots.items() if v["state"] in OPEN and v["job"] == name}
    if still != by_record:
        yield f"open by the set {still}, by their records {by_record}"


def of_what_is_left(seen: Seen, admitted: list[str]) -> Iterator[str]:
    for run in admitted:
        if seen.run(run).get("state") in OPEN:
            continue
        head = seen.ledger.keys.run(run)
        left = [
            key for key in seen.values if key == head or key.startswith((f"{head}/", f"{head}:"))
        ]
        if not seen.run(run) and left:
            yield f"{run} is forgotten, but for {left}"
        immortal = [key for key in left if seen.lives[key] < 0]
        if immortal:
            yield f"{run} has ended and leaves for ever {immortal}"
