"""Has Celery make the messages of jobs, which the ledger sends from then on (sending/templates.py).

1. A beat that takes the lead makes those of all jobs: code or settings may have changed. Where the
   ledger has older ones, runs are sent with these meanwhile.
2. An edit of a job takes its messages out of the ledger. They are made again at the end of a turn;
   until then Celery makes each message of its runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from celery import Celery

from supervisor.beat.turn import Turn
from supervisor.job.spec import JobSpec
from supervisor.ledger.leader import Poll
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.sending.queues import UNAVAILABLE
from supervisor.sending.recording import Recording
from supervisor.sending.sender import Sender
from supervisor.sending.templates import CANNOT_BE_MADE, ELSEWHERE, messages_of

#: For how long a turn makes messages while nothing is due: about a hundred.
MAKING_SECONDS = 0.05

#: Jobs that one call of the ledger is for.
JOBS_PER_CALL = 50

log = get_logger("supervisor.beat")


class JobMessages:
    """as_admitted: a job as its ticks are admitted."""

    def __init__(
        self,
        app: Celery,
        ledger: Ledger,
        sender: Sender,
        as_admitted: Callable[[JobSpec], JobSpec],
    ) -> None:
        self._app = app
        self._ledger = ledger
        self._sender = sender
        self._as_admitted = as_admitted
        self._version: int | None = None
        self._to_make: list[str] = []

    def begin(self) -> None:
        """All are to be made: this beat has taken the lead."""
        self._version = None

    def is_due(self, turn: Turn) -> bool:
        return bool(self._to_make) or turn.poll.version != self._version

    def do(self, turn: Turn) -> None:
        turn.has_more |= not self.make_some(turn.poll)

    def make_some(self, poll: Poll) -> bool:
        """Returns whether all are made that are to be."""
        if self._version is None:
            self._to_make = self._ledger.scheduled_names()
        elif poll.version != self._version:
            self._to_make += sorted(self._ledger.edited_since(self._version) - {*self._to_make})
        self._version = poll.version
        until = time.monotonic() + MAKING_SECONDS
        while self._to_make and time.monotonic() < until:
            some, rest = self._to_make[:JOBS_PER_CALL], self._to_make[JOBS_PER_CALL:]
            try:
                self._make(some)
            except UNAVAILABLE as error:
                log.warning("messages of jobs not made", jobs=len(self._to_make), error=str(error))
                return True
            self._to_make = rest
        return not self._to_make

    def _make(self, names: list[str]) -> None:
        loaded = self._ledger.loaded(names)
        self._sender.forget_channel()
        channel = self._sender.channel_beside
        recording = Recording(self._app, channel) if channel else None
        made = {
            name: self._made(spec, recording) if recording else {"apart": ELSEWHERE}
            for name, spec in loaded.specs.items()
        }
        versions = {name: loaded.origins[name].version for name in made}
        self._ledger.keep_messages({name: (versions[name], made[name]) for name in made})

    def _made(self, spec: JobSpec, recording: Recording) -> dict[str, str]:
        changes: list[str] = []
        send = partial(self._sender.send, note=changes.append)
        try:
            fields = messages_of(self._app, recording, self._as_admitted(spec), send)
        except UNAVAILABLE:
            raise
        except Exception as error:  # noqa: BLE001 - of the app's own code, or of the arguments
            return {"apart": f"{CANNOT_BE_MADE}{error}"}
        return {"apart": "the app's own code changes it"} if changes else fields
