"""The record of actions on the page and over HTTP, and as lines of the server's log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from redis.exceptions import RedisError

from supervisor.ledger.actions import Action, ActionQuery, Actor, Entry, Outcome
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.operate import shapes
from supervisor.operate.words import ENTRIES_SEARCHED
from supervisor.store.failures import explained
from supervisor.web.http import RequestRefused

log = get_logger("supervisor.record")

#: Entries on one page, and on that of a job.
ENTRIES_SHOWN, LAST_SHOWN = 50, 5

#: Characters of a pattern. Compiling one of thousands of characters takes a tenth of a second.
LONGEST_PATTERN = 200

#: As Redis gives them.
ENTRY_ID = re.compile(r"\d{1,20}-\d{1,20}", re.ASCII)


def action_query(query: Mapping[str, str], limit: int = ENTRIES_SHOWN) -> ActionQuery:
    """What an address asks for. Raises Refused."""
    before, since = query.get("before"), query.get("since")
    if before is not None and not ENTRY_ID.fullmatch(before):
        raise RequestRefused(400, "before is the id of an entry that was listed")
    job, by, verb = (query.get(name, "").strip() or None for name in ("job", "by", "verb"))
    if max(len(text or "") for text in (job, by, verb)) > LONGEST_PATTERN:
        raise RequestRefused(400, f"job, by and verb have up to {LONGEST_PATTERN} characters")
    moment = moment_in(since) if since else None
    return ActionQuery(job, by, verb, moment, before, limit)


def moment_in(text: str) -> datetime:
    """The moment, in UTC if it names no offset. Raises Refused."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise RequestRefused(400, "since is a time such as 2026-03-01T02:00:00Z") from None


def record_page(ledger: Ledger, query: Mapping[str, str]) -> dict[str, Any]:
    """entries: newest first. query: what was asked for. older: the address of the next page."""
    searched = action_query(query)
    entries = ledger.actions.search(searched)
    kept = {name: query[name] for name in ("job", "by", "verb", "since") if query.get(name)}
    older = None
    if len(entries) == searched.limit:
        older = f"record?{urlencode({**kept, 'before': entries[-1].id})}"
    return {"entries": entries, "query": kept, "older": older}


def last_actions(ledger: Ledger, job: str) -> list[Entry]:
    """The latest actions on a job, among the newest of all, as far as they are about this job."""
    searched = ActionQuery(job=job, limit=LAST_SHOWN, newest=ENTRIES_SEARCHED)
    entries = ledger.actions.search(searched)
    return [replace(entry, action=about(job, entry.action)) for entry in entries]


def about(job: str, action: Action) -> Action:
    """What the action changed of this job."""
    changes = tuple(change for change in action.changes if change.job == job)
    return replace(action, jobs=(job,), changes=changes)


# The record as lines of the log, to be kept for longer than the ledger keeps it.
#
# 1. The ledger has the last entry that was logged. A server goes on from there: what was entered
#    while none ran is logged as well, as long as the record has it.
# 2. Each of several servers logs all entries: lines with the same id are duplicates.


POLL_SECONDS = 1.0


class RecordLog:
    """Logs what is entered, each entry as a line with its fields.

    may_write: the last logged entry is kept in the ledger. Without it only what is entered from now
    on is logged.
    """

    def __init__(self, ledger: Ledger, *, may_write: bool) -> None:
        self._ledger = ledger
        self._may_write = may_write
        self._last: str | None = None

    def follow(self, is_stopping: Callable[[], bool]) -> None:
        """Logs new entries until the server stops. Runs in a thread of its own."""
        is_unavailable = False
        while not is_stopping():
            try:
                self.log_new()
                is_unavailable = False
            except (RedisError, OSError) as error:
                if not is_unavailable:
                    log.warning("record unavailable", error=explained(error))
                is_unavailable = True
            time.sleep(POLL_SECONDS)

    def log_new(self) -> None:
        actions = self._ledger.actions
        if self._last is None:
            noted = actions.logged_up_to() if self._may_write else None
            self._last = noted or actions.last_id()
            if self._may_write and not noted:  # the next server goes on from here
                actions.note_logged(self._last)
        while entries := actions.after(self._last):
            for entry in entries:
                log.info("action recorded", **fields_of(entry))
            self._last = entries[-1].id
            if self._may_write:
                actions.note_logged(self._last)


def fields_of(entry: Entry) -> dict[str, Any]:
    return {key: value for key, value in shapes.RecordedAction.dumped(entry).items() if value}


# What visitors do without a function of the ledger: logins, and what their role does not allow.


#: Refusals of one visitor are entered once in this time, so that repeating them cannot push
#: everything else out of the record.
REFUSED_SECONDS = 60.0

#: Nor can repeated logins, which each role may do: up to this many of one name in this time.
MOST_LOGINS, LOGIN_SECONDS = 20, 60.0


class Visits:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._refused_at: dict[tuple[str, str], float] = {}
        self._logins: dict[str, list[float]] = {}

    def may_log_in(self, name: str) -> bool:
        """Whether another login may be entered now; if so, it is counted."""
        now = time.monotonic()
        recent = [at for at in self._logins.get(name, ()) if now - at < LOGIN_SECONDS]
        may = len(recent) < MOST_LOGINS
        self._logins[name] = [*recent, now] if may else recent
        return may

    def enter(self, by: Actor, verb: str) -> None:
        """Enters it. A login succeeds without: the page says that the ledger is unavailable."""
        self._enter(Action(by, verb, "page"), Outcome.DONE)

    def enter_refused(self, by: Actor, verb: str, target: str, error: str = "") -> None:
        log.warning("action refused", verb=verb, by=by.name, place=by.place, error=error)
        now = time.monotonic()
        if now - self._refused_at.get((by.name, verb), float("-inf")) >= REFUSED_SECONDS:
            self._refused_at[by.name, verb] = now
            self._enter(Action(by, verb, target), Outcome.REFUSED, error)

    def _enter(self, action: Action, outcome: Outcome, error: str = "") -> None:
        try:
            self._ledger.actions.enter(action, outcome, error)
        except (RedisError, OSError) as unavailable:
            log.warning("action not recorded", verb=action.verb, error=explained(unavailable))
