"""Leadership of beat: any number run, one leads, and only it emits.

1. A beat asks at each turn; the lock is taken when it is free and extended when it is its own. The
   same call says what there is to do: while that is nothing, a turn is this one call.
2. The lock lives `LEADER_TTL` after the leader's last turn, so a standby leads at the latest that
   long after the leader died, and at once when it resigned.
3. What a beat does to the ledger carries its token, and the functions look at the lock again: a
   leader that slept past its lock cannot emit anything when it wakes.

The lock is RedBeat's own key, so that a RedBeat beside us stands by as well.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import uuid4

from supervisor.errors import ForeignLedger
from supervisor.ledger.functions import Functions, document
from supervisor.times import clock, instant, ms_of, optional_instant, to_ms

LEADER_TTL = timedelta(seconds=12)

#: The part of LEADER_TTL for which a beat may act as the leader, counted from its request.
TRUSTED = 2 / 3

#: A time without a leader that is longer than a change of leaders takes is recorded.
ABSENCE = timedelta(seconds=15)
ABSENCES_KEPT = 50

#: After a longer time without a poll, the server may have been unavailable to all. Runs then have
#: GRACE to renew their leases: the longest time between two heartbeats, and a turn.
GAP = timedelta(seconds=3)
GRACE = timedelta(seconds=6)

#: What a rescue brings forward wakes beat this long after its last poll at the earliest. Thousands
#: of leases of dead workers, or a steady stream of retries, would else make it turn for each of
#: them, and a rescue looks at the locks that are waited for as well.
RESCUE_STEP = timedelta(milliseconds=50)

#: A clock that is set back by less is being adjusted, and is ignored.
LEAST_STEP = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Leadership:
    """The lock of the leading beat; requests in its name are refused once another beat has it."""

    key: str
    token: str

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that a call of the leading beat passes; none for other processes."""
        return (self.key,) if self.key else ()


#: Of a process that does not lead: its calls are never refused for that.
NOT_LEADING = Leadership("", "")


@dataclass(frozen=True, slots=True)
class Poll:
    """The reply to a beat's poll: what it has to do at `at`, the server's time.

    Only the leader is given more than `leads`, `at` and `holder`.
    """

    leads: bool
    at: datetime
    holder: str = ""
    """The token of the beat that leads, for the others."""

    to_rescue: bool = False
    """There are silent leases, due retries, ends of pauses, or runs that wait for a lock."""

    has_due: bool = False
    next_due: datetime | None = None
    """When the first entry, lease, retry or end of a pause is that is not due yet; what is not an
    entry is RESCUE_STEP away at least."""

    has_outbox: bool = False
    has_sent: bool = False
    has_outbound: bool = False
    """Something is to be sent to others."""

    has_leftovers: bool = False
    has_endings: bool = False
    has_notices: bool = False
    """Notices are to be made of events."""

    has_watched: bool = False
    """Some jobs have `notify`."""

    loaded: str | None = None
    """Digest of the ledger's schedule files."""

    version: int = 0
    """The newest of a job."""

    set_back: timedelta = timedelta()
    """By how much the server's clock was, until a beat goes on from `at`: go_on_from_now()."""

    began: float = field(default_factory=time.monotonic, repr=False)
    """When it was `at` by this process' clock; a reply's time later: no beat wakes up too early."""

    requested_at: float = field(default_factory=clock, repr=False)

    @property
    def is_trusted(self) -> bool:
        """Whether the lock is still held; it counts from the request for it, as a lease does."""
        return clock() - self.requested_at < LEADER_TTL.total_seconds() * TRUSTED

    @property
    def is_held_by_redbeat(self) -> bool:
        """Whether RedBeat's own scheduler leads; the token of a beat of ours names its host."""
        return bool(self.holder) and ":" not in self.holder

    def moment_in(self, seconds: float) -> datetime:
        """This many seconds from now, by the server's clock."""
        return self.at + timedelta(seconds=time.monotonic() - self.began + seconds)

    def seconds_until(self, moment: datetime) -> float:
        """Seconds from now until then, by this process' clock since the poll."""
        return (moment - self.at).total_seconds() - (time.monotonic() - self.began)


class Leader:
    """One beat's claim to lead; `instance` is what people see of it.

    schedule: RedBeat's sorted set of when each entry is due. app: its name; the first that leads
    owns the ledger. Without one nothing is claimed, and nothing compared.
    """

    def __init__(self, functions: Functions, lock: str, schedule: str, app: str = "") -> None:
        self._app = app
        self.instance = f"{socket.gethostname()}:{os.getpid()}"
        self.leadership = Leadership(lock, f"{self.instance}:{uuid4().hex}")
        self._functions = functions
        self._schedule = schedule

    def poll(self, last_turn_at: datetime | None = None, follows: str | None = None) -> Poll:
        """Takes or extends the lock for another `LEADER_TTL`, where it is free or this beat's.

        last_turn_at: that of the last turn that was done, as a sign of life. follows: digest of
        the schedule files that this beat loads. Raises WrongSchema, and
        ForeignLedger when the ledger is another app's.
        """
        requested_at = clock()
        given = {
            "last_turn": last_turn_at and ms_of(last_turn_at),
            "follows": follows,
            "app": self._app,
        }
        call = {
            "token": self.leadership.token,
            "leader_ttl": to_ms(LEADER_TTL),
            "name": self.instance,
            "absence": to_ms(ABSENCE),
            "absences_kept": ABSENCES_KEPT,
            "gap": to_ms(GAP),
            "grace": to_ms(GRACE),
            "rescue_step": to_ms(RESCUE_STEP),
            "least_step": to_ms(LEAST_STEP),
            **{name: value for name, value in given.items() if value},
        }
        keys = (self.leadership.key, self._schedule)
        fields = json.loads(self._functions("poll", document(call), keys=keys))
        if "app" in fields:
            raise ForeignLedger(fields["app"], self._app)
        at, behind = instant(fields.pop("at")), timedelta(microseconds=fields.pop("behind", 0))
        fields["next_due"] = optional_instant(fields.get("next_due"))
        fields["loaded"] = fields.get("loaded") or None
        fields["set_back"] = timedelta(milliseconds=fields.get("set_back", 0))
        began = time.monotonic() - behind.total_seconds()
        return Poll(**fields, at=at, requested_at=requested_at, began=began)

    def resign(self) -> bool:
        """Whether this beat led until now."""
        key = self.leadership.key
        return bool(self._functions("resign", self.leadership.token, keys=(key,)))
