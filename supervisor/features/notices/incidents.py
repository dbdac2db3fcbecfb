"""From events of jobs to notices: what is sent at once, together, later, or not again. Pure.

For each destination:

1. **Group.** Events of one kind and cause are one notice. The first waits GROUP_WAIT for others;
   after a notice, the next of its group comes GROUP_INTERVAL later at the earliest.
2. **Repeat.** One kind of event of a job is sent once in REPEAT. What happens sooner joins the
   notice that is not sent yet, or stays unsent, counted, until REPEAT is over.
3. **Resolve.** A success after a problem ends the incident: it is sent after the problem was, with
   how often that happened meanwhile. Nothing is sent where the next failure comes before that.
   Where the problem is unsent, because one was sent within REPEAT, both wait.
4. **Silence.** While notices of a job are silenced (silences.py), what happens stays unsent. A
   success ends it, as it ends an incident that was sent before; nothing is sent of either. What is
   unsent when the silence ends is sent. A notice that was made before the silence began is sent.

The words are Alertmanager's: groups, GROUP_WAIT, GROUP_INTERVAL, repeats, silences, firing. It has
none for an Incident, which is a job at one destination, whatever its events. Incidents, and the
groups of each destination, are kept in the ledger (features/notices/store.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from supervisor.features.notices.keys import Destination, Event
from supervisor.features.notices.rules import JOBS_NAMED, SERVICE_TITLES, WORDS, Notice, cause_of
from supervisor.features.outbound.store import due_at

#: By default; SUPERVISOR_NOTIFY_WAIT says another.
GROUP_WAIT = timedelta(seconds=30)
GROUP_INTERVAL = timedelta(minutes=5)
REPEAT = timedelta(hours=1)

NEVER = datetime.min.replace(tzinfo=UTC)

#: Ids of notices differ by milliseconds.
LATER = timedelta(milliseconds=1)

#: A problem that has had no success for this long after it was sent is forgotten.
FORGET_AFTER = timedelta(days=7)

#: Events that a success does not end.
WITHOUT_END = frozenset({Event.OVERLAPPED, Event.RECOVERED, Event.DAILY})


class Occurrences(BaseModel):
    """How often something happened, and what its last reason was. A success counts as none."""

    model_config = ConfigDict(frozen=True)

    first_at: datetime
    last_at: datetime
    runs: int = 1
    run: str = ""
    reason: str = ""

    def and_then(self, later: Occurrences) -> Occurrences:
        return later.model_copy(
            update={
                "first_at": min(self.first_at, later.first_at),
                "last_at": max(self.last_at, later.last_at),
                "runs": self.runs + later.runs,
            }
        )


#: In place of a job's name.
SERVICE = ""


@dataclass(frozen=True, slots=True)
class JobEvent:
    job: str
    """Its name, or SERVICE for the service itself."""

    event: Event
    occurrences: Occurrences


class PendingNotice(BaseModel):
    """A notice that collects jobs, or waits for its destination."""

    model_config = ConfigDict(frozen=True)

    url: str = Field(repr=False)
    """The destination's, as the job's file has it; '' for one of SUPERVISOR_NOTIFY."""

    secret: str | None = Field(default=None, repr=False)
    """The destination's, as the job's file has it."""

    event: Event

    subject: str
    """Kind and cause, such as ``failed:KeyError``; of a recovery those of the problem."""

    due_at: datetime
    """When it is to be sent."""

    occurrences: Occurrences
    jobs: tuple[str, ...] = ()
    job_count: int = 0

    @property
    def group(self) -> str:
        return f"recovered:{self.subject}" if self.event is Event.RECOVERED else self.subject

    @property
    def id(self) -> str:
        return id_in_group(self.group, self.due_at)

    def joined(self, occurrences: Occurrences, job: str = "") -> PendingNotice:
        """`job`: where it is not in it yet."""
        update: dict[str, Any] = {"occurrences": self.occurrences.and_then(occurrences)}
        if job:
            update["jobs"] = (*self.jobs, job)[:JOBS_NAMED]
            update["job_count"] = self.job_count + 1
        return self.model_copy(update=update)


def id_in_group(group: str, due_at: datetime) -> str:
    """Its last word is when it is due, in ms."""
    return f"{group} {round(due_at.timestamp() * 1000)}"


@dataclass(slots=True)
class Groups:
    """The groups of one destination: the notices that wait to be sent there."""

    notices: dict[str, PendingNotice] = field(default_factory=dict)
    """By id."""

    latest: dict[str, datetime] = field(default_factory=dict)
    """Group -> when its latest notice was due."""

    unavailable_until: datetime | None = None
    """No notice is sent before, because the service did not answer."""

    wait: timedelta = GROUP_WAIT
    """How long a new notice waits for others of its group."""

    def is_open(self, notice_id: str, now: datetime) -> bool:
        """Whether more may join: it is there, and is not being sent."""
        notice = self.notices.get(notice_id)
        return notice is not None and now < max(
            notice.due_at, self.unavailable_until or notice.due_at
        )

    def put(self, notice: PendingNotice, now: datetime, after: datetime | None = None) -> str:
        """Adds it to its group's notice, or makes a new one; returns the notice's id.

        after: into none that is due before, and so is sent before: while the destination is
        unavailable, more than one of a group may wait.
        """
        last = self.latest.get(notice.group)
        id = id_in_group(notice.group, last) if last else ""
        if self.is_open(id, now) and not (last and after and last <= after):
            self.notices[id] = self.notices[id].joined(notice.occurrences, *notice.jobs)
            return id
        at = now + self.wait if last is None else max(now + self.wait, last + GROUP_INTERVAL)
        at = max(at, after + LATER) if after else at
        notice = notice.model_copy(update={"due_at": at})
        self.notices[notice.id] = notice
        self.latest[notice.group] = at
        return notice.id

    def take_out(self, notice: PendingNotice, job: str, runs: int) -> None:
        """Of a notice, a job with its runs; all of it if that was the last one."""
        if notice.job_count > 1:
            occurrences = notice.occurrences.model_copy(
                update={"runs": notice.occurrences.runs - runs}
            )
            jobs = tuple(name for name in notice.jobs if name != job)
            rest = {"occurrences": occurrences, "jobs": jobs, "job_count": notice.job_count - 1}
            self.notices[notice.id] = notice.model_copy(update=rest)
            return
        del self.notices[notice.id]
        if self.latest.get(notice.group) == notice.due_at:
            del self.latest[notice.group]

    def forget_groups(self, now: datetime) -> None:
        self.latest = {
            group: at
            for group, at in self.latest.items()
            if now < at + GROUP_INTERVAL or id_in_group(group, at) in self.notices
        }


class Incident(BaseModel):
    """What was sent about one job to one destination, and what is unsent."""

    notified: dict[Event, str] = {}
    """For each event, the id of the notice that it last went into."""

    unsent: dict[Event, Occurrences] = {}
    """For each event, what happened and is in no notice yet."""

    subject: str = ""
    """Kind and cause of the first problem sent since the last recovery; '' if there is none."""

    is_firing: bool = False
    """No success came since the last problem."""

    recovered: Occurrences | None = None
    """What went into the notice of the last recovery."""

    kept_until: datetime | None = None
    """The incident is kept until then at least, because one of its notices is not sent yet."""

    silenced_until: datetime | None = None
    """Nothing of it is sent before."""

    @property
    def unsent_problems(self) -> list[Event]:
        return [event for event in self.unsent if event is not Event.RECOVERED]

    def repeats_at(self, event: Event) -> datetime:
        """When the event may be sent again; in the past where it was not sent yet."""
        last = self.notified.get(event)
        return due_at(last) + REPEAT if last else NEVER

    @property
    def problem_sent_at(self) -> datetime:
        """When the latest notice of a problem is due."""
        problems = (id for event, id in self.notified.items() if event is not Event.RECOVERED)
        return max(map(due_at, problems))

    @property
    def next_check(self) -> datetime:
        """When it has to be checked again."""
        if self.unsent and self.silenced_until:
            return self.silenced_until
        if problems := self.unsent_problems:
            return min(map(self.repeats_at, problems))
        if Event.RECOVERED in self.unsent:
            return self.problem_sent_at
        last = max(map(due_at, self.notified.values()))
        forgotten_at = last + (FORGET_AFTER if self.is_firing or self.subject else REPEAT)
        return max(forgotten_at, self.kept_until or forgotten_at)

    def is_over(self, groups: Groups, now: datetime) -> bool:
        """Whether it can be forgotten; it is kept while a notice of it waits."""
        if not self.notified and not self.unsent:
            return True
        if self.unsent or now < self.next_check:
            return False
        if any(id in groups.notices for id in self.notified.values()):
            self.kept_until = now + REPEAT
            return False
        return True


@dataclass(slots=True)
class IncidentUpdate:
    """Updates one incident at one destination, as of `now`."""

    job: str
    destination: Destination
    incident: Incident
    groups: Groups
    now: datetime

    silenced_until: datetime | None = None
    """None without a silence."""

    def note(self, event: Event, occurrences: Occurrences) -> None:
        if event is Event.RECOVERED:
            self._note_recovery(occurrences)
        elif not (self.silenced_until and event in WITHOUT_END):
            self._note_problem(event, occurrences)
        self.send_due()

    def send_due(self) -> None:
        """Sends what is due."""
        incident = self.incident
        incident.silenced_until = self.silenced_until
        if self.silenced_until:
            return
        for event in incident.unsent_problems:
            if self.now >= incident.repeats_at(event):
                self._send(event, incident.unsent.pop(event))
        if incident.unsent_problems or Event.RECOVERED not in incident.unsent:
            return
        if self.now >= incident.problem_sent_at:
            self._send_recovery(incident.unsent.pop(Event.RECOVERED))

    def _note_problem(self, event: Event, occurrences: Occurrences) -> None:
        incident = self.incident
        if event not in WITHOUT_END:
            occurrences = self._withdrawn_recovery(occurrences)
            incident.is_firing = True
        last, before = incident.notified.get(event), incident.unsent.get(event)
        if not self.silenced_until and last and self.groups.is_open(last, self.now):
            self.groups.notices[last] = self.groups.notices[last].joined(occurrences)
        elif self.silenced_until or before or self.now < incident.repeats_at(event):
            incident.unsent[event] = before.and_then(occurrences) if before else occurrences
        else:
            self._send(event, occurrences)

    def _withdrawn_recovery(self, occurrences: Occurrences) -> Occurrences:
        """The recovery did not last until it was sent; its occurrences are added to these."""
        incident, unsent = self.incident, self.incident.unsent.pop(Event.RECOVERED, None)
        last = incident.notified.get(Event.RECOVERED)
        if unsent is None and last and incident.recovered and self.groups.is_open(last, self.now):
            unsent, notice = incident.recovered, self.groups.notices[last]
            self.groups.take_out(notice, self.job, unsent.runs)
            incident.subject = notice.subject
            incident.recovered = None
            del incident.notified[Event.RECOVERED]
        return unsent.and_then(occurrences) if unsent and unsent.runs else occurrences

    def _send(self, event: Event, occurrences: Occurrences) -> None:
        cause = cause_of(event, occurrences.reason)
        subject = f"{event}:{cause}" if cause else event.value
        recovered = self.incident.notified.get(Event.RECOVERED)
        self._put(event, subject, occurrences, after=due_at(recovered) if recovered else None)
        if event not in WITHOUT_END and not self.incident.subject:
            self.incident.subject = subject

    def _note_recovery(self, occurrences: Occurrences) -> None:
        incident = self.incident
        if not incident.is_firing:
            return
        incident.is_firing = False
        if self.silenced_until:
            incident.unsent = {
                e: unsent for e, unsent in incident.unsent.items() if e in WITHOUT_END
            }
            incident.subject = ""
            return
        if incident.subject:  # the problem was sent: what is unsent of it goes with its end
            for event in incident.unsent_problems:
                if event not in WITHOUT_END:
                    occurrences = incident.unsent.pop(event).and_then(occurrences)
        incident.unsent[Event.RECOVERED] = occurrences

    def _send_recovery(self, occurrences: Occurrences) -> None:
        incident = self.incident
        self._put(Event.RECOVERED, incident.subject, occurrences, after=incident.problem_sent_at)
        incident.recovered, incident.subject = occurrences, ""

    def _put(
        self, event: Event, subject: str, occurrences: Occurrences, after: datetime | None = None
    ) -> None:
        notice = PendingNotice(
            url=self.destination.url if self.job else "",
            secret=self.destination.secret if self.job else None,
            event=event,
            subject=subject,
            due_at=self.now,
            occurrences=occurrences,
            jobs=(self.job,) if self.job else (),
            job_count=1 if self.job else 0,
        )
        self.incident.notified[event] = self.groups.put(notice, self.now, after)


#: A destination, by its id, and a job.
Pair = tuple[str, str]


def destination_id(url: str) -> str:
    return hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()[:16]


def by_id(destinations: Iterable[Destination]) -> dict[str, Destination]:
    return {destination_id(each.url): each for each in destinations}


NOT_SILENCED: Mapping[str, datetime] = {}


def update_incidents(
    events: Sequence[JobEvent],
    due: Iterable[Pair],
    destinations: Mapping[str, Mapping[str, Destination]],
    incidents: MutableMapping[Pair, Incident],
    groups: Mapping[str, Groups],
    now: datetime,
    silenced: Mapping[str, datetime] = NOT_SILENCED,
) -> None:
    """Brings incidents and groups up to date with these events, in order.

    due: incidents that are due. destinations: those of each job, by id; '' for
    those of the service. incidents, groups: as they were read, of all of these; an incident that
    is over leaves. silenced: until when notices of these jobs are. What a job's file no longer
    sends anywhere is dropped.
    """

    def update_of(pair: Pair) -> IncidentUpdate:
        id, job = pair
        incident = incidents.setdefault(pair, Incident())
        return IncidentUpdate(
            job, destinations[job][id], incident, groups[id], now, silenced.get(job)
        )

    for pair in due:
        if pair[0] not in destinations.get(pair[1], {}):
            incidents.pop(pair, None)
        elif pair in incidents:
            update_of(pair).send_due()
    for event in events:
        for id, destination in destinations.get(event.job, {}).items():
            if event.event in destination.events:
                update_of((id, event.job)).note(event.event, event.occurrences)
    for pair, incident in list(incidents.items()):
        if incident.is_over(groups[pair[0]], now):
            del incidents[pair]
    for each in groups.values():
        each.forget_groups(now)


def notice_of(pending: PendingNotice, key: str, destination: str, page: str = "") -> Notice:
    """The message. page: the address at which people see the service, where it is known."""
    _, _, cause = pending.subject.partition(":")
    occurrences, is_good = pending.occurrences, pending.event is Event.RECOVERED
    link = f"{page.rstrip('/')}/jobs/{pending.jobs[0]}" if pending.job_count == 1 else page
    return Notice(
        key=key,
        incident=destination_id(f"{destination} {pending.subject}"),
        event=pending.event,
        cause="" if is_good else cause,
        jobs=pending.jobs,
        job_count=pending.job_count,
        first_at=occurrences.first_at,
        last_at=occurrences.last_at,
        runs=occurrences.runs,
        run=occurrences.run,
        reason=f"Before that: {problem_of(pending)}" if is_good else occurrences.reason,
        link=link if page else "",
    )


def problem_of(pending: PendingNotice) -> str:
    """The problem that it ends: ``failed: ConnectionError``."""
    word, _, cause = pending.subject.partition(":")
    event = Event(word)
    if event in SERVICE_TITLES:
        return SERVICE_TITLES[event]
    return ": ".join(filter(None, (WORDS[event][pending.job_count != 1], cause)))
