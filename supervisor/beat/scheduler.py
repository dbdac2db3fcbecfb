"""The scheduler of Celery's beat that emits through the ledger.

A tick's path, step 1 of 6. Next: beat/emitter.py.

Celery calls `tick` about once a second, which is a turn of beat; a tick is a nominal time of a job:

1. Poll: take or extend the leader's lock, report that the last turn was done, and see what there is
   to do, all in one call, the only one of a turn with nothing to do. A beat that does not lead
   reports itself and the runs of dead workers, stands by and asks again a second later.
2. The steps of a turn (steps.py), each of which has something to do or not by the poll's reply.

Only a poll extends the leader's lock, once a turn: a beat that does not come to its next turn does
not lead, whatever it does instead. One whose turns fail, turn after turn, before they have emitted
and delivered resigns: another may be able to. A beat that hangs all the same, whatever the
time-outs of its calls, is ended by its watchdog.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from billiard.process import current_process
from celery import Celery, signals
from kombu.exceptions import OperationalError
from redbeat.schedulers import RedBeatScheduler, ensure_conf

from supervisor.beat.steps import TurnSteps
from supervisor.beat.turn import INTERVAL, Turn, TurnStep
from supervisor.beat.watchdog import Watchdog
from supervisor.catalog.entries import beat_schedule_of
from supervisor.errors import SupervisorError, WrongSchema
from supervisor.ledger.leader import LEADER_TTL, Poll
from supervisor.ledger.ledger import Ledger
from supervisor.lists.beat import PARTS
from supervisor.logs import get_logger
from supervisor.process import die_with_parent, reserve_closed_files
from supervisor.sending.app_settings import broker_apart, owner_of, required_settings
from supervisor.sending.queues import bound_broker_calls
from supervisor.store.failures import RedisError, ResponseError, explained
from supervisor.times import clock

log = get_logger("supervisor.beat")

#: A beat that is behind with ticks takes the steps that follow edits this often all the same: an
#: edit may be what ends the load.
FOLLOW_BEHIND = timedelta(seconds=2)

#: A leader that cannot emit and deliver for this long resigns. It asks for the lock again a little
#: later than the standbys, which ask each second.
RESIGN_AFTER = LEADER_TTL
STAND_BACK = timedelta(seconds=3)

#: No turn takes this long, whatever hangs: each call has a time-out.
HANGS_AFTER = timedelta(minutes=2)

#: Hint when the lock is held by a beat that is not ours, for example one of an earlier deployment.
LOCK_HINT = "no job starts until you stop that beat; it may be of a deployment without supervise()"


@signals.beat_embedded_init.connect(weak=False)
def end_with_worker(**_: Any) -> None:
    """For a beat within a worker (`-B`), which would survive it if the worker is killed.

    Celery has closed all files that the worker had open, and not told their objects: sys.stdin is
    one of them, which each fork closes again.
    https://github.com/celery/celery/blob/v5.4.0/celery/beat.py#L711
    """
    reserve_closed_files()
    die_with_parent()
    main = current_process()._parent_pid  # type: ignore[attr-defined]
    if main and os.getppid() != main:  # it was gone already
        raise SystemExit


class SupervisedScheduler(RedBeatScheduler):  # type: ignore[misc]
    """Any number of beats run it; the one that leads emits."""

    max_interval = int(INTERVAL.total_seconds())

    def __init__(self, app: Celery, **kwargs: Any) -> None:
        try:
            self._prepare(app, **kwargs)
        except SupervisorError as error:  # Celery would print where it comes from
            raise SystemExit(str(error)) from None

    def _prepare(self, app: Celery, **kwargs: Any) -> None:
        settings = required_settings(app)
        if apart := broker_apart(app, settings):
            log.warning("broker apart from the ledger", what=apart)
        bound_broker_calls(app)
        # RedBeat's static entries are written by the beat that leads, not by each that starts.
        super().__init__(app, **{**kwargs, "lazy": True})
        self._ledger = Ledger.open(settings)
        conf = ensure_conf(app)
        # Apps that had one beat only set `redbeat_lock_key` to None.
        lock = conf.lock_key or f"{conf.key_prefix}:lock"
        self._leader = self._ledger.leader(lock, conf.schedule_key, owner_of(app))
        # RedBeat would take the lock for itself when beat starts, and die when it loses it.
        self.lock_key = None
        self._steps = TurnSteps(app, self._ledger, self._leader, self, PARTS)
        self._leads: bool | None = None
        self._led_at = self._followed_at = 0.0
        self._last_turn_at: datetime | None = None
        #: It leads, and has not emitted and delivered in this turn.
        self._is_unfinished = False
        self._has_begun = False
        self._failing_since: float | None = None
        self._watchdog: Watchdog | None = None

    def setup_schedule(self) -> None:
        """Enters `beat_schedule` and removes what has left it, except for what is a job by now."""
        self._steps.entries.take_from_static()
        ensure_conf(self.app).schedule = beat_schedule_of(self.app)
        super().setup_schedule()

    def update_from_dict(self, dict_: dict[str, Any]) -> None:
        store = partial(self._steps.redbeat_entries.store, update=super().update_from_dict)
        for name in dict_.keys() - self._steps.entries.jobs_among(dict_):
            store(name, dict_[name])

    def tick(self, *_: Any, **__: Any) -> float:
        """Seconds until the next turn. While the server is unavailable, turns are tried again.

        Raises WrongSchema and ForeignLedger, which end beat.
        """
        self._watched().feed()
        self._is_unfinished = False
        try:
            return self._turn()
        except (RedisError, OperationalError, OSError) as error:
            self._report(error)
            self._steps.log.write_some()
            self._led_at = 0.0  # so that files edited meanwhile are read first
            return (self._resign_if_failing() if self._is_unfinished else INTERVAL).total_seconds()

    def _resign_if_failing(self) -> timedelta:
        """The time until the next turn. Another beat may be able to do what this one cannot."""
        self._failing_since = self._failing_since or clock()
        if clock() - self._failing_since < RESIGN_AFTER.total_seconds():
            return INTERVAL
        self._failing_since, self._leads = None, False
        log.error("leadership resigned", instance=self._leader.instance, reason="turns fail")
        with suppress(RedisError, WrongSchema):
            self._leader.resign()
        return STAND_BACK

    def _report(self, error: Exception) -> None:
        """Logs it, and writes it into the beat's presence if the server answers but refuses."""
        text = explained(error) if isinstance(error, RedisError) else str(error)
        log.error("turn failed", error=text)
        if isinstance(error, ResponseError):
            with suppress(RedisError, WrongSchema):
                self._steps.presence.report_fault(text)

    def close(self) -> None:
        if self._watchdog:
            self._watchdog.stop()
        self._steps.stop()
        try:
            self._leader.resign()
            self._steps.presence.leave()
        except (RedisError, WrongSchema) as error:
            log.warning("leadership not resigned", error=str(error))
        self._steps.log.write_all()
        super().close()

    def _watched(self) -> Watchdog:
        """Started with the first turn: Celery's banner makes a scheduler that never ticks."""
        if self._watchdog is None:
            self._watchdog = Watchdog(HANGS_AFTER.total_seconds())
            self._watchdog.start()
        return self._watchdog

    def _turn(self) -> float:
        if not self._has_begun:
            self._ledger.check_schema()
            self._ledger.functions.forget_other_versions()
            self._has_begun = True
        poll, steps = self._poll(), self._steps
        if not poll.leads:
            steps.presence.report(leads=False)
            steps.presence.has_no_fault()
            self._failing_since = None
            steps.log.write_some()
            return INTERVAL.total_seconds()
        turn = Turn(poll)
        take(steps.emit, turn)
        take_each(steps.deliver, turn)
        self._last_turn_at = poll.at
        self._is_unfinished, self._failing_since = False, None
        steps.presence.has_no_fault()
        if not turn.has_more or clock() - self._followed_at >= FOLLOW_BEHIND.total_seconds():
            self._followed_at = clock()
            take_each(steps.follow, turn)
        return max(0.0, turn.seconds_left)

    def _poll(self) -> Poll:
        """What there is to do, for the beat that leads."""
        last_turn_at, self._last_turn_at = self._last_turn_at, None
        poll = self._trusted(self._leader.poll(last_turn_at, self._steps.follows()))
        self._is_unfinished = poll.leads
        # Also where no beat could lead meanwhile: the ledger was unavailable, this process stopped.
        begins = not self._leads or clock() - self._led_at > LEADER_TTL.total_seconds()
        if poll.leads != self._leads:
            log.info(
                "leadership taken" if poll.leads else "leadership held elsewhere",
                instance=self._leader.instance,
            )
            if poll.is_held_by_redbeat:
                log.warning(
                    "lock held by RedBeat's own scheduler",
                    lock=self._leader.leadership.key,
                    hint=LOCK_HINT,
                )
        if poll.leads and begins:
            poll = self._trusted(self._begin(poll))
        if not poll.leads:
            self._steps.stop()
        self._leads, self._led_at = poll.leads, clock()
        return poll

    def _trusted(self, poll: Poll) -> Poll:
        """The poll, taken again if its reply came late: another beat may lead by now."""
        if not poll.leads or poll.is_trusted:
            return poll
        now = self._leader.poll(follows=self._steps.follows())
        return replace(now, leads=now.leads and now.is_trusted)

    def _begin(self, poll: Poll) -> Poll:
        steps = self._steps
        self.setup_schedule()
        steps.begin(poll.at, is_first=self._leads is None)
        if steps.reloading is None:
            return poll
        steps.reloading.begin(poll.at)
        # To read many files takes seconds of the lock, which another beat may have by now. What was
        # due before is emitted as of then.
        now = self._leader.poll(follows=steps.follows())
        return replace(now, at=poll.at, began=poll.began)


def take(steps: Iterable[TurnStep], turn: Turn) -> None:
    for step in steps:
        if step.is_due(turn):
            step.do(turn)


def take_each(steps: Iterable[TurnStep], turn: Turn) -> None:
    """Also those after one that the server refuses, which is raised at the end."""
    refusal: ResponseError | None = None
    for step in steps:
        try:
            take((step,), turn)
        except ResponseError as error:
            refusal = refusal or error
    if refusal:
        raise refusal
