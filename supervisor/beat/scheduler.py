"""The scheduler of Celery's beat that emits through the ledger.

A tick's path, step 1 of 6. Next: beat/emitter.py.

Celery calls `tick` about once a second, which is a turn of beat; a tick is a nominal time of a job:

1. Look: take or extend the leader's lock, report that the last turn was done, and see what there is
   to do, all in one call, the only one of a turn with nothing to do. A beat that does not lead
   reports itself and the runs of dead workers, stands by and asks again a second later.
2. Recover: silent leases, due retries and re-queues, forgotten waiters, a clock that was set back.
3. Emit: load the entries that are due, compute the nominal ticks of each since its watermark, admit
   all of them, and write when each is next due (emitter.py). The watermark moves in the same
   function: a tick is dealt with once, whichever beat asks. Where the broker's queues are beside
   the ledger, the function sends the message too. No tick waits for what comes next: the beat
   reports itself, and the runs of this machine's workers that are gone (guard/liveness.py).
4. Follow: admit, release or skip the runs that follow those that have ended (following.py).
5. Publish the outbox: what was just admitted and not sent yet, what rescue brought back, what a
   worker that died could not hand over. A crash or a broker's error before this point leaves it
   there. Publish again messages that vanished, and take those of ended runs out of their queues.
6. Notify: make notices of what happened to jobs (notices.py), and send them, starts and ends of
   runs and revocations to other servers (outbound.py), all from threads.
7. Reload: if schedule files changed, or the ledger holds another set than the files, have a child
   process read them, and load the difference in the first turn after that; edits take effect then.
   Other sources of jobs, such as a table of Django's, are asked now and then (reload.py).
8. Start: with the first turns of the service, runs of jobs with `run_at_start` (following.py).
9. Audit some of the jobs while no tick is due: each nominal time was counted once and has an
   outcome.

Only a look extends the leader's lock, once a turn: a beat that does not come to its next turn does
not lead, whatever it does instead. One whose turns fail before they have emitted resigns. A beat
that hangs all the same, whatever the time-outs of its calls, is ended by its watchdog.

Entries that are none of ours (`beat_schedule`, other programs) are emitted by RedBeat's
own code, unguarded, as before, unless they are made jobs (adopted.py).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from billiard.process import current_process
from celery import Celery, signals
from kombu.exceptions import OperationalError
from redbeat.schedulers import RedBeatScheduler, ensure_conf

from supervisor.beat.emitter import Emitted, Emitter, note_rescue
from supervisor.beat.job_messages import JobMessages
from supervisor.beat.queued_messages import Sweeper, VanishedMessages
from supervisor.beat.reload import FollowedSources, Reloading
from supervisor.catalog.entries import Entries, beat_schedule_of, for_redbeat
from supervisor.errors import SupervisorError, WrongSchema
from supervisor.features import NoCheckIns, part
from supervisor.features.adoption.adopted import Adopted
from supervisor.features.adoption.django_rows import Rows, forget_rows
from supervisor.features.audit.step import Auditor
from supervisor.features.following.step import Following, Starts
from supervisor.features.notices.step import Notices
from supervisor.features.outbound.services import missing_extra
from supervisor.features.outbound.step import outbound_of
from supervisor.guard.liveness import Witness
from supervisor.job.changes import register
from supervisor.job.spec import JobSpec
from supervisor.ledger.functions import RUNS_PER_DISMISSAL
from supervisor.ledger.leader import LEADER_TTL, Look
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import PRESENCE_INTERVAL, Attendance, BeatFacts
from supervisor.ledger.records import REDBEAT
from supervisor.logs import get_logger
from supervisor.process import die_with_parent, reserve_closed_files
from supervisor.schedule import schedule_of
from supervisor.sending.app_settings import broker_apart, owner_of, required_settings, schedules_of
from supervisor.sending.publisher import Publisher
from supervisor.sending.queues import bound_broker_calls
from supervisor.store.connection import RedisError, ResponseError, explained
from supervisor.times import clock
from supervisor.worker.presence import broker_of

log = get_logger("supervisor.beat")


#: EX_SOFTWARE of sysexits.h.
EXIT_STATUS = 70


class Watchdog(threading.Thread):
    """Ends a process that hangs, so that whatever supervises it starts it again.

    Feed it more often than every `limit_seconds`. Only seconds in which the process is awake count:
    one that was frozen, or slept with its machine, has all of its time again when it wakes up.
    """

    def __init__(
        self, limit_seconds: float, bite: Callable[[], None] = lambda: os._exit(EXIT_STATUS)
    ) -> None:
        super().__init__(name="supervisor-watchdog", daemon=True)
        self._limit = limit_seconds
        self._bite = bite
        self._hunger = 0.0
        self._stopped = threading.Event()

    def feed(self) -> None:
        self._hunger = 0.0

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def run(self) -> None:
        step = min(5.0, self._limit / 10)
        while not self._stopped.wait(step):
            # A step that took much longer was not a time in which the process could have worked.
            self._hunger += step
            if self._hunger > self._limit:
                log.critical("hanging process ended", seconds=self._hunger)
                self._bite()
                return


#: Beat looks at the ledger at least this often, whether entries are due or not.
INTERVAL = timedelta(seconds=1)

#: The interval while schedule files change or are being read.
RELOAD_INTERVAL = timedelta(seconds=0.2)

#: A beat that is behind with ticks looks at changed files this often all the same: an edit may be
#: what ends the load.
RELOAD_BEHIND = timedelta(seconds=2)

#: A leader that cannot emit for this long resigns. It asks for the lock again a little later than
#: the standbys, which ask each second.
RESIGN_AFTER = LEADER_TTL
STAND_BACK = timedelta(seconds=3)

#: No turn takes this long, whatever hangs: each call has a time-out.
HANGS_AFTER = timedelta(minutes=2)

#: Hint when the lock is held by a beat that is not ours, for example one of an earlier deployment.
LOCK_HINT = "no job starts until you stop that beat; it may be of a deployment without supervise()"

#: Hint for an entry of `beat_schedule` that RedBeat cannot store.
NOT_STORED = "no beat emits it; pass it what JSON can hold, or make a job of it"

#: To audit a few jobs takes less than this. Beat audits more of them only if it has this long.
AUDIT_SECONDS = 0.02

RUNS_PER_PUBLISH = 500

#: For how long a turn goes on with that. A broker that is elsewhere takes one message at a time: a
#: turn that sends thousands must not outlive the leader's lock.
PUBLISHING_SECONDS = 2.0

#: With so many runs rescued, the others are left for the next turn.
RESCUES_PER_TURN = 4_000


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
    if os.getppid() != main:  # it was gone already
        raise SystemExit


class SupervisedScheduler(RedBeatScheduler):  # type: ignore[misc]
    """Any number of beats run it; the one that leads emits."""

    max_interval = int(INTERVAL.total_seconds())

    def __init__(self, app: Celery, **kwargs: Any) -> None:
        try:
            settings = required_settings(app)
        except SupervisorError as error:  # Celery would print where it comes from
            raise SystemExit(str(error)) from None
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
        self._leads: bool | None = None
        self._led_at = self._reloaded_at = 0.0
        self._last_turn_at: datetime | None = None
        self._entries = Entries(app, self._ledger)
        self._publisher = Publisher(app, self._ledger)
        check_ins, run_counters = part("sentry", "CheckIns"), part("opentelemetry", "RunCounters")
        self._check_ins = check_ins(self._ledger, owner_of(app)) if check_ins else NoCheckIns()
        self._run_counters = run_counters and run_counters(self._ledger, lambda: bool(self._leads))
        self._emitter = Emitter(
            self._ledger,
            self._entries,
            self._leader.leadership,
            self._check_ins.monitored,
        )
        self._messages = JobMessages(app, self._ledger, self._publisher, self._check_ins.monitored)
        self._following = Following(self._ledger, self._leader.leadership)
        self._starts = Starts(self._ledger)
        self._vanished = VanishedMessages(app, self._ledger)
        self._sweeper = Sweeper(app, self._ledger)
        try:
            self._notices = Notices(self._ledger, self._leader.leadership)
        except SupervisorError as error:
            raise SystemExit(str(error)) from None
        self._outbound = outbound_of(app, self._ledger, self._notices, self._check_ins.send)
        self._auditor = Auditor(self._ledger, self._revive)
        adopts = bool(app.supervisor["adopt_entries"])  # type: ignore[attr-defined]
        self._adopted = Adopted(app, self._ledger, self._entries, is_wanted=adopts)
        self._attendance = Attendance(
            self._ledger.client, self._ledger.keys, broker_of(app, settings)
        )
        self._witness = Witness(self._ledger)
        self._next_presence = 0.0
        self._fault: str | None = None
        self._is_extra_known = False
        self._is_emitting = False
        self._failing_since: float | None = None
        self._has_begun = False
        self._watchdog: Watchdog | None = None
        files = schedules_of(app)
        self._reloading = Reloading(files, self._ledger, self._entries) if files else None
        self._adopts_rows = bool(app.supervisor["adopt_rows"])  # type: ignore[attr-defined]
        if self._adopts_rows:
            register(Rows(app))
        self._sources = FollowedSources(self._ledger, self._entries)

    def setup_schedule(self) -> None:
        """Enters `beat_schedule` and removes what has left it, except for what is a job by now."""
        self._entries.take_from_static()
        ensure_conf(self.app).schedule = beat_schedule_of(self.app)
        super().setup_schedule()

    def update_from_dict(self, dict_: dict[str, Any]) -> None:
        """An entry that RedBeat cannot store costs itself only. What it was before goes too."""
        taken = self._entries.jobs_among(dict_)
        for name in dict_.keys() - taken:
            try:
                super().update_from_dict({name: for_redbeat(dict_[name])})
            except (RedisError, OSError):
                raise
            except Exception as error:  # noqa: BLE001 - objects of the app
                log.error("entry not stored", entry=name, reason=repr(error), hint=NOT_STORED)
                self.Entry(name, app=self.app).delete()

    def tick(self, *_: Any, **__: Any) -> float:
        """Seconds until the next turn. While the server is unavailable, turns are tried again.

        Raises WrongSchema and ForeignLedger, which end beat.
        """
        self._watched().feed()
        self._is_emitting = False
        try:
            return self._turn()
        except (RedisError, OperationalError, OSError) as error:
            self._report(error)
            self._emitter.log_some()
            self._led_at = 0.0  # so that files edited meanwhile are read first
            return (self._resign_if_failing() if self._is_emitting else INTERVAL).total_seconds()

    def _resign_if_failing(self) -> timedelta:
        """The time until the next turn. Another beat may be able to emit what this one cannot."""
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
        if not isinstance(error, ResponseError):
            return
        if self._fault is None:
            self._next_presence = 0.0
        self._fault = text
        with suppress(RedisError, WrongSchema):
            self._report_presence()

    def close(self) -> None:
        if self._watchdog:
            self._watchdog.stop()
        self._stop_reading()
        try:
            self._leader.resign()
            self._attendance.leave()
        except (RedisError, WrongSchema) as error:
            log.warning("leadership not resigned", error=str(error))
        while self._emitter.log_some():
            pass
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
            self._ledger.forget_other_versions()
            self._has_begun = True
        look = self._look()
        if not look.leads:
            self._report_presence()
            self._witness.look()
            self._fault = self._failing_since = None
            self._emitter.log_some()
            return INTERVAL.total_seconds()
        self._recover(look)
        emitted = self._emit(look)
        self._report_presence()
        self._witness.look()
        if look.has_endings:
            self._following.deal_with_endings()
        is_published = self._publish(look)
        self._notify(look)
        self._last_turn_at, self._fault = look.at, None
        is_behind = not (emitted.is_complete and is_published) or self._emitter.log_some()
        if is_behind and clock() - self._reloaded_at < RELOAD_BEHIND.total_seconds():
            return 0.0
        self._reloaded_at, interval = clock(), self._reload(look)
        if not self._messages.make_some(look) or is_behind:
            return 0.0
        self._finish_start()
        times = (look.next_due, emitted.next_at, look.at + interval)
        soonest = min(at for at in times if at is not None)
        self._auditor.audit_some(look.at, lambda: look.seconds_until(soonest) > AUDIT_SECONDS)
        return max(0.0, look.seconds_until(soonest))

    def _look(self) -> Look:
        """What there is to do, for the beat that leads."""
        last_turn_at, self._last_turn_at = self._last_turn_at, None
        look = self._trusted(self._leader.look(last_turn_at, self._follows))
        self._is_emitting = look.leads
        # Also where no beat could lead meanwhile: the ledger was unavailable, this process stopped.
        begins = not self._leads or clock() - self._led_at > LEADER_TTL.total_seconds()
        if look.leads != self._leads:
            log.info(
                "leadership taken" if look.leads else "leadership held elsewhere",
                instance=self._leader.instance,
            )
            self._next_presence = 0.0
            if look.is_held_by_redbeat:
                log.warning(
                    "lock held by RedBeat's own scheduler",
                    lock=self._leader.leadership.key,
                    hint=LOCK_HINT,
                )
        if look.leads and begins:
            look = self._trusted(self._begin(look))
        if not look.leads:
            self._stop_reading()
        self._leads, self._led_at = look.leads, clock()
        return look

    def _stop_reading(self) -> None:
        if self._reloading:
            self._reloading.stop()
        self._sources.stop()

    def _trusted(self, look: Look) -> Look:
        """The look, taken again if its reply came late: another beat may lead by now."""
        if not look.leads or look.is_trusted:
            return look
        now = self._leader.look(follows=self._follows)
        return replace(now, leads=now.leads and now.is_trusted)

    def _begin(self, look: Look) -> Look:
        if self._run_counters:
            self._run_counters.begin()
        self._starts.begin(look.at, is_first=self._leads is None)
        self.setup_schedule()
        self._adopted.begin()
        if not self._adopts_rows:
            forget_rows(self._ledger, self._entries)
        self._sources.look_soon()
        self._messages.begin()
        if self._reloading is None:
            return look
        self._reloading.begin(look.at)
        # To read many files takes seconds of the lock, which another beat may have by now. What was
        # due before is emitted as of then.
        now = self._leader.look(follows=self._follows)
        return replace(now, at=look.at, began=look.began)

    def _report_presence(self) -> None:
        """Called in the turn, not from a thread: a beat that hangs is not present."""
        if time.monotonic() >= self._next_presence:
            self._attendance.say(self._facts(), fault=self._fault)
            self._next_presence = time.monotonic() + PRESENCE_INTERVAL.total_seconds()

    @property
    def _follows(self) -> str | None:
        return self._reloading.digest if self._reloading else None

    def _facts(self) -> BeatFacts:
        return BeatFacts(self._leader.instance, bool(self._leads), self._follows)

    def _recover(self, look: Look) -> None:
        if look.set_back:
            self._go_on_from(look)
        if look.to_rescue:
            self._rescue()

    def _go_on_from(self, look: Look) -> None:
        """After a set-back of the server's clock, from which all times of the ledger come.

        If it fails on the way, it is done again, by whichever beat leads then.
        """
        log.error("server clock set back", seconds=look.set_back.total_seconds())
        specs = self._ledger.scheduled()
        ahead = self._ledger.ahead(specs)
        next_at = {name: schedule_of(specs[name]).next_after(look.at) for name in ahead}
        self._entries.reschedule(next_at)
        self._ledger.go_on_from_now(look.set_back, ahead)

    def _rescue(self) -> None:
        number = 0
        while number < RESCUES_PER_TURN:
            rescued = self._ledger.rescue(leadership=self._leader.leadership)
            for rescue in rescued:
                note_rescue(rescue)
            if len(rescued) < RUNS_PER_DISMISSAL:
                return
            number += len(rescued)

    def _emit(self, look: Look) -> Emitted:
        emitted = self._emitter.emit(look.at) if look.has_due else Emitted()
        emitted.stock_next_at = self._emit_stock(emitted.stock, look)
        if self._adopted.is_wanted:
            self._adopted.record(emitted.emissions)
            self._adopted.follow()
        self._is_emitting, self._failing_since = False, None
        return emitted

    def _emit_stock(self, keys: Iterable[str], look: Look) -> datetime | None:
        """Has RedBeat's own code emit the entries that are not ours. Returns when one is next due.

        Their scores are whole seconds: an entry found by its score may be due a part of a second
        later.
        """
        next_at: list[datetime] = []
        has_unknown_job = False
        for key in keys:
            # No function of the ledger looks at the lock again. What is left, the next leader
            # emits.
            if not look.is_trusted:
                break
            try:
                if self._entries.is_of_a_ledger(key):
                    has_unknown_job = True
                    continue
                entry = self.Entry.from_key(key, app=self.app)
                if seconds := self.maybe_due(entry, producer=self.producer):
                    next_at.append(look.moment_in(seconds))
            except KeyError:
                self._entries.forget(key)
            except Exception:  # one bad entry must not stop the others
                log.exception("entry not emitted", entry=key)
        if has_unknown_job:  # `supervisor apply` may have given an entry's place to a job
            self._entries.learn_names()
        return min(next_at, default=None)

    def _publish(self, look: Look) -> bool:
        """Returns whether the next turn may wait, because the outbox has no more to send now."""
        is_complete = True
        if look.to_rescue or look.has_due or look.has_outbox or look.has_endings:
            is_complete = self._publish_outbox()
        if look.has_sent:
            until = time.monotonic() + PUBLISHING_SECONDS
            self._publisher.publish(self._vanished.to_resend(look.at), until)
        if look.has_leftovers or self._sweeper.queue:
            self._sweeper.sweep()
        return is_complete

    def _publish_outbox(self) -> bool:
        until = time.monotonic() + PUBLISHING_SECONDS
        while run_ids := self._ledger.outbox(RUNS_PER_PUBLISH):
            sent = self._publisher.publish(run_ids, until)
            if time.monotonic() > until:
                return False
            if sent < RUNS_PER_PUBLISH:
                return True
        return True

    def _notify(self, look: Look) -> None:
        self._notices.look(look)
        if look.has_outbound:
            self._outbound.look(look.at)

    def _revive(self, spec: JobSpec, watermark: datetime) -> None:
        """Restores the entry of a job that RedBeat's schedule has lost, unless it is the app's."""
        if self._ledger.loaded([spec.name]).origins[spec.name].source == REDBEAT:
            return
        log.warning("entry restored", job=spec.name)
        with self._ledger.client.pipeline(transaction=True) as pipe:
            self._entries.write(pipe, spec, schedule_of(spec).next_after(watermark))
            pipe.execute()

    def _reload(self, look: Look) -> timedelta:
        """Returns how long the next turn may wait."""
        self._sources.follow()
        if self._reloading is None:
            return INTERVAL
        self._reloading.reload(look.at, look.loaded)
        if self._reloading.is_settled:
            self._notices.tell_of_files(self._reloading.problems)
        return RELOAD_INTERVAL if self._reloading.is_busy else INTERVAL

    def _finish_start(self) -> None:
        """Starts the service: with the files' jobs or, if those are broken, with what is loaded."""
        if self._reloading is not None and not self._reloading.is_settled:
            return
        if self._starts.at:
            self._starts.finish()
            self._publish_outbox()
        if not self._is_extra_known:
            self._is_extra_known = True
            if missing := missing_extra(self._notices.destinations()):
                log.warning("notices not sent", reason=missing)
