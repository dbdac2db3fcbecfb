"""Follows the schedule files: loads what changed, keeps everything when a file is broken."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import structlog

from supervisor.beat.entries import Entries
from supervisor.beat.in_child import in_child
from supervisor.beat.loading import load
from supervisor.errors import ScheduleFilesInvalid
from supervisor.files.schedule_files import load as read_files
from supervisor.files.watching import Watching
from supervisor.ledger.replies import ms_of
from supervisor.ledger.runs import Ledger
from supervisor.plan.foretelling import foretell

#: Problems kept for the status page and `supervisor doctor`; the log has all of them.
PROBLEMS_KEPT = 20

#: Of the jobs that are added, changed or removed at a time, so many are named in the log.
JOBS_NAMED = 20

log = structlog.get_logger("supervisor.reloading")


@dataclass(frozen=True, slots=True)
class Read:
    """What became of the files: the digest of what is loaded, or what is wrong with them."""

    digest: str | None
    problems: list[str]


class Reloading:
    """Only the leading beat reloads; one that begins to lead looks at the files anew."""

    def __init__(self, files: Path, ledger: Ledger, entries: Entries) -> None:
        self._files = files
        self._ledger = ledger
        self._entries = entries
        #: Of the files as they were last read without problems.
        self.digest: str | None = None
        self._problems: list[str] = []
        self._watching = Watching(files)

    def look_again(self) -> None:
        self._watching.look_again()

    @property
    def is_restless(self) -> bool:
        """Files change at this moment, and are read when they have come to rest."""
        return self._watching.is_restless

    def reload(self, now: datetime, loaded: str | None) -> None:
        """Loads the files if they changed, or if the ledger has lost what was loaded.

        loaded: digest of the files in the ledger.
        """
        if not self._watching.has_changed() and self.digest in (None, loaded):
            return
        try:
            self._take_over(in_child(partial(self._load, now)))
        except Exception:
            self._watching.look_again()  # nothing is loaded, and no file will change for it
            raise

    def _take_over(self, read: Read) -> None:
        if read.problems != self._problems:  # an absent directory is looked for every second
            for problem in read.problems:
                log.error("schedule files rejected", problem=problem)
        self._problems = read.problems
        self.digest = read.digest or self.digest

    def _load(self, now: datetime) -> Read:
        """In a child: to read ten thousand jobs takes more memory than all that beat does."""
        started = time.monotonic()
        try:
            wanted = read_files(self._files)
        except ScheduleFilesInvalid as error:
            read = Read(None, [str(problem) for problem in error.problems])
            self._sign(now, read.problems)
            return read
        except Exception as error:
            # A fault of ours in judging what they say: it must not end those that judge it.
            log.exception("schedule files cannot be judged")
            read = Read(None, [f"the schedule files cannot be judged: {error!r}"])
            self._sign(now, read.problems)
            return read
        edited: tuple[str, ...] = ()
        loaded = self._ledger.client.hget(self._ledger.keys.beat, "config")
        if not wanted.digest == self.digest == loaded:
            changes = load(self._ledger, self._entries, wanted.specs, wanted.digest, now)
            log.info(
                "schedule files loaded",
                jobs=len(wanted.specs),
                added=some(changes.added),
                changed=some(changes.changed),
                removed=some(changes.removed),
                seconds=round(time.monotonic() - started, 3),
            )
            edited = (*changes.added, *changes.changed)
        self._sign(now, problems=[])
        foretell(self._ledger, [wanted.specs[name] for name in edited], now)
        return Read(wanted.digest, [])

    def _sign(self, now: datetime, problems: list[str]) -> None:
        self._ledger.client.hset(
            self._ledger.keys.beat,
            mapping={
                "last_reload": ms_of(now),
                "last_reload_successful": int(not problems),
                "problems": json.dumps(problems[:PROBLEMS_KEPT]),
            },
        )


def some(jobs: Sequence[str]) -> list[str]:
    more = len(jobs) - JOBS_NAMED
    return [*jobs[:JOBS_NAMED], f"and {more} more"] if more > 0 else list(jobs)
