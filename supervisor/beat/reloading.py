"""Follows the schedule files: loads what changed, keeps everything when a file is broken."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import structlog

from supervisor.beat.entries import Entries
from supervisor.beat.in_child import in_child
from supervisor.beat.loading import load, withdraw
from supervisor.errors import ScheduleFilesInvalid
from supervisor.files.schedule_files import ScheduleSet
from supervisor.files.schedule_files import load as read_files
from supervisor.files.watching import Watching
from supervisor.ledger.replies import ms_of
from supervisor.ledger.runs import Ledger
from supervisor.plan.foretelling import foretell

#: Problems kept for the status page and `supervisor doctor`; the log has all of them.
PROBLEMS_KEPT = 20

#: Of the jobs that are added, changed or removed at a time, so many are named in the log.
JOBS_NAMED = 20

#: Files that are being written are asked for so often whether they have come to rest.
ASK_SECONDS = 0.05

log = structlog.get_logger("supervisor.reloading")


@dataclass(frozen=True, slots=True)
class Read:
    """What became of the files: the digest of what is loaded, or what is wrong with them."""

    digest: str | None
    problems: list[str]


class Reloading:
    """Only the leading beat reloads; one that begins to lead looks at the files anew.

    meanwhile: called each second while they are read, which may take longer than a leader's lock.
    """

    def __init__(
        self,
        files: Path,
        ledger: Ledger,
        entries: Entries,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        self._meanwhile = meanwhile
        self._files = files
        self._ledger = ledger
        self._entries = entries
        #: Of the files as they were last read without problems.
        self.digest: str | None = None
        self._problems: list[str] = []
        self._watching = Watching(files)

    def begin(self, now: datetime, loaded: str | None) -> None:
        """Before a beat that begins to lead emits anything: what the files have no more, or pause,
        is not to be emitted.

        The rest of what changed is for `reload`, after what was due has been emitted as it was
        loaded. loaded: digest of the files in the ledger.
        """
        self._watching.look_again()
        while not self._watching.has_changed():  # they are being written, for a second at most
            time.sleep(ASK_SECONDS)
        try:
            read = in_child(partial(self._begin, now, loaded), self._meanwhile)
        except ChildProcessError as error:
            log.error("schedule files not looked at before the first tick", error=str(error))
            read = None
        except Exception:
            self._watching.look_again()
            raise
        if read:
            self._take_over(read)
        else:
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
            self._take_over(in_child(partial(self._load, now), self._meanwhile))
        except Exception:
            self._watching.look_again()  # nothing is loaded, and no file will change for it
            raise

    def _take_over(self, read: Read) -> None:
        if read.problems != self._problems:  # an absent directory is looked for every second
            for problem in read.problems:
                log.error("schedule files rejected", problem=problem)
        self._problems = read.problems
        self.digest = read.digest or self.digest

    def _begin(self, now: datetime, loaded: str | None) -> Read | None:
        """In a child. None when there is more to be loaded."""
        started = time.monotonic()
        wanted = self._wanted(now)
        if isinstance(wanted, Read):
            return wanted
        if wanted.digest == loaded:
            return self._apply(wanted, now, started)
        changes = withdraw(self._ledger, self._entries, wanted.specs, now)
        if changes:
            names = {"removed": some(changes.removed), "paused": some(changes.changed)}
            log.info("jobs withdrawn before the first tick", **names)
        return None

    def _load(self, now: datetime) -> Read:
        """In a child: to read ten thousand jobs takes more memory than all that beat does."""
        started = time.monotonic()
        wanted = self._wanted(now)
        return wanted if isinstance(wanted, Read) else self._apply(wanted, now, started)

    def _wanted(self, now: datetime) -> ScheduleSet | Read:
        """What the files say, or what is wrong with them."""
        try:
            return read_files(self._files)
        except ScheduleFilesInvalid as error:
            problems = [str(problem) for problem in error.problems]
        except Exception as error:
            # A fault of ours in judging what they say: it must not end those that judge it.
            log.exception("schedule files cannot be judged")
            problems = [f"the schedule files cannot be judged: {error!r}"]
        self._sign(now, problems)
        return Read(None, problems)

    def _apply(self, wanted: ScheduleSet, now: datetime, started: float) -> Read:
        edited: tuple[str, ...] = ()
        loaded = self._ledger.loaded_digest()
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
