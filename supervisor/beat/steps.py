"""What takes part in a turn of the beat that leads: explicit lists, in order.

1. **Emit.** Recover (recovery.py), so that a place that is free by now is taken; emit what is due
   (emitter.py); have RedBeat's own code emit its entries; and take over what the app's code saved
   as entries. The watermark of a job moves in the same function that admits its tick, and sends its
   message where the broker's queues are beside the ledger: a tick is dealt with once, whichever
   beat asks. A beat whose turns fail here resigns.
2. **Settle.** No tick waits for what comes next: this beat's presence, and the runs of this
   machine's workers that are gone; runs that follow others; what Celery has to send, or what has
   vanished; notices, pings and whatever else goes to other servers, from threads; the log.
3. **Follow.** What fills the time until the next tick: edits of schedule files and of other sources
   of jobs, which child processes read; the messages of edited jobs; runs of jobs with
   `run_at_start`, once the files are read; the audit; the summary of the day before.

A feature is a line or two here.
"""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery
from redbeat.schedulers import RedBeatScheduler

from supervisor.beat.admission_log import AdmissionLog
from supervisor.beat.emitter import Emitter
from supervisor.beat.job_messages import JobMessages
from supervisor.beat.presence import Presence
from supervisor.beat.publishing import Publishing
from supervisor.beat.recovery import Recovery
from supervisor.beat.redbeat_entries import RedBeatEntries
from supervisor.beat.reload import FollowedSources, Reloading
from supervisor.beat.turn import Step
from supervisor.catalog.entries import Entries
from supervisor.features import NoCheckIns, part
from supervisor.features.adoption.adopted import Adopted
from supervisor.features.audit.step import Auditor
from supervisor.features.following.step import Following, Starts
from supervisor.features.notices.step import FileNotices, Notices
from supervisor.features.outbound.pings import Pings
from supervisor.features.outbound.sender import Send
from supervisor.features.outbound.step import Revocations, Sending
from supervisor.features.outbound.store import Kind
from supervisor.features.summary.step import Summaries
from supervisor.ledger.leader import Leader
from supervisor.ledger.ledger import Ledger
from supervisor.sending.app_settings import owner_of, required_settings, schedules_of
from supervisor.sending.publisher import Publisher
from supervisor.worker.presence import broker_of


class Steps:
    """Raises NotConfigured for what the environment says wrongly of notices."""

    def __init__(
        self,
        app: Celery,
        ledger: Ledger,
        leader: Leader,
        scheduler: RedBeatScheduler,
        leads: Callable[[], bool],
    ) -> None:
        leadership, files = leader.leadership, schedules_of(app)
        self.entries = Entries(app, ledger)
        publisher = Publisher(app, ledger)
        self.log = AdmissionLog()
        self.reloading = Reloading(files, ledger, self.entries) if files else None
        self.sources = FollowedSources(ledger, self.entries)
        self.presence = Presence(
            ledger, broker_of(app, required_settings(app)), leader.instance, self.follows
        )
        # Features whose files may have been deleted.
        check_ins, counters = part("sentry", "CheckIns"), part("opentelemetry", "RunCounters")
        monitors = check_ins(ledger, owner_of(app)) if check_ins else NoCheckIns()
        self.run_counters = counters(ledger, leads) if counters else None

        self.redbeat_entries = RedBeatEntries(scheduler, self.entries)
        self.adopted = Adopted(
            app,
            ledger,
            self.entries,
            is_wanted=bool(app.supervisor["adopt_entries"]),  # type: ignore[attr-defined]
        )
        self.messages = JobMessages(app, ledger, publisher, monitors.monitored)
        self.starts = Starts(ledger)
        notices = Notices(ledger, leadership)
        senders: dict[Kind, Send] = {
            Kind.PING: Pings(ledger).send,
            Kind.REVOCATION: Revocations(app, ledger).send,
            Kind.NOTICE: notices.send,
        }
        if monitors.send:
            senders[Kind.CHECK_IN] = monitors.send

        self.emit: tuple[Step, ...] = (
            Recovery(ledger, self.entries, leadership),
            Emitter(ledger, self.entries, leadership, self.log, monitors.monitored),
            self.redbeat_entries,
            self.adopted,
        )
        self.settle: tuple[Step, ...] = (
            self.presence,
            Following(ledger, leadership),
            Publishing(app, ledger, publisher),
            notices,
            Sending(ledger, senders),
            self.log,
        )
        self.follow: tuple[Step, ...] = (
            *([self.reloading] if self.reloading else []),
            self.sources,
            self.messages,
            FileNotices(notices),
            self.starts,
            Auditor(ledger, self.entries.revive),
            Summaries(ledger, leadership),
        )

    def follows(self) -> str | None:
        """The digest of the schedule files that this beat has loaded."""
        return self.reloading.digest if self.reloading else None

    def stop(self) -> None:
        """This beat does not lead any more: whatever reads files or sources is ended."""
        if self.reloading:
            self.reloading.stop()
        self.sources.stop()
