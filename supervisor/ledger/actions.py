"""The record of actions: who asked for what, from where, why, and what that changed.

1. An action is entered by the function of the ledger that does it (act.lua): there is no moment in
   which one of the two is there without the other. What has changed nothing is not entered.
2. What was refused is entered after it was, as is what no function does: a login.
3. It is a stream that is only added to; of more than ACTIONS_KEPT entries the oldest go.

Names are what a process says of itself.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import islice, takewhile

from redis.exceptions import RedisError, ResponseError

from supervisor.errors import InvalidJob, SupervisorError
from supervisor.job.changes import Changes, edit_text, edits
from supervisor.job.spec import JobSpec
from supervisor.ledger.reader import Reader
from supervisor.times import instant, ms_of

#: The variable that names the person who acts, for accounts that several people share.
ACTOR = "SUPERVISOR_ACTOR"

#: Characters of a name, an address or a target; of a reason or an error; of one change.
LONGEST_NAME, LONGEST_REASON, LONGEST_CHANGE = 200, 500, 200

#: Characters of the name of a person who put a job, as part of the job's place.
LONGEST_PLACE = 100

#: How many names of jobs and how many changes are kept of one action.
MOST_NAMES, MOST_CHANGES = 1_000, 20

#: Read in one call.
CHUNK = 500


class Outcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Actor:
    """A person, or a program, that acts."""

    name: str
    origin: str
    """cli, api, page, django, python or beat."""

    place: str = ""
    """The host, or the address of a visitor."""

    via: str = ""
    """The system user, where the name is another."""

    @classmethod
    def of_process(cls, origin: str, name: str = "") -> Actor:
        """The user of this process: `name`, else SUPERVISOR_ACTOR, else the system user."""
        user = system_user()
        name = name or os.environ.get(ACTOR, "") or user
        return cls(name, origin, socket.gethostname(), user if name != user else "")

    @property
    def words(self) -> str:
        """``ann@host``, ``ann (the API)``: as part of the place of a job that this user put."""
        match self.origin:
            case "api":
                words = f"{self.name} (the API)"
            case "page":
                words = f"{self.name} (the status page)"
            case "cli":
                words = f"{self.name}@{self.place}"
            case _:
                words = self.name
        return "".join(c if c.isprintable() else "?" for c in words)[:LONGEST_PLACE]


def system_user() -> str:
    """The system user: not from the environment, which anyone can set, and maybe without a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one key of a job, in few words: ``5m -> 10m``. Secrets are masked."""

    job: str
    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """What was done, or was to be."""

    by: Actor
    verb: str
    target: str
    """A job, run, queue, file, or what else the verb is about."""

    reason: str = ""
    jobs: tuple[str, ...] = ()
    """The jobs that it is about."""

    changes: tuple[Change, ...] = ()

    def text(self, outcome: Outcome = Outcome.DONE, error: str = "") -> str:
        """The action as JSON, with texts of bounded length."""
        by = self.by
        fields = {
            "by": short(by.name, LONGEST_NAME),
            "origin": by.origin,
            "place": short(by.place, LONGEST_NAME),
            "via": short(by.via, LONGEST_NAME),
            "verb": self.verb,
            "target": short(self.target, LONGEST_NAME),
            "reason": short(self.reason, LONGEST_REASON),
            "outcome": outcome.value,
            "error": short(error, LONGEST_REASON),
            "jobs": [short(job, LONGEST_NAME) for job in self.jobs[:MOST_NAMES]],
            "changes": [
                [short(change.job, LONGEST_NAME), change.key, short(change.text, LONGEST_CHANGE)]
                for change in self.changes[:MOST_CHANGES]
            ],
        }
        return json.dumps({key: value for key, value in fields.items() if value})


def short(text: str, most: int) -> str:
    """The beginning of it, as UTF-8 has it."""
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    return text.encode(errors="replace").decode()


def entry_of(action: Action | None) -> str:
    """The action as Functions.act takes it; empty without one."""
    return "" if action is None else action.text()


@dataclass(frozen=True, slots=True)
class Entry:
    """An action as it was entered."""

    id: str
    at: datetime
    action: Action
    outcome: Outcome
    error: str = ""
    result: str = ""
    """The first word of what the ledger replied."""


def entry_from(entry_id: str, fields: Mapping[str, str]) -> Entry:
    entry = json.loads(fields["entry"])
    action = Action(
        Actor(
            entry.get("by", ""),
            entry.get("origin", ""),
            entry.get("place", ""),
            entry.get("via", ""),
        ),
        entry.get("verb", ""),
        entry.get("target", ""),
        entry.get("reason", ""),
        tuple(entry.get("jobs", ())),
        tuple(Change(*change) for change in entry.get("changes", ())),
    )
    outcome, result = Outcome(entry["outcome"]), fields.get("result", "")
    return Entry(entry_id, instant(fields["at"]), action, outcome, entry.get("error", ""), result)


@dataclass(frozen=True, slots=True)
class ActionQuery:
    """Which entries are asked for; of what is not given, all."""

    job: str | None = None
    """A pattern as the shell has them."""

    by: str | None = None
    """Likewise, of the name or the system user."""

    verb: str | None = None
    since: datetime | None = None
    before: str | None = None
    """Only entries older than the one with this id."""

    limit: int = 50
    newest: int | None = None
    """Only this many of the newest entries are searched; None: all."""

    @property
    def texts(self) -> list[str]:
        """Texts that every matching entry contains: parsing all takes ten times as long."""
        given = filter(None, (self.job, self.by, self.verb))
        return [json.dumps(word) for word in given if not set(word) & set("*?[")]

    def matches(self, action: Action) -> bool:
        return (
            (self.verb is None or action.verb == self.verb)
            and (self.job is None or any(fnmatchcase(job, self.job) for job in action.jobs))
            and (
                self.by is None
                or any(fnmatchcase(name, self.by) for name in (action.by.name, action.by.via))
            )
        )


class Actions:
    def __init__(self, ledger: Reader) -> None:
        self._client = ledger.client
        self._key, self._beat = ledger.keys.actions, ledger.keys.beat
        self._functions = ledger.functions

    def enter(self, action: Action, outcome: Outcome = Outcome.DONE, error: str = "") -> None:
        """Enters an action that was refused, or that no function of the ledger did."""
        self._functions("act", "", action.text(outcome, error))

    @contextmanager
    def trying(self, action: Action) -> Iterator[Action]:
        """Enters the action if it is refused or fails; one that is done is entered by its function.

        What cannot be entered, since Redis is unavailable, is not.
        """
        try:
            yield action
        except SupervisorError as error:
            with suppress(RedisError):
                self.enter(action, Outcome.REFUSED, words_of(error))
            raise
        except ResponseError as error:
            with suppress(RedisError):
                self.enter(action, Outcome.FAILED, str(error))
            raise

    def search(self, query: ActionQuery) -> list[Entry]:
        """Newest first."""
        first = ms_of(query.since) if query.since else 0
        # Redis gives ids by its clock, and none that is older than the one before.
        recent = takewhile(lambda entry: ms_in(entry[0]) >= first, self._newest(query.before))
        searched, texts = islice(recent, query.newest), query.texts
        likely = (
            entry_from(entry_id, fields)
            for entry_id, fields in searched
            if all(text in fields["entry"] for text in texts)
        )
        return list(islice((e for e in likely if query.matches(e.action)), query.limit))

    def after(self, entry_id: str, limit: int = CHUNK) -> list[Entry]:
        """The entries after this one, oldest first."""
        entries = self._client.xrange(self._key, min=f"({entry_id}", count=limit)
        return [entry_from(*entry) for entry in entries]

    def last_id(self) -> str:
        entries = self._client.xrevrange(self._key, max="+", count=1)
        return entries[0][0] if entries else "0-0"

    def logged_up_to(self) -> str | None:
        """The id of the last entry that a server has logged; None before any has."""
        return self._client.hget(self._beat, "actions_logged")

    def note_logged(self, entry_id: str) -> None:
        self._client.hset(self._beat, "actions_logged", entry_id)

    def _newest(self, before: str | None) -> Iterator[tuple[str, dict[str, str]]]:
        while entries := self._client.xrevrange(
            self._key, max=f"({before}" if before else "+", count=CHUNK
        ):
            yield from entries
            before = entries[-1][0]


def ms_in(entry_id: str) -> int:
    return int(entry_id.partition("-")[0])


def words_of(error: SupervisorError) -> str:
    """The problems of a job may quote what it says, secrets among it."""
    return f"{len(error.problems)} problems" if isinstance(error, InvalidJob) else str(error)


# What an edit changes, as `supervisor plan` has it.


def with_changes(
    action: Action | None,
    before: Mapping[str, JobSpec],
    after: Mapping[str, JobSpec | None],
    changes: Changes,
) -> Action | None:
    """The action with the jobs that it changes, and how; none for what changes nothing."""
    if action is None or not changes:
        return None
    names = (*changes.removed, *changes.added, *changes.changed)
    first = islice(changes_of(before, after, changes), MOST_CHANGES)
    return replace(action, jobs=names, changes=tuple(first))


def changes_of(
    before: Mapping[str, JobSpec], after: Mapping[str, JobSpec | None], changes: Changes
) -> Iterator[Change]:
    for name in changes.removed:
        yield Change(name, "removed", in_brief(before.get(name)))
    for name in changes.added:
        yield Change(name, "added", in_brief(after.get(name)))
    for name in changes.changed:
        old, new = before.get(name), after.get(name)
        if old is None or new is None:  # another version has loaded it
            yield Change(name, "changed", in_brief(new))
            continue
        for edit in edits(old, new):
            yield Change(name, edit.key, edit_text(edit))


def in_brief(spec: JobSpec | None) -> str:
    return f"{spec.work}, {spec.schedule} {spec.timezone}" if spec else ""
