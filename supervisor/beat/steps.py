"""What takes part in a turn of the beat that leads: explicit lists, in order.

1. **Emit.** Recover (recovery.py), so that a place that is free by now is taken; emit what is due
   (emitter.py); have RedBeat's own code emit its entries; take over what the app's code saved as
   entries; and admit runs that follow others. The watermark of a job moves in the same function
   that admits its tick, and sends its message where the broker's queues are beside the ledger: a
   tick is dealt with once, whichever beat asks. The first step that fails ends the turn.
2. **Deliver.** No tick waits for what comes next: this beat's presence, and the runs of this
   machine's workers that are gone; what Celery has to send, or what has vanished; notices, pings
   and whatever else goes to other servers, from threads; the log. A step that the server refuses
   does not keep the others from their work, here and below. Then the turn is done: a beat that
   does not come that far for some seconds resigns.
3. **Follow.** What fills the time until the next tick: edits of schedule files and of other sources
   of jobs, which child processes read; the messages of edited jobs; runs of jobs with
   `run_at_start`, once the files are read; the audit; the summary of the day before.

Features add their steps after the core's; `supervisor/lists/beat.py` says which there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from celery import Celery
from redbeat.schedulers import RedBeatScheduler

from supervisor.beat.admission_log import AdmissionLog
from supervisor.beat.emitter import Emitter
from supervisor.beat.job_messages import JobMessages
from supervisor.beat.presence import Presence
from supervisor.beat.publishing import Publishing
from supervisor.beat.recovery import Recovery
from supervisor.beat.redbeat_entries import RedBeatEntries
from supervisor.beat.reload import Reloading
from supervisor.beat.service_starts import ServiceStarts
from supervisor.beat.sources import FollowedSources
from supervisor.beat.turn import BeatContext, Part, TurnStep
from supervisor.catalog.entries import Entries
from supervisor.job.spec import JobSpec
from supervisor.ledger.leader import Leader
from supervisor.ledger.ledger import Ledger
from supervisor.sending.app_settings import required_settings, schedules_of
from supervisor.sending.publisher import Publisher
from supervisor.sending.queues import broker_of

MakePart = Callable[[BeatContext], Part]


class TurnSteps:
    """Raises NotConfigured for what the environment says wrongly of a feature."""

    def __init__(
        self,
        app: Celery,
        ledger: Ledger,
        leader: Leader,
        scheduler: RedBeatScheduler,
        make_parts: Iterable[MakePart],
    ) -> None:
        files, ledger = schedules_of(app), ledger.led_by(leader.leadership)
        self.entries = Entries(app, ledger)
        beat = BeatContext(app, ledger, self.entries)
        self._parts = tuple(make(beat) for make in make_parts)
        self.log = AdmissionLog()
        self.reloading = Reloading(files, ledger, self.entries) if files else None
        self.sources = FollowedSources(ledger, self.entries)
        self.starts = ServiceStarts(ledger)
        broker = broker_of(app, required_settings(app))
        self.presence = Presence(ledger, broker, leader.instance)
        self.redbeat_entries = RedBeatEntries(scheduler, self.entries)
        publisher = Publisher(app, ledger)
        self.messages = JobMessages(app, ledger, publisher.sender, self._as_admitted)
        self.emit: tuple[TurnStep, ...] = (
            Recovery(ledger, self.entries),
            Emitter(ledger, self.entries, self.log, self._as_admitted),
            self.redbeat_entries,
            *(step for part in self._parts for step in part.emit),
        )
        self.deliver: tuple[TurnStep, ...] = (
            self.presence,
            Publishing(app, ledger, publisher),
            *(step for part in self._parts for step in part.deliver),
            self.log,
        )
        self.follow: tuple[TurnStep, ...] = (
            *([self.reloading] if self.reloading else []),
            self.sources,
            self.messages,
            self.starts,
            *(step for part in self._parts for step in part.follow),
        )

    def begin(self, at: datetime, *, is_first: bool) -> None:
        """This beat takes the lead. is_first: it has neither led nor stood by before."""
        self.entries.learn_names()
        self.starts.begin(at, is_first)
        for part in self._parts:
            if part.begin:
                part.begin(at, is_first)
        self.sources.reconcile_soon()
        self.messages.begin()

    def _as_admitted(self, spec: JobSpec) -> JobSpec:
        for part in self._parts:
            if part.as_admitted:
                spec = part.as_admitted(spec)
        return spec

    def follows(self) -> str | None:
        """The digest of the schedule files that this beat has loaded."""
        return self.reloading.digest if self.reloading else None

    def stop(self) -> None:
        """This beat does not lead any more: whatever reads files or sources is ended."""
        if self.reloading:
            self.reloading.stop()
        self.sources.stop()
