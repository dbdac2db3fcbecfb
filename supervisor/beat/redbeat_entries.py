"""Entries that are none of ours (`beat_schedule`, other programs), which RedBeat's own code emits.

They are unguarded, as before, unless they are made jobs (features/adoption/adopted.py).
"""

from __future__ import annotations

from typing import Any

from redbeat.schedulers import RedBeatScheduler

from supervisor.beat.turn import Turn
from supervisor.catalog.entries import Entries, for_redbeat
from supervisor.logs import get_logger
from supervisor.store.failures import RedisError

#: Hint for an entry of `beat_schedule` that RedBeat cannot store.
NOT_STORED = "no beat emits it; pass it what JSON can hold, or make a job of it"

log = get_logger("supervisor.beat")


class RedBeatEntries:
    """scheduler: RedBeat's own, which sends the messages."""

    def __init__(self, scheduler: RedBeatScheduler, entries: Entries) -> None:
        self._scheduler = scheduler
        self._entries = entries

    def is_due(self, turn: Turn) -> bool:
        return bool(turn.of_redbeat)

    def do(self, turn: Turn) -> None:
        """Their scores are whole seconds: an entry found by its score may be due a part of a second
        later.
        """
        has_unknown_job = False
        for key in turn.of_redbeat:
            # No function of the ledger looks at the lock again. What is left, the next leader
            # emits.
            if not turn.poll.is_trusted:
                break
            try:
                if self._entries.is_of_a_ledger(key):
                    has_unknown_job = True
                    continue
                entry = self._scheduler.Entry.from_key(key, app=self._scheduler.app)
                if seconds := self._scheduler.maybe_due(entry, producer=self._scheduler.producer):
                    turn.wake_at(turn.poll.moment_in(seconds))
            except KeyError:
                self._entries.forget(key)
            except Exception:  # one bad entry must not stop the others
                log.exception("entry not emitted", entry=key)
        if has_unknown_job:  # `supervisor apply` may have given an entry's place to a job
            self._entries.learn_names()

    def store(self, name: str, entry: Any, update: Any) -> None:
        """One of `beat_schedule`, by RedBeat's own `update`. An entry that RedBeat cannot store
        costs itself only; what it was before goes too. Raises RedisError and OSError.
        """
        try:
            update({name: for_redbeat(entry)})
        except (RedisError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - objects of the app
            log.error("entry not stored", entry=name, reason=repr(error), hint=NOT_STORED)
            self._scheduler.Entry(name, app=self._scheduler.app).delete()
