"""No end of a run is followed by none, or twice, whichever beat is killed or frozen, and when."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from supervisor.beat.entries import Entries
from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Grant
from tests.acceptance.warm import Started
from tests.ledger.jobs import ticks
from tests.ledger.test_after import loaded
from tests.waiting import let_pass, wait_until

BEATS = 3
FAULTS = 20
ENDS_PER_FAULT = 8

LOCK = "redbeat::lock"

#: What a beat does of it, again and again; who is killed has successors soon.
BEAT = """
import sys
import time
from contextlib import suppress
from datetime import timedelta
from supervisor.beat.following import Following
from supervisor.ledger import leader
from supervisor.ledger.connection import RedisError
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings

leader.LEADER_TTL = timedelta(seconds=0.3)
url, lock = sys.argv[1:]
ledger = Ledger.open(Settings(redis_url=url))
beat = ledger.leader(lock, "redbeat::schedule")
while True:
    with suppress(RedisError):
        look = beat.look()
        if look.is_trusted and look.has_endings:
            Following(ledger, beat.leadership).deal_with_endings()
    time.sleep(0.003)
"""

HOW = (RunState.SUCCEEDED, RunState.SUCCEEDED, RunState.SUCCEEDED, RunState.FAILED)

FOLLOWERS = {
    "strict": {"after": ["a"]},
    "lenient": {"after": ["a"], "after_policy": "done"},
    "both": {"after": ["a", "b"], "after_policy": "done"},
    "latest": {"after": ["a"], "after_policy": "done", "after_match": "latest"},
    "waits": {"every": "1s", "after": ["a"], "after_policy": "done", "after_match": "same_time"},
    "last": {"after": ["lenient"], "after_policy": "done"},
}


class Beats:
    def __init__(self, url: str, log: Path, rng: random.Random) -> None:
        self._url, self._log, self._rng = url, log, rng
        self._living = [self._start() for _ in range(BEATS)]
        self._frozen: list[Started] = []

    def strike(self, leading: str) -> None:
        """Kills or freezes the one that leads, or another; one is always left to go on."""
        beat = next((b for b in self._living if f":{b.pid}:" in leading), self._living[0])
        if self._rng.random() < 0.3 and len(self._living) > 1:
            beat.send_signal(signal.SIGSTOP)
            self._frozen.append(beat)
            self._living.remove(beat)
            return
        for each in (beat, *self._frozen[:-1]):
            each.kill()
            each.wait()
        for woken in self._frozen[-1:]:
            woken.send_signal(signal.SIGCONT)
        self._living = [b for b in self._living if b is not beat] + self._frozen[-1:]
        self._frozen = []
        self._living += [self._start() for _ in range(BEATS - len(self._living))]

    def end(self) -> None:
        for beat in (*self._living, *self._frozen):
            beat.kill()
            beat.wait()

    def _start(self) -> Started:
        words = ["-c", BEAT, self._url, LOCK]
        with self._log.open("ab") as log:
            return Started(words, self._log.parent, os.environ, log, log)


@contextmanager
def beats_at(url: str, log: Path, rng: random.Random) -> Iterator[Beats]:
    beats = Beats(url, log, rng)
    try:
        yield beats
    finally:
        beats.end()


def test_each_end_is_followed_once_whichever_beat_is_killed(
    ledger: Ledger, entries: Entries, redis_url: str, tmp_path: Path
) -> None:
    rng = random.Random(5)
    sources: dict[str, dict[str, Any]] = {"a": {}, "b": {}}
    jobs = loaded(
        ledger,
        entries,
        **{
            name: {**keys, "max_running": 1000, "history": 5000}
            for name, keys in (sources | FOLLOWERS).items()
        },
    )
    scheduled = [jobs[name] for name in ("a", "b", "waits")]
    ended = 0

    def work() -> None:
        for run in ledger.outbox(1000):
            grant = ledger.begin(run, f"token of {run}", "worker")
            assert isinstance(grant, Grant), grant
            ledger.finish(run, f"token of {run}", rng.choice(HOW))

    def tick() -> None:
        nonlocal ended
        ended += 1
        for spec in rng.sample(scheduled, len(scheduled)):
            ledger.admit(ticks(spec, ended))
        work()

    def all_dealt_with() -> bool:
        work()
        is_open = any(ledger.client.exists(ledger.keys.open(name)) for name in jobs)
        return not (is_open or ledger.followers.endings(1))

    with beats_at(redis_url, tmp_path / "beats.log", rng) as beats:
        for _ in range(FAULTS):
            for _ in range(ENDS_PER_FAULT):
                tick()
            let_pass(rng.uniform(0, 0.05))  # a beat is anywhere in its turn
            beats.strike(ledger.client.get(LOCK) or "")
        wait_until(all_dealt_with, 60)

    times = [tick.nominal_at for tick in ticks(jobs["a"], *range(1, ended + 1))]
    for name in FOLLOWERS:
        assert sorted(run.nominal_at for run in ledger.history(name, 5000)) == times, name
