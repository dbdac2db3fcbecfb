"""Follows the schedule files, and loads what changed.

Ticks do not wait for files, whatever stands in them, and a broken file changes nothing:

1. Once changed files are at rest, a child process reads and checks all of them, and loads what
   differs from what the ledger has. It has limits on its time and memory. Beat goes on, and each
   turn asks whether the child is done. A tick that comes due meanwhile is emitted as its job is
   loaded at that time, old or new.
2. Files that change while a child is busy with them are read from the beginning: a file that takes
   for ever is forgotten when it is removed.
3. Files that are right and are not loaded: a job has the name of one of another source, most jobs
   would be removed at once, or the directory has become empty. That is a problem as well, and is
   tried again now and then.
4. A child that exceeds its limits is ended. That is a problem of the files, and what is loaded
   stays loaded, as with any other problem.

The child is a fork: it has the ledger and the app as beat has them, its memory is given back when
it ends, and starting one takes milliseconds. Nothing here extends the leader's lock; turns do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from supervisor.beat.turn import EachSecond, Turn
from supervisor.beat.watching import Watching
from supervisor.catalog.entries import Entries
from supervisor.catalog.fitness import not_guardable
from supervisor.catalog.load import load
from supervisor.catalog.refusals import clashes, removal_by_files
from supervisor.catalog.schedule_files import ScheduleSet
from supervisor.catalog.schedule_files import load as read_files
from supervisor.errors import ScheduleFilesInvalid
from supervisor.ledger.actions import Action, Actor
from supervisor.ledger.leader import LEADER_TTL
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.process import Child, Limits
from supervisor.times import ms_of

log = get_logger("supervisor.reloading")

#: The time between two turns while files change or are being read.
BUSY_INTERVAL = timedelta(seconds=0.2)

#: Problems kept for the status page and `supervisor doctor`; the log has all of them.
PROBLEMS_KEPT = 20

#: The log names up to this many of the jobs that are added, changed or removed at a time.
JOBS_NAMED = 20

#: How often a beat that begins to lead asks whether files are still being written.
ASK_SECONDS = 0.05

#: A beat that begins to lead waits this long for its files to be read before it emits: well within
#: the life of its lock, which it does not extend meanwhile.
BEGIN_SECONDS = LEADER_TTL.total_seconds() * 2 / 3

#: Ten thousand jobs take two seconds of processor time, and 70 MiB.
LIMITS = Limits(cpu_seconds=60, memory=1 << 30)

#: Elapsed time: a busy machine takes longer for the same, and a file system may hang.
LONGEST_READ_SECONDS = 300

#: Files that changed while a child was busy with them are read from the beginning after this.
OUTDATED_SECONDS = 15

#: Files that exceeded the limits, and have not changed since, are tried again after this.
AGAIN_SECONDS = 300

#: Files that are right in themselves, and clash with what is loaded, are tried again after this:
#: people may load them, or remove what is in their way.
REFUSED_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Loading:
    """What came of the files."""

    digest: str | None = None
    """Of their jobs, which are loaded now."""

    problems: list[str] = field(default_factory=list)
    """They keep what was loaded before."""

    is_refused: bool = False
    """The files are right in themselves, and not loaded."""


class Reloading:
    """Only the leading beat reloads; one that begins to lead looks at the files again."""

    def __init__(self, files: Path, ledger: Ledger, entries: Entries) -> None:
        self._files = files
        self._ledger = ledger
        self._entries = entries
        #: The digest of the files as they were last loaded.
        self.digest: str | None = None
        #: Whether the files have been loaded, or found wrong, since this beat began to lead.
        self.has_read_files = False
        #: Why the files, as they were last read, are not loaded.
        self.problems: list[str] = []
        self._watching = Watching(files)
        self._looks = EachSecond()
        #: The child that is busy with the files.
        self._child: Child | None = None
        self._next_try: float | None = None
        #: In which the files were last read: holidays are computed around it.
        self._year: int | None = None

    def begin(self, now: datetime) -> None:
        """Before a beat that begins to lead emits anything: has the files loaded as of now, so that
        what they removed or paused meanwhile does not run once more.

        Files that are not read within BEGIN_SECONDS are read again beside the turns.
        """
        until = time.monotonic() + BEGIN_SECONDS
        self._year, self.has_read_files = now.year, False
        self.stop()
        self._watching.mark_changed()
        while not self._watching.has_changed():  # they are being written, for a second at most
            time.sleep(ASK_SECONDS)
        child = self._start(now)
        if child.has_ended(until - time.monotonic()):
            self._take(child, now)
        else:
            log.warning("schedule files not read before the first turn", path=str(self._files))
            self.stop()

    def stop(self) -> None:
        """Ends a child that is busy; the files are read again when this beat leads again."""
        if self._child:
            self._child.end()
            self._child = None
            self._watching.mark_changed()

    @property
    def is_busy(self) -> bool:
        """Whether files are changing or being loaded at this moment."""
        return self._watching.is_changing or self._child is not None

    def is_due(self, _: Turn) -> bool:
        return True

    def do(self, turn: Turn) -> None:
        if self.is_busy or self._looks.is_due(turn):
            self.reload(turn.poll.at, turn.poll.loaded)
        turn.has_read_files = self.has_read_files
        turn.problems = self.problems if self.has_read_files else None
        if self.is_busy:
            turn.wake_at(turn.poll.at + BUSY_INTERVAL)

    def reload(self, now: datetime, loaded: str | None) -> None:
        """Has files loaded that changed, that the ledger has lost, or that were read in another
        year. Waits for no file.

        loaded: digest of the files in the ledger.
        """
        if now.year != self._year:
            self._year = now.year
            self._watching.mark_changed()
        has_changed = self._watching.has_changed()
        if has_changed and self._child and self._child.age_seconds < OUTDATED_SECONDS:
            self._watching.mark_changed()  # when the child is done
            has_changed = False
        if has_changed or (self._child is None and self._is_to_be_tried(loaded)):
            self._start()
        elif self._child is None:
            return
        elif self._child.has_ended():
            self._take(self._child, now)
        elif self._child.age_seconds > LONGEST_READ_SECONDS:
            self.stop()
            self._give_up(now, f"more than {LONGEST_READ_SECONDS} seconds")

    def _is_to_be_tried(self, loaded: str | None) -> bool:
        if self._next_try is not None:
            return time.monotonic() >= self._next_try
        return self.digest not in (None, loaded)

    def _start(self, as_of: datetime | None = None) -> Child:
        """Also in the place of a child that takes long over files as they were before."""
        if self._child:
            self._child.end()
        self._next_try = None
        self._child = Child(partial(self._load_in_child, as_of), LIMITS)
        return self._child

    def _take(self, child: Child, now: datetime) -> None:
        """Takes over what the child has done."""
        self._child = None
        try:
            loading: Loading = child.result()
        except ChildProcessError as error:
            self._give_up(now, str(error))
            return
        except Exception:
            self._watching.mark_changed()  # not all was loaded
            raise
        if loading.is_refused:
            self._next_try = time.monotonic() + REFUSED_SECONDS
        self.digest = loading.digest or self.digest
        self._record(now, loading.problems)

    def _give_up(self, now: datetime, why: str) -> None:
        self._next_try = time.monotonic() + AGAIN_SECONDS
        hint = "split them, or look at them with supervisor check"
        self._record(now, [f"{self._files}: the schedule files cannot be read: {why} ({hint})"])

    def _record(self, now: datetime, problems: list[str]) -> None:
        if problems != self.problems:  # those of an absent directory come up every second
            for problem in problems:
                log.error("schedule files rejected", problem=problem)
        self.problems, self.has_read_files = problems, True
        self._ledger.client.hset(
            self._ledger.keys.beat,
            mapping={
                "last_reload": ms_of(now),
                "last_reload_successful": int(not problems),
                "problems": json.dumps(problems[:PROBLEMS_KEPT]),
            },
        )

    def _load_in_child(self, as_of: datetime | None) -> Loading:
        """Reads all files, and loads what differs: as of now where no time is given.

        To read ten thousand jobs takes more memory than everything else that beat does.
        """
        started = time.monotonic()
        try:
            schedules = read_files(self._files, prefix=self._ledger.keys.prefix, year=self._year)
        except ScheduleFilesInvalid as error:
            return Loading(problems=[str(problem) for problem in error.problems])
        except MemoryError:
            raise ChildProcessError(f"more than {LIMITS.memory >> 20} MiB of memory") from None
        except Exception as error:
            # A fault of our own checks must not end beat.
            log.exception("schedule files not judged")
            return Loading(problems=[f"the schedule files cannot be judged: {error!r}"])
        if problems := self._refusals(schedules):
            return Loading(problems=problems, is_refused=True)
        action = Action(Actor.of_process("beat", "beat"), "load", str(self._files))
        changes = load(
            self._ledger,
            self._entries,
            schedules.specs,
            schedules.digest,
            as_of,
            places=schedules.sources,
            action=action,
        )
        if changes or schedules.digest != self.digest:
            log.info(
                "schedule files loaded",
                jobs=len(schedules.specs),
                added=some(changes.added),
                changed=some(changes.changed),
                removed=some(changes.removed),
                seconds=round(time.monotonic() - started, 3),
            )
        return Loading(schedules.digest)

    def _refusals(self, schedules: ScheduleSet) -> list[str]:
        """Why these files are not loaded, although they are right in themselves."""
        loaded = self._ledger.loaded()
        problems = [str(problem) for problem in clashes(loaded, schedules)]
        for name, problem in not_guardable(self._entries.app.tasks, schedules.specs.values()):
            problems.append(f"{schedules.sources[name]}: job {name!r}: {problem}")
        if removal := removal_by_files(loaded, schedules):
            hint = "if that is meant, run supervisor apply --yes"
            problems.append(f"{self._files}: {removal} ({hint})")
        return problems


def some(jobs: Sequence[str]) -> list[str]:
    more = len(jobs) - JOBS_NAMED
    return [*jobs[:JOBS_NAMED], f"and {more} more"] if more > 0 else list(jobs)
