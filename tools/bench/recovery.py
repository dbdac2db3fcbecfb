"""From `kill -9` of a child, or of its worker, until the work is begun again."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tools.bench.ratios import spreads
from tools.bench.sides import Side, sides, until
from tools.bench.sizes import Sizes

#: Unseen: ours where no process of the machine sees that a worker is gone, and the lease decides.
OURS = ("ours", "unseen")
SIDES = (*OURS, "singleton", "once", "acks_late")
TIMEOUT = 20


def measure(directory: Path, url: str, sizes: Sizes) -> dict[str, float]:
    return spreads([one_round(directory / str(number), url) for number in range(sizes.rounds)])


def one_round(directory: Path, url: str) -> dict[str, float]:
    """All at once, for it is mostly waiting. Who has not begun again by then has no figure."""
    found: dict[str, float] = {"recovery_timeout_s": TIMEOUT}
    for victim in ("child", "worker"):
        with (
            sides("locked", SIDES, directory / victim, url) as taking_part,
            ThreadPoolExecutor(len(SIDES)) as pool,
        ):
            list(pool.map(staffed, taking_part))
            for figures in pool.map(partial(killed, victim), taking_part):
                found |= figures
    return found


def staffed(side: Side) -> None:
    """Two workers: one to be killed, one to go on."""
    side.workers("first", "second")
    if side.name in OURS:
        side.celery("beat", "-l", "warning")


def killed(victim: str, side: Side) -> dict[str, float]:
    side.asked("call(1, 100)")
    until(lambda: side.client.llen("signs"), 30)
    [[_, _, child, worker]] = side.asked("signs()")
    os.kill(child if victim == "child" else worker, signal.SIGKILL)
    at, name = time.time(), f"recovery_{victim}" + ("" if side.name == "ours" else f"_{side.name}")
    lease_ends = side.client.zrange(side.ledger.keys.leases, 0, 0, withscores=True)
    if side.name in ("singleton", "once"):  # nobody brings the run back: the next call is to start
        side.python("-c", "import locked; locked.call_until_it_starts(100)")
    try:
        until(lambda: side.client.llen("signs") > 1, TIMEOUT)
    except TimeoutError:
        return {}
    begun = float(side.asked("signs()")[1][1])
    by_lease = name == "recovery_worker_unseen"
    late = {"rescue_late_ms": 1000 * begun - lease_ends[0][1]} if by_lease else {}
    return {f"{name}_s": begun - at, **late}
