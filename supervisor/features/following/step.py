"""Beat deals with the ends that other jobs wait for, in order:

1. Read what has ended, a few at a time, and what the jobs that follow keep in mind of it: where
   many jobs follow one, a beat whose lock ran out on the way would leave all of them to the next.
2. Decide: a pure function (features/following/rule.py).
3. Admit the runs that are to be. A beat that dies after that leaves the endings in the list, and
   the next one decides the same: the ledger knows those runs, and drops the duplicates.
4. Commit in one function (features/following/follow.lua): runs that wait get their places or are
   skipped, what is kept in mind is written, and the endings are taken off the list.
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.beat.admission_log import note_all, note_rescue
from supervisor.beat.turn import BeatContext, Part, Turn
from supervisor.features.following.rule import FollowState, decide
from supervisor.features.following.store import (
    Edited,
    Followers,
    FollowEvent,
    RunEnd,
    RunWaits,
    event_from,
    tick_of,
)
from supervisor.ledger.admission import Placement
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.store.failures import RedisError
from supervisor.times import clock

#: Endings that are dealt with at a time.
ENDINGS_AT_A_TIME = 32

#: What a turn of beat spends on them before it goes on. The leader's lock lasts for much longer.
SECONDS_PER_TURN = 1.0

log = get_logger("supervisor.beat")


def readable(text: str) -> FollowEvent | None:
    """The ending; None if another version wrote it in a way that this one cannot read."""
    try:
        return event_from(text)
    except (ValueError, KeyError, TypeError):
        log.error("ending not read by this version", ending=text)
        return None


class Following:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._followers = Followers(ledger)

    def is_due(self, turn: Turn) -> bool:
        return turn.poll.has_endings

    def do(self, _: Turn) -> None:
        self.deal_with_endings()

    def deal_with_endings(self) -> None:
        """Deals with some endings; the next turn takes what is left. Raises RedisError."""
        began = clock()
        while clock() - began < SECONDS_PER_TURN:
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
        """Returns False if another beat leads by now."""
        events = [event for text in texts if (event := readable(text))]
        decisions = decide(events, self._snapshot(events))
        admissions = self._ledger.follow_up(decisions.runs)
        if any(each.placement is Placement.FAILED for each in admissions):
            note_all(admissions)
            return False
        rescues = self._followers.commit(texts, decisions.changes)
        note_all(each for each in admissions if each.placement is not Placement.DUPLICATE)
        for rescue in rescues or ():
            note_rescue(rescue)
        return rescues is not None

    def _snapshot(self, events: Sequence[FollowEvent]) -> FollowState:
        ended = list(dict.fromkeys(event.job for event in events if isinstance(event, RunEnd)))
        followers = self._followers.of(ended)
        jobs = {name for names in followers.values() for name in names}
        jobs |= {event.job for event in events if isinstance(event, RunWaits | Edited)}
        specs, memories = self._ledger.some_specs(jobs), self._followers.memories(sorted(jobs))
        waiting = [(job, i, at) for job, m in memories.items() for i, at in m.waiting.items()]
        waiting += [(e.job, e.run_id, e.nominal) for e in events if isinstance(e, RunWaits)]
        upstream = {
            tick_of(name, at)
            for job, _, at in waiting
            for name in (specs[job].after if job in specs else ())
        }
        return FollowState(
            specs=specs,
            followers=followers,
            memories=memories,
            unread=[job for job in jobs if job not in specs and self._ledger.knows(job)],
            waiting=self._followers.waiting([run_id for _, run_id, _ in waiting]),
            ended=self._followers.ends(sorted(upstream)),
        )


def part(beat: BeatContext) -> Part:
    return Part(emit=(Following(beat.ledger),))
