"""Follows the schedule files and the other sources of jobs, and loads what changed.

Ticks do not wait for files, whatever stands in them, and a broken file changes nothing:

1. Once changed files are at rest, a child process reads and checks them, with limits on its time
   and memory. Beat goes on, and each turn asks whether the child is done. Of files that it has
   loaded, beat keeps a listing: their contents and jobs as digests. As long as the ledger holds
   these, the child reads the files that have changed, and compares the jobs of these alone.
2. When it is, the turn first emits what is due and then has the child write the difference to the
   ledger. Beat waits for that for a moment. The difference of thousands of jobs takes longer: then
   beat goes on, and each turn asks again. A tick that comes due meanwhile is emitted as its job is
   loaded at that time, old or new.
3. Files that change while a child is reading them for long are read again from the beginning, so
   that a file that takes for ever is forgotten when it is removed.
4. Files that are right and are not loaded: a job has the name of one of another source, most jobs
   would be removed at once, or the directory has become empty. That is a problem as well, and is
   tried again now and then.
5. A child that exceeds its limits is ended. That is a problem of the files, and what is loaded
   stays loaded, as with any other problem.

The child is a fork: it has the ledger and the app as beat has them, its memory is given back when
it ends, and starting one takes milliseconds. Nothing here extends the leader's lock; turns do.
"""

from __future__ import annotations

import json
import math
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from watchfiles import Change, DefaultFilter, watch

from supervisor.beat.entries import Entries
from supervisor.beat.load import Edited, Outcome, load, load_edited, look_at, move, withdraw
from supervisor.errors import ScheduleFilesInvalid
from supervisor.files.schedule_files import Listing, ScheduleSet
from supervisor.files.schedule_files import load as read_files
from supervisor.job.changes import Changes, registered
from supervisor.ledger.actions import Action, Actor
from supervisor.ledger.leader import LEADER_TTL
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import ms_of
from supervisor.logs import get_logger
from supervisor.process import Child, Limits, Work
from supervisor.ticks.plan import clashes, removal_by_files

log = get_logger("supervisor.reloading")
sources_log = get_logger("supervisor.sources")

#: Editors' temporary files are ignored; directories are not, whatever their names.
FILTER = DefaultFilter(ignore_dirs=())

#: Files that keep changing for this long are read all the same.
LONGEST_BURST_SECONDS = 1.0

#: Files that cannot be watched are read again after this.
UNWATCHED_SECONDS = 5.0


