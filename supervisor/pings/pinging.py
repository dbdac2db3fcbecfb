"""Tells starts and ends of runs to their jobs' `ping_url`, from threads beside the leading beat.

1. The scripts that begin and end runs write pings into an outbox: a worker that is killed has lost
   none, and no job waits for somebody else's server.
2. At each tick beat looks at the outbox and starts a thread for each job that has pings and no
   thread. It sends them in order, takes what was accepted out of the outbox, and stops at the first
   that was not.
3. A thread sends for `TURN_SECONDS` and then makes way. Jobs whose server failed or was slow in
   their last turn have half of the threads at most, so that others are never without one.
4. A job whose server is unavailable is tried again later and later. What is older than
   `GIVE_UP_AFTER` is dropped, logged and counted, and so is what the server refuses.
5. A beat that dies in between, or two that lead in turn, may tell the same thing twice: the checks
   know a run by its `rid`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog
from redis.exceptions import RedisError

from supervisor.errors import SecretMissing
from supervisor.job.fields import is_address
from supervisor.job.references import resolved
from supervisor.ledger.pings import Ping, Pings
from supervisor.ledger.runs import Ledger
from supervisor.ledger.scripts import MOST_PINGS
from supervisor.pings.ping_http import TIMEOUT_SECONDS, Answer, send

GIVE_UP_AFTER = timedelta(minutes=10)
FIRST_WAIT_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 60.0

#: Looked at in one tick, and all of them where nothing of these can be sent now.
PINGS_PER_LOOK = 1_000
MOST_THREADS = 8
MOST_SLOW_THREADS = MOST_THREADS // 2

#: No ping is begun later in a turn; one that takes as long by itself makes its job a slow one.
TURN_SECONDS = 3.0

log = structlog.get_logger("supervisor.pinging")


class Pinger:
    def __init__(self, ledger: Ledger, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._ledger = ledger
        self._pings = Pings(ledger.client, ledger.keys)
        self._timeout = timeout_seconds
        self._sending: set[str] = set()
        self._waits: dict[str, tuple[float, float]] = {}
        self._slow: set[str] = set()
        self._lock = threading.Lock()

    def look(self, now: datetime) -> None:
        """Returns at once; the sending goes on in threads that end by themselves."""
        if not self._begin(PINGS_PER_LOOK, now):
            self._begin(MOST_PINGS, now)  # those of other jobs may stand behind them

    def _begin(self, limit: int, now: datetime) -> bool:
        """Whether a thread began, or there is nothing beyond the `limit` oldest."""
        with self._lock:
            busy = set(self._sending)  # what is read of these may have been sent meanwhile
        pings = self._pings.oldest(limit)
        began = False
        for job in dict.fromkeys(ping.job for ping in pings):
            if job not in busy and self._is_to_send(job):
                own = [ping for ping in pings if ping.job == job]
                threading.Thread(
                    target=self._run, args=(job, own, now), name="supervisor-ping", daemon=True
                ).start()
                began = True
        return began or len(pings) < limit

    def _is_to_send(self, job: str) -> bool:
        """Whether a thread may begin for the job; it counts as begun from then on."""
        next_try, _ = self._waits.get(job, (0.0, 0.0))
        with self._lock:
            if job in self._sending or len(self._sending) >= MOST_THREADS:
                return False
            if job in self._slow and len(self._sending & self._slow) >= MOST_SLOW_THREADS:
                return False
            if time.monotonic() < next_try:
                return False
            self._sending.add(job)
            return True

    def _run(self, job: str, pings: Sequence[Ping], now: datetime) -> None:
        began = time.monotonic()
        is_done = False
        try:
            is_done = self._send_all(job, pings, now, began + TURN_SECONDS)
        except RedisError as error:
            log.warning("pings not sent", job=job, error=str(error))
        finally:
            is_slow = not is_done or time.monotonic() - began > TURN_SECONDS
            with self._lock:
                self._sending.discard(job)
                (self._slow.add if is_slow else self._slow.discard)(job)

    def _send_all(self, job: str, pings: Sequence[Ping], now: datetime, until: float) -> bool:
        """Whether nothing failed, and all were sent before `until` on the monotonic clock."""
        spec = self._ledger.some_specs([job]).get(job)
        for ping in pings:
            if time.monotonic() > until:
                return False
            if spec is None or spec.ping_url is None:
                self._pings.done(ping)
            elif now - ping.at > GIVE_UP_AFTER:
                self._drop(ping, "too old")
            elif not self._send(spec.ping_url, ping):
                return False
        self._waits.pop(job, None)
        return True

    def _send(self, url: str, ping: Ping) -> bool:
        """Whether the next one may be sent."""
        try:
            answer, error = send(address_of(url), ping, self._timeout)
        except SecretMissing as missing:
            answer, error = Answer.AWAY, str(missing)
        match answer:
            case Answer.TAKEN:
                self._pings.done(ping)
                return True
            case Answer.REFUSED:
                self._drop(ping, error)
                return True
            case Answer.AWAY:
                _, waited = self._waits.get(ping.job, (0.0, 0.0))
                wait = min(max(FIRST_WAIT_SECONDS, 2 * waited), LONGEST_WAIT_SECONDS)
                self._waits[ping.job] = (time.monotonic() + wait, wait)
                log.warning("ping failed", **facts(ping), error=error, again_in=wait)
                return False

    def _drop(self, ping: Ping, why: str) -> None:
        self._pings.drop(ping)
        log.error("ping dropped", **facts(ping), reason=why)


def address_of(url: str) -> str:
    """Secrets in place of references. Raises SecretMissing."""
    address = str(resolved(url, os.environ))
    if not is_address(address):
        raise SecretMissing("ping_url", "what it stands for is no http or https address")
    return address


def facts(ping: Ping) -> dict[str, str]:
    """Of a log line; the address is a secret."""
    return {"job": ping.job, "run": ping.run, "kind": ping.kind.value}
