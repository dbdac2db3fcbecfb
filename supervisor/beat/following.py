"""Jobs that follow others: beat deals with the ends that they wait for, in order.

1. Read what has ended, some at a time, and what the jobs that follow keep in mind of it.
2. Decide: a pure function (ticks/following.py).
3. Admit the runs that are to be. A beat that dies after that leaves the endings in the list, and
   the next one decides the same: the ledger knows those runs, and drops the duplicates.
4. Commit in one function (ledger/follow.lua): runs that wait get their places or are skipped, what
   is kept in mind is written, and the endings are taken off the list.
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.beat.emitter import note_all, note_rescue
from supervisor.ledger.connection import RedisError
from supervisor.ledger.followers import Edited, End, Event, Hold, event_from, tick_of
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Placement
from supervisor.ledger.requests import Leadership
from supervisor.logs import get_logger
from supervisor.ticks.following import Known, decide

#: Endings that are dealt with at a time, and how many times in a turn of beat.
ENDINGS_AT_A_TIME = 500
TIMES_PER_TURN = 10


log = get_logger("supervisor.beat")


def readable(text: str) -> Event | None:
    """None for one that another version wrote."""
    try:
        return event_from(text)
    except (ValueError, KeyError, TypeError):
        log.error("ending cannot be read by this version", ending=text)
        return None


class Following:
    def __init__(self, ledger: Ledger, leadership: Leadership | None = None) -> None:
        self._ledger = ledger
        self._followers = ledger.followers
        self._leadership = leadership

    def deal_with_endings(self) -> None:
        """What is left after a turn's share is dealt with in the next one. Raises RedisError."""
        for _ in range(TIMES_PER_TURN):
            texts = self._followers.endings(ENDINGS_AT_A_TIME)
            if not texts or not self._is_done(texts):
                return

    def _is_done(self, texts: Sequence[str]) -> bool:
        try:
            return self._deal_with(texts)
        except RedisError:
            raise
        except Exception:  # what follows others must not keep beat from its ticks
            log.exception("endings not dealt with")
            return False

    def _deal_with(self, texts: Sequence[str]) -> bool:
        """Whether it is done; else another beat leads."""
        events = [event for text in texts if (event := readable(text))]
        decisions = decide(events, self._known(events))
        admissions = self._ledger.follow_up(decisions.runs, self._leadership)
        if any(each.placement is Placement.FAILED for each in admissions):
            note_all(admissions)
            return False
        settled = self._followers.commit(texts, decisions.changes, self._leadership)
        note_all(each for each in admissions if each.placement is not Placement.DUPLICATE)
        for rescue in settled or ():
            note_rescue(rescue)
        return settled is not None

    def _known(self, events: Sequence[Event]) -> Known:
        ended = list(dict.fromkeys(event.job for event in events if isinstance(event, End)))
        followers = self._followers.of(ended)
        jobs = {name for names in followers.values() for name in names}
        jobs |= {event.job for event in events if isinstance(event, Hold | Edited)}
        specs, memories = self._ledger.some_specs(jobs), self._followers.memories(sorted(jobs))
        waiting = [(job, i, at) for job, m in memories.items() for i, at in m.held.items()]
        waiting += [(e.job, e.run_id, e.nominal) for e in events if isinstance(e, Hold)]
        upstream = {
            tick_of(name, at)
            for job, _, at in waiting
            for name in (specs[job].after if job in specs else ())
        }
        return Known(
            specs=specs,
            followers=followers,
            memories=memories,
            unread=[job for job in jobs if job not in specs and self._ledger.knows(job)],
            held=self._followers.held([run_id for _, run_id, _ in waiting]),
            ended=self._followers.ends(sorted(upstream)),
        )