class Watching:
    """Changes below `path`, which may be absent and may be replaced by another directory.

    The kernel notices them (inotify and the like). No thread waits for them: beat asks each turn.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changes: Iterator[Any] | None = None
        self._watched: tuple[int, int] | None = None
        self._names = {path}
        self._has_warned = False
        self._next_look = 0.0
        #: Since when there are changes to be read; at first, whatever happened before.
        self._since: float | None = time.monotonic()
        #: Files are changing at this moment: to be asked again soon.
        self.is_changing = False

    def look_again(self) -> None:
        """Behaves as if something had changed."""
        self._since = self._since or time.monotonic()

    def has_changed(self) -> bool:
        """True once after each change, when the files have come to rest."""
        self.is_changing = self._changes_now()
        if self.is_changing:
            self.look_again()
        if self._since is None:
            return False
        if self.is_changing and time.monotonic() - self._since < LONGEST_BURST_SECONDS:
            return False
        self._since = None
        return True

    def _changes_now(self) -> bool:
        try:
            self._follow()
            # A signal that comes at this very moment is raised as KeyboardInterrupt.
            changes = next(self._changes) if self._changes else set()
            if any(
                change is Change.deleted and Path(name) in self._names for change, name in changes
            ):
                self._watched = None  # another in its place may have the same inode number
            return bool(changes)
        except (OSError, RuntimeError) as error:
            # Absent, unreadable, or the kernel has no more watches (an OSError) or instances of
            # inotify (a RuntimeError of watchfiles) for this user.
            if not self._has_warned:
                facts = {"path": str(self._path), "error": str(error)}
                log.warning("schedules not watched", **facts, read_every=UNWATCHED_SECONDS)
            self._has_warned, self._watched = True, None
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + UNWATCHED_SECONDS
                self.look_again()
            return False

    def _follow(self) -> None:
        """Watches the directory, unless it is the one that is watched already."""
        found = self._path.stat()
        if (found.st_dev, found.st_ino) == self._watched:
            return
        self._watched = None
        self._names = {self._path, self._path.absolute(), self._path.resolve()}
        self._changes = watch(
            self._path,
            watch_filter=FILTER,
            yield_on_timeout=True,
            rust_timeout=1,
            step=1,
            raise_interrupt=True,
        )
        next(self._changes)
        self._watched, self._has_warned = (found.st_dev, found.st_ino), False
        self.look_again()


#: Problems kept for the status page and `supervisor doctor`; the log has all of them.
PROBLEMS_KEPT = 20

#: The log names up to this many of the jobs that are added, changed or removed at a time.
JOBS_NAMED = 20

#: How often a beat that begins to lead asks whether files are still being written.
ASK_SECONDS = 0.05

#: A beat that begins to lead waits this long for its files to be read before it emits: well within
#: the life of its lock, which it does not extend meanwhile.
BEGIN_SECONDS = LEADER_TTL.total_seconds() * 2 / 3

#: A hundred thousand jobs take fifteen seconds of processor time, and 800 MiB.
READ_LIMITS = Limits(cpu_seconds=120, memory=2 << 30)

#: Elapsed time: a busy machine takes longer for the same, and a file system may hang.
READ_SECONDS = 300

#: Files that changed while they were read are read again from the beginning after this.
OUTDATED_SECONDS = 5

#: Files that exceeded the limits, and have not changed since, are tried again after this.
AGAIN_SECONDS = 300

#: Files that are right in themselves, and clash with what is loaded, are tried again after this:
#: people may load them, or remove what is in their way.
REFUSED_SECONDS = 10

#: A turn waits this long for its files to be written: those of a few thousand jobs are by then.
WRITE_SECONDS = 1.0

#: A beat that begins to lead waits this long for jobs to be withdrawn.
WITHDRAW_SECONDS = 60

#: Then files are given up that are not written yet. A hundred thousand jobs take a quarter of a
#: minute, and several on a busy machine.
LONGEST_WRITE_SECONDS = 600

#: What a child that has read the files can be asked to do with them.
LOAD, WITHDRAW = "load", "withdraw"


@dataclass(frozen=True, slots=True)
class Read:
    """The outcome of reading the files: a digest of their jobs, or the problems found.

    listing: of the files, for the next reading; pickled, for it has an entry for each job.
    """

    digest: str | None
    problems: list[str]
    listing: bytes | None = None


@dataclass(slots=True)
class Reading:
    """A child that reads the files, and writes them to the ledger when it is asked to."""

    child: Child
    is_outdated: bool = False
    #: What was read, and until when it may be being written.
    read: Read | None = None
    written_until: float = math.inf


class Reloading:
    """Only the leading beat reloads; one that begins to lead looks at the files again."""

    def __init__(self, files: Path, ledger: Ledger, entries: Entries) -> None:
        self._files = files
        self._ledger = ledger
        self._entries = entries
        #: The digest of the files as they were last loaded.
        self.digest: str | None = None
        #: The listing of the same files, for the child that reads them next.
        self._listing: bytes | None = None
        #: Whether the files have been read, or found wrong, since this beat began to lead.
        self.is_settled = False
        #: Why the files, as they were last read, are not loaded.
        self.problems: list[str] = []
        self._watching = Watching(files)
        self._reading: Reading | None = None
        self._next_try: float | None = None
        #: In which the files were last read: holidays are computed around it.
        self._year: int | None = None

    def begin(self, now: datetime, loaded: str | None) -> None:
        """Before a beat that begins to lead emits anything: withdraws the jobs that the files no
        longer have, or pause.

        The other changes are for `reload`, after what was due has been emitted as it was loaded.
        loaded: digest of the files in the ledger. Files that are not read within BEGIN_SECONDS
        withdraw nothing before the first turn.
        """
        until = time.monotonic() + BEGIN_SECONDS
        self._year, self.is_settled = now.year, False
        self._listing = None  # another beat has led
        self.stop()
        self._watching.look_again()
        while not self._watching.has_changed():  # they are being written, for a second at most
            time.sleep(ASK_SECONDS)
        reading = self._start()
        read = self._read_by(reading, now, until - time.monotonic())
        if read and read.digest == loaded:
            self._load(reading, read, now)
        elif read:
            problems = self._withdraw(reading, now)
            if problems:
                self._refuse(now, problems)
        elif self._reading:
            log.warning("schedule files not read before the first turn", path=str(self._files))

    def stop(self) -> None:
        """Ends a reading under way; the files are read again when this beat leads again."""
        if self._reading:
            self._reading.child.end()
            self._reading = None
            self._watching.look_again()

    @property
    def is_busy(self) -> bool:
        """Whether files are changing or being read at this moment, and will be loaded soon."""
        return self._watching.is_changing or self._reading is not None

    def reload(self, now: datetime, loaded: str | None) -> None:
        """Starts to read files that changed, that the ledger has lost, or that were read in
        another year, and loads them once they are read. Waits for no file.

        loaded: digest of the files in the ledger.
        """
        if now.year != self._year:
            self._year = now.year
            self._watching.look_again()
        has_changed = self._watching.has_changed()
        if self._reading is None:
            if has_changed or self._is_to_be_tried(loaded):
                self._start()
            return
        self._reading.is_outdated |= has_changed
        reading = self._reading
        if reading.read:
            self._finish_load(reading, reading.read, now)
        elif read := self._read_by(reading, now):
            self._load(reading, read, now)

    def _is_to_be_tried(self, loaded: str | None) -> bool:
        if self._next_try is not None:
            return time.monotonic() >= self._next_try
        return self.digest not in (None, loaded)

    def _start(self) -> Reading:
        self._next_try = None
        self._reading = Reading(Child(self._in_child, READ_LIMITS))
        return self._reading

    def _read_by(self, reading: Reading, now: datetime, seconds: float = 0) -> Read | None:
        """What the child has read within `seconds`, if the files have no problems."""
        if not reading.child.has_value(seconds):
            if reading.is_outdated and reading.child.age_seconds > OUTDATED_SECONDS:
                log.warning("schedule files changed while they were read", path=str(self._files))
                self.stop()
            elif reading.child.age_seconds > READ_SECONDS:
                self._give_up(now, f"more than {READ_SECONDS} seconds")
            return None
        try:
            read: Read = reading.child.receive()
        except ChildProcessError as error:
            self._give_up(now, str(error))
            return None
        if read.problems:
            self._end(reading)
            self._record(now, read.problems)
            return None
        return read

    def _load(self, reading: Reading, read: Read, now: datetime) -> None:
        """Has the child write what differs to the ledger, as of `now`."""
        reading.child.send((LOAD, now))
        reading.read, reading.written_until = read, time.monotonic() + LONGEST_WRITE_SECONDS
        self._finish_load(reading, read, now, WRITE_SECONDS)

    def _finish_load(self, reading: Reading, read: Read, now: datetime, seconds: float = 0) -> None:
        """Ends the reading once it is written or refused, if it is within `seconds`."""
        if not reading.child.has_value(seconds):
            if time.monotonic() > reading.written_until:
                self._give_up(now, f"more than {LONGEST_WRITE_SECONDS} seconds to be written")
            return
        problems = self._written(reading)
        if problems is None:
            self._listing = None  # all files are read
            self._end(reading)
            self._watching.look_again()
            return
        if problems:
            self._end(reading)
            self._refuse(now, problems)
            return
        reading.child.send(None)  # it goes on by itself, with what is not urgent
        self._reading = None
        self.digest, self._listing = read.digest, read.listing
        self._record(now, [])
        if reading.is_outdated:
            self._watching.look_again()

    def _withdraw(self, reading: Reading, now: datetime) -> list[str] | None:
        reading.child.send((WITHDRAW, now))
        if not reading.child.has_value(WITHDRAW_SECONDS):
            self.stop()
            raise ChildProcessError("the schedule files could not be written to the ledger")
        problems = self._written(reading)
        self.stop()
        return problems

    def _written(self, reading: Reading) -> list[str] | None:
        """Why what is loaded stays as it is, if anything keeps it from being replaced; None where
        the child would have to read all files for that."""
        try:
            problems: list[str] | None = reading.child.receive()
        except Exception:
            self.stop()  # not all was loaded: the files are read again
            raise
        return problems

    def _refuse(self, now: datetime, problems: list[str]) -> None:
        self._next_try = time.monotonic() + REFUSED_SECONDS
        self._record(now, problems)

    def _give_up(self, now: datetime, why: str) -> None:
        if self._reading:
            self._end(self._reading)
        self._next_try = time.monotonic() + AGAIN_SECONDS
        hint = "split them, or look at them with supervisor check"
        self._record(now, [f"{self._files}: the schedule files cannot be read: {why} ({hint})"])

    def _end(self, reading: Reading) -> None:
        reading.child.end()
        self._reading = None
        if reading.is_outdated:
            self._watching.look_again()

    def _record(self, now: datetime, problems: list[str]) -> None:
        if problems != self.problems:  # those of an absent directory come up every second
            for problem in problems:
                log.error("schedule files rejected", problem=problem)
        self.problems, self.is_settled = problems, True
        self._ledger.client.hset(
            self._ledger.keys.beat,
            mapping={
                "last_reload": ms_of(now),
                "last_reload_successful": int(not problems),
                "problems": json.dumps(problems[:PROBLEMS_KEPT]),
            },
        )

    def _in_child(self) -> Work:
        """Reads the files, and then does with them what beat asks for.

        To read ten thousand jobs takes more memory than everything else that beat does.
        """
        started = time.monotonic()
        prefix, since = self._ledger.keys.prefix, self._since()
        try:
            wanted = read_files(self._files, prefix=prefix, year=self._year, since=since)
        except ScheduleFilesInvalid as error:
            yield Read(None, [str(problem) for problem in error.problems])
            return
        except MemoryError:
            raise ChildProcessError(f"more than {READ_LIMITS.memory >> 20} MiB of memory") from None
        except Exception as error:
            # A fault of our own checks must not end beat.
            log.exception("schedule files not judged")
            yield Read(None, [f"the schedule files cannot be judged: {error!r}"])
            return
        what, now = yield Read(wanted.digest, [], pickle.dumps(wanted.listing))
        if wanted.since:
            is_written = self._write_edited(wanted.since, wanted, now, started)
            yield [] if is_written else None
            return
        is_loaded = wanted.digest == self.digest == self._ledger.loaded_digest()
        if not is_loaded and (problems := self._refusals(wanted)):
            yield problems
            return
        if what == WITHDRAW:
            changes = withdraw(self._ledger, self._entries, wanted.specs, now, self._action())
            if changes:
                names = {"removed": some(changes.removed), "paused": some(changes.changed)}
                log.info("jobs withdrawn before the first turn", **names)
            yield []
            return
        if not is_loaded:
            self._write(wanted, now, started)
        yield []
        if is_loaded:
            move(self._ledger, self._entries, wanted.sources)
        if self.digest is None:
            self._entries.disable(wanted.specs)

    def _since(self) -> Listing | None:
        """The listing of the files that are loaded, if the ledger holds these."""
        if self._listing is None or self.digest != self._ledger.loaded_digest():
            return None
        listing: Listing = pickle.loads(self._listing)
        return listing

    def _write_edited(
        self, since: Listing, wanted: ScheduleSet, now: datetime, started: float
    ) -> bool:
        """As `_write`, of the jobs in files that have changed since then; False where only all
        files can say what there is to do."""
        if not wanted.listing.files:
            return False
        before, after = since.but(wanted.listing), wanted.listing.but(since)
        names = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        edited = Edited(
            {name: wanted.specs[name] if name in after else None for name in names},
            {name: wanted.sources[name] for name in names if name in after},
            since_digest=self.digest or "",
        )
        changes = load_edited(
            self._ledger, self._entries, edited, wanted.digest, now, self._action()
        )
        if changes is None:
            return False
        if wanted.digest != self.digest:
            self._log_loaded(len(wanted.sources), changes, started)
        return True

    def _action(self) -> Action:
        return Action(Actor.of_process("beat", "beat"), "load", str(self._files))

    def _refusals(self, wanted: ScheduleSet) -> list[str]:
        """Why these files are not loaded, although they are right in themselves."""
        loaded = self._ledger.loaded()
        problems = [str(problem) for problem in clashes(loaded, wanted)]
        if removal := removal_by_files(loaded, wanted):
            problems.append(
                f"{self._files}: {removal} (if that is meant, run supervisor apply --yes)"
            )
        return problems

    def _write(self, wanted: ScheduleSet, now: datetime, started: float) -> None:
        """Loads what differs."""
        changes = load(
            self._ledger,
            self._entries,
            wanted.specs,
            wanted.digest,
            now,
            places=wanted.sources,
            action=self._action(),
        )
        self._log_loaded(len(wanted.specs), changes, started)

    def _log_loaded(self, jobs: int, changes: Changes, started: float) -> None:
        log.info(
            "schedule files loaded",
            jobs=jobs,
            added=some(changes.added),
            changed=some(changes.changed),
            removed=some(changes.removed),
            seconds=round(time.monotonic() - started, 3),
        )


def some(jobs: Sequence[str]) -> list[str]:
    more = len(jobs) - JOBS_NAMED
    return [*jobs[:JOBS_NAMED], f"and {more} more"] if more > 0 else list(jobs)


# Other sources of jobs: what they have is what is loaded of them.
#
# A source loads each edit itself, as soon as it is committed. This is for what it could not load,
# since Redis was unavailable, and for a Redis that has lost its data:
#
# 1. Twice a minute, and when a beat begins to lead, a child process asks each source for its
#    fingerprint, and reads it where that is another than when it was last loaded.
# 2. What is loaded of the source is compared with what it has. Only what differs is put or removed,
#    and only if it is still of the version that was compared: an edit meanwhile wins, and the next
#    look deals with the rest.
# 3. A source that is unavailable changes nothing. Nor does one that has lost more than half of its
#    jobs: `manage.py supervisor sync --yes` is for a person who means it.

#: How often sources are asked, and when a child that asks them is ended: a database may hang.
LOOK_SECONDS = 30.0
LONGEST_SECONDS = 120.0


class FollowedSources:
    """Only the leading beat follows sources."""

    def __init__(self, ledger: Ledger, entries: Entries) -> None:
        self._ledger = ledger
        self._entries = entries
        self._child: Child | None = None
        self._next_look = 0.0
        self._problems: dict[str, list[str]] = {}

    def look_soon(self) -> None:
        self._next_look = 0.0

    def stop(self) -> None:
        if self._child:
            self._child.end()
            self._child = None

    def follow(self) -> None:
        """Called once a turn; returns at once."""
        if self._child is None:
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + LOOK_SECONDS
                self._child = Child(self._in_child, READ_LIMITS) if registered() else None
            return
        if self._child.has_value():
            self._receive(self._child)
        elif self._child.age_seconds > LONGEST_SECONDS:
            sources_log.error(
                "sources not followed", error=f"more than {LONGEST_SECONDS:.0f} seconds"
            )
            self.stop()

    def _receive(self, child: Child) -> None:
        try:
            outcomes: list[Outcome] = child.receive()
        except Exception as error:  # noqa: BLE001 - of a look, which is repeated
            sources_log.error("sources not followed", error=repr(error))
            outcomes = []
        self.stop()
        for outcome in outcomes:
            self._report(outcome)

    def _report(self, outcome: Outcome) -> None:
        if outcome.changes:
            sources_log.info(
                "source loaded",
                source=outcome.source,
                added=some(outcome.changes.added),
                changed=some(outcome.changes.changed),
                removed=some(outcome.changes.removed),
            )
        if outcome.problems != self._problems.get(outcome.source, []):
            for problem in some(outcome.problems):
                sources_log.error("source not loaded", source=outcome.source, problem=problem)
        self._problems[outcome.source] = outcome.problems

    def _in_child(self) -> Work:
        yield [look_at(self._ledger, self._entries, source) for source in registered()]
