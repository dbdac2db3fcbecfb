"""What the leading beat sends to other servers: revocations and pings, from threads beside it.

**Revocations** go to Celery's result backend, for calls that ended before they began. A caller may
wait for the result, alone or in a chord. The result of a run that began is stored by its worker; of
one that was skipped, cancelled or expired before, no worker knows.

1. The functions that end such runs write a revocation into a list in the ledger.
2. At each turn beat sees whether there are any. A thread sends them, since a backend may hang, and
   removes each from the list once it is stored.

**Pings** of starts and ends of runs go to their jobs' `ping_url`.

1. The functions that begin and end runs write pings into a list: a worker that is killed loses
   none, and no job waits for another server.
2. At each turn beat starts a thread for each job that has pings and no thread. It sends them in
   order, removes those that were accepted, and stops at the first that was not.
3. A thread sends for up to `TURN_SECONDS` and then gives way. Jobs whose server failed or was slow
   in their last turn have half of the threads at most, so that others always find one.
4. A job whose server is unavailable is tried again after waits that double. Pings that the server
   refuses are dropped, logged and counted.

Both are tried again while a server is unavailable, and dropped after `GIVE_UP_AFTER`. A beat that
dies in between, or two that lead in turn, may send the same thing twice: a result stays what it is,
and checks know a run by its `rid`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from threading import Thread
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid5

from celery import Celery
from redis.exceptions import RedisError

from supervisor.errors import SecretMissing
from supervisor.job.fields import is_address
from supervisor.job.notices import Answer
from supervisor.job.secrets import resolved
from supervisor.ledger.functions import MOST_PINGS
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.notifications import Ping, PingKind, Pings, Revocation, Revocations
from supervisor.logs import get_logger
from supervisor.sending.calls import revoke
from supervisor.sending.posting import post
from supervisor.times import render_duration

log = get_logger("supervisor.revocations")

GIVE_UP_AFTER = timedelta(minutes=10)

PAUSE_SECONDS = 5.0

REVOCATIONS_PER_LOOK = 1_000

#: Failures after which a thread stops: these are not the fault of one call.
MOST_FAILURES = 3


class Revoker:
    """Sends the revocations, one after the other."""

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._revocations = Revocations(ledger.client, ledger.keys)
        self._thread: Thread | None = None
        self._next_try = 0.0

    def look(self, now: datetime) -> None:
        """Returns at once; a thread sends the revocations and ends by itself."""
        is_sending = self._thread is not None and self._thread.is_alive()
        if not is_sending and time.monotonic() >= self._next_try:
            self._thread = Thread(
                target=self._run, args=(now,), name="supervisor-revocations", daemon=True
            )
            self._thread.start()

    def _run(self, now: datetime) -> None:
        failures = 0
        try:
            for revocation in self._revocations.oldest(REVOCATIONS_PER_LOOK):
                failures += not self._is_done_with(revocation, now)
                if failures == MOST_FAILURES:
                    break
        except RedisError as error:
            log.warning("revocations not sent", error=str(error))
        if failures:
            self._next_try = time.monotonic() + PAUSE_SECONDS

    def _is_done_with(self, revocation: Revocation, now: datetime) -> bool:
        facts = {"job": revocation.job, "run": revocation.run}
        try:
            self._send(revocation)
        except Exception as error:  # noqa: BLE001 - each backend has errors of its own
            if now - revocation.at <= GIVE_UP_AFTER:
                log.warning("revocation not sent", **facts, error=str(error))
                return False
            log.error("revocation not sent", **facts, error=str(error), reason="given up")
        self._revocations.done(revocation)
        return True

    def _send(self, revocation: Revocation) -> None:
        task = self._app.tasks.get(revocation.job)
        backend = self._app.backend if task is None else task.backend
        options = next((run.options for run in self._ledger.runs([revocation.run])), {})
        reason = ": ".join(filter(None, (revocation.outcome, revocation.reason)))
        revoke(backend, revocation.run, reason, options)


# One ping over HTTP, in the form of healthchecks.io: the address says what happened, the body why.
#
# ``POST <url>/start?rid=<uuid>``, ``<url>``, ``<url>/fail``, ``<url>/log``. The `rid` is the same
# for all pings of a run, so that the check knows its duration even if runs overlap.


#: From the connection to the end of the answer's headers; an attempt to connect has as much.
TIMEOUT_SECONDS = 5.0

#: Run ids become UUIDs in it.
NAMESPACE = UUID("6d1f9bb4-70c1-5a4c-9f5e-0b3f1a6f1c53")

PATHS = {
    PingKind.START: "/start",
    PingKind.SUCCESS: "",
    PingKind.FAIL: "/fail",
    PingKind.LOG: "/log",
}


def send(url: str, ping: Ping, timeout: float = TIMEOUT_SECONDS) -> tuple[Answer, str]:
    """Sends a ping. Says what went wrong without repeating the address, which is a secret."""
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    return post(address(url, ping), body(ping).encode(), headers, timeout_seconds=timeout)


def address(url: str, ping: Ping) -> str:
    parts = urlsplit(url)
    query = "&".join(filter(None, (parts.query, f"rid={uuid5(NAMESPACE, ping.run)}")))
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + PATHS[ping.kind], query=query))


def body(ping: Ping) -> str:
    facts = {
        "run": ping.run,
        "outcome": ping.outcome,
        "reason": ping.reason,
        "attempt": str(ping.attempt) if ping.attempt else "",
        "duration": render_duration(ping.lasted) if ping.attempt else "",
    }
    return "".join(f"{name}: {fact}\n" for name, fact in facts.items() if fact)


FIRST_WAIT_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 60.0

#: The oldest, which are looked at first; all are where none of these can be sent now.
PINGS_PER_LOOK = 1_000
MOST_THREADS = 8
MOST_SLOW_THREADS = MOST_THREADS // 2

#: No ping is begun later in a turn; one that takes longer by itself marks its job as slow.
TURN_SECONDS = 3.0


class Pinger:
    """Sends the pings, those of several jobs side by side.

    keeps: a ping that is left in the list for now, since another is to see it first.
    """

    def __init__(
        self,
        ledger: Ledger,
        timeout_seconds: float = TIMEOUT_SECONDS,
        keeps: Callable[[Ping], bool] = lambda _: False,
    ) -> None:
        self._ledger = ledger
        self._pings = Pings(ledger.client, ledger.keys)
        self._timeout = timeout_seconds
        self._keeps = keeps
        self._sending: set[str] = set()
        self._waits: dict[str, tuple[float, float]] = {}
        self._slow: set[str] = set()
        self._lock = threading.Lock()

    def look(self, now: datetime) -> None:
        """Returns at once; threads send the pings and end by themselves."""
        if not self._begin(PINGS_PER_LOOK, now):
            self._begin(MOST_PINGS, now)  # pings of other jobs may stand behind them

    def _begin(self, limit: int, now: datetime) -> bool:
        """Whether a thread began, or there is nothing beyond the `limit` oldest."""
        with self._lock:
            busy = set(self._sending)  # their pings may have been sent since they were read
        listed = self._pings.oldest(limit)
        pings = [ping for ping in listed if not self._keeps(ping)]
        began = False
        for job in dict.fromkeys(ping.job for ping in pings):
            if job not in busy and self._is_to_send(job):
                own = [ping for ping in pings if ping.job == job]
                threading.Thread(
                    target=self._run, args=(job, own, now), name="supervisor-ping", daemon=True
                ).start()
                began = True
        return began or len(listed) < limit

    def _is_to_send(self, job: str) -> bool:
        """Whether a thread may begin for the job, which it then counts as begun."""
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
            answer, error = Answer.UNAVAILABLE, str(missing)
        match answer:
            case Answer.TAKEN:
                self._pings.done(ping)
                return True
            case Answer.REFUSED:
                self._drop(ping, error)
                return True
            case Answer.UNAVAILABLE:
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
    """The fields of a log line, without the address, which is a secret."""
    return {"job": ping.job, "run": ping.run, "kind": ping.kind.value}
