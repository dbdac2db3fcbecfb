"""What the lock of a worker's file proves, and what nothing proves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pytest

from supervisor.guard import lock_file, reaper
from supervisor.guard.lock_file import LockFile
from supervisor.guard.reaper import Reaper
from supervisor.ledger.attempt import Finished, LeaseState
from supervisor.ledger.ledger import Ledger
from tests.acceptance import warm
from tests.damage import tear
from tests.jobs import admitted, granted_of, renew, run_id
from tests.logged import capture_logs
from tests.waiting import wait_until

WORKER = """
import os, signal, sys
from supervisor.guard.lock_file import LockFile

own = LockFile()
own.hold()
child = os.fork() if "forks" in sys.argv else 0
if child or "forks" not in sys.argv:
    print(own.process, child, flush=True)
signal.pause()
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(lock_file.DIRECTORY_VARIABLE, str(tmp_path))
    return tmp_path


class Worker:
    """A process that holds its file, and a run that it began."""

    def __init__(self, ledger: Ledger, *options: str) -> None:
        with TemporaryFile() as out:
            words = ("-c", WORKER, *options)
            self.process = warm.Started(words, Path.cwd(), os.environ, out, out)
            self.proof, child = wait_until(lambda: said_in(out)).split()
        self.child = int(child)
        spec = admitted(ledger, 0)
        self.run = run_id(spec, 0)
        ledger.begin(self.run, "token", "vm:1", process=self.proof)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def said_in(file: IO[bytes]) -> str:
    """A whole line; where the other process writes stays as it is."""
    text = os.pread(file.fileno(), 200, 0).decode()
    return text if text.endswith("\n") else ""


Hire = Callable[..., Worker]

#: Gives the runs that a reaper has to publish afterwards.
Reap = Callable[[], list[str]]


@pytest.fixture
def hire(ledger: Ledger, directory: Path) -> Iterator[Hire]:
    hired: list[Worker] = []

    def one(*options: str) -> Worker:
        hired.append(Worker(ledger, *options))
        return hired[-1]

    yield one
    for worker in hired:
        worker.kill()


@pytest.fixture
def seen(ledger: Ledger, directory: Path) -> Reap:
    of_beat = Reaper(ledger)

    def reap() -> list[str]:
        """The runs that it reports."""
        before = crashes()
        of_beat.reap()
        return [run for run, number in crashes().items() if number > before.get(run, 0)]

    def crashes() -> dict[str, int]:
        runs = ledger.client.keys(ledger.keys.run("*@*Z"))
        hashes = [key for key in runs if ledger.client.type(key) == "hash"]
        prefix = ledger.keys.run("")
        return {
            key.removeprefix(prefix): int(ledger.client.hget(key, "crashes") or 0) for key in hashes
        }

    return reap


def test_a_run_is_reported_once_its_worker_is_gone(hire: Hire, seen: Reap, ledger: Ledger) -> None:
    worker = hire()
    assert seen() == []
    worker.kill()
    assert seen() == [worker.run]
    assert ledger.run(worker.run).attempts[0].reason == "worker vm:1 is gone"
    assert seen() == []


def test_a_run_whose_begin_was_still_on_its_way_is_reported_as_well(
    hire: Hire, seen: Reap, ledger: Ledger
) -> None:
    worker = hire()
    worker.kill()
    assert seen() == [worker.run]
    ledger.begin(worker.run, "late", "vm:1", process=worker.proof)
    assert seen() == [worker.run]


def test_a_damaged_run_keeps_no_other_from_being_reported(
    hire: Hire,
    seen: Reap,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = hire()
    other = run_id(admitted(ledger, 0, name="other"), 0)
    ledger.begin(other, "token", "vm:1", process=worker.proof)
    tear(ledger, worker.run)
    worker.kill()
    with capture_logs() as logs:
        assert seen() == [other]
    errors = [entry["run"] for entry in logs if entry["event"] == "dead worker not reported"]
    assert errors == [worker.run]
    monkeypatch.setattr(reaper, "REPORTED_SECONDS", 0)
    with capture_logs() as logs:
        assert (seen(), logs) == ([], [])


@pytest.mark.parametrize("error", [ConnectionError("away"), OSError("no /proc"), TypeError("")])
def test_a_reaper_that_fails_logs_when_that_begins_and_when_it_is_over(
    error: Exception, hire: Hire, seen: Reap, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    worker = hire()
    worker.kill()
    with capture_logs() as logs, monkeypatch.context() as broken:
        broken.setattr(Ledger, "at_work_in", fail)
        assert [seen(), seen(), seen()] == [[], [], []]
        assert [entry["event"] for entry in logs] == ["reaper failed"]
    with capture_logs() as logs:
        assert [seen(), seen()] == [[worker.run], []]
    assert [entry["event"] for entry in logs] == ["run rescued", "reaper recovered"]


def test_of_two_reapers_only_the_one_that_ends_a_run_logs_it(
    hire: Hire, seen: Reap, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = hire()
    worker.kill()
    report_dead = ledger.report_dead

    def second(*arguments: str) -> Finished:
        """As if another reaper had read the leases at the same time, and were quicker."""
        report_dead(*arguments)
        return report_dead(*arguments)

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(ledger, "report_dead", second)
        seen()
        assert logs == []
    ledger.begin(worker.run, "late", "vm:1", process=worker.proof)
    with capture_logs() as logs:
        seen()
    assert [entry["event"] for entry in logs] == ["run rescued"]


def test_old_files_of_the_dead_go_with_the_next_worker(
    hire: Hire, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, living = hire(), hire()
    dead.kill()
    others = ["worker1.pid", f"{lock_file.boot()}.log"]
    for name in others:
        (directory / name).touch()
    (directory / f"{lock_file.boot()}.0123456789abcdef.new").touch()
    monkeypatch.setattr(lock_file, "OLD", timedelta(0))
    own = LockFile()
    own.hold()
    names = [f"{lock_file.boot()}.{proof}" for proof in (living.proof, own.process)]
    assert sorted(path.name for path in directory.iterdir()) == sorted([*names, *others])
    own.let_go()


def test_a_child_that_lives_on_is_a_worker_that_lives(hire: Hire, seen: Reap) -> None:
    worker = hire("forks")
    worker.process.kill()
    worker.process.wait()
    assert seen() == []
    os.kill(worker.child, 9)
    assert wait_until(seen) == [worker.run]


def test_a_child_forked_while_it_reaps_hides_the_death_from_no_reaper(
    hire: Hire, seen: Reap, directory: Path
) -> None:
    worker = hire()
    worker.kill()
    [path] = directory.iterdir()
    with lock_file.locked(path):
        child = os.fork()
        while not child:
            signal.pause()
    try:
        assert seen() == [worker.run]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_worker_closes_no_file_of_the_app_in_place_of_its_own(directory: Path) -> None:
    own = LockFile()
    own.hold()
    [path] = directory.iterdir()
    [number] = [
        int(link.name)
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink() and os.path.realpath(link) == str(path)
    ]
    os.close(number)  # as code that makes a daemon does with all of them
    with Path(os.devnull).open() as devnull:
        assert devnull.fileno() == number
        own.let_go()
        assert os.path.samestat(os.fstat(number), Path(os.devnull).stat())


def test_a_file_of_another_machine_proves_nothing(hire: Hire, seen: Reap, directory: Path) -> None:
    worker = hire()
    worker.kill()
    [path] = directory.iterdir()
    boot, process = path.name.split(".")
    elsewhere = path.rename(directory / f"{boot[::-1]}.{process}")
    assert seen() == []
    elsewhere.rename(path)
    assert seen() == [worker.run]


def test_a_copy_of_a_living_workers_file_proves_nothing(
    hire: Hire, seen: Reap, directory: Path
) -> None:
    hire()
    [path] = directory.iterdir()
    copy = path.rename(directory / "moved").read_bytes()
    path.write_bytes(copy)
    assert seen() == []


def test_a_child_that_has_closed_the_file_records_no_proof(directory: Path) -> None:
    own = LockFile()
    own.hold()
    assert own.process
    os.close(own._fd)
    assert own.process == ""
    own.let_go()


@pytest.mark.parametrize("fault", [PermissionError, OSError])
def test_a_directory_that_cannot_be_read_harms_nobody(
    fault: type[OSError], seen: Reap, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Iterator[Path]:
        raise fault("stale file handle")

    monkeypatch.setattr(Path, "iterdir", broken)
    monkeypatch.setattr(Path, "glob", broken)
    own = LockFile()
    own.hold()
    assert own.process == ""
    assert seen() == []


def test_a_worker_ends_though_its_file_cannot_be_removed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = LockFile()
    own.hold()

    def broken(*_: object, **__: object) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr(Path, "unlink", broken)
    monkeypatch.setattr(Path, "stat", broken)
    own.check()
    own.let_go()
    assert own.process == ""


def test_many_of_the_dead_are_looked_up_at_once(
    seen: Reap, ledger: Ledger, directory: Path
) -> None:
    admitted(ledger, 0)
    for number in range(200):
        path = directory / "new"
        path.touch()
        path.rename(directory / f"{lock_file.boot()}.{number:016x}-{path.stat().st_ino}")

    def calls() -> int:
        return int(ledger.client.info("stats")["total_commands_processed"])

    before = calls()
    assert seen() == []
    assert calls() - before < 20


def test_an_attempt_that_began_elsewhere_meanwhile_is_left_alone(
    hire: Hire, seen: Reap, ledger: Ledger
) -> None:
    worker = hire()
    worker.kill()
    ledger.report_dead(worker.run, "token", "seen by another")
    ledger.begin(worker.run, "second", "vm:2", process="0123456789abcdef")
    assert seen() == []
    assert ledger.run(worker.run).attempt == 2


def test_an_attempt_whose_begin_a_replica_lost_is_left_alone(
    hire: Hire, seen: Reap, ledger: Ledger
) -> None:
    worker = hire()
    worker.kill()
    assert seen() == [worker.run]
    known = granted_of(ledger, number=2)
    assert renew(ledger, worker.run, "second", known) is LeaseState.REASSERTED
    assert seen() == []
    assert ledger.run(worker.run).attempt == 2


def test_an_attempt_of_a_worker_of_an_older_version_is_left_alone(
    hire: Hire, seen: Reap, ledger: Ledger
) -> None:
    worker = hire()
    recorded = ledger.client.hget(ledger.keys.run(worker.run), "process")
    worker.kill()
    assert seen() == [worker.run]
    ledger.begin(worker.run, "second", "vm:2")
    tear(ledger, worker.run, process=recorded)  # which their `begin` leaves as it is
    assert seen() == []
    assert ledger.run(worker.run).attempt == 2


def test_a_file_that_the_apps_code_has_closed_is_taken_away(directory: Path) -> None:
    own = LockFile()
    own.hold()
    own.check()
    [path] = directory.iterdir()
    os.close(own._fd)
    own.check()
    assert not path.exists()
    own.let_go()


def test_a_directory_that_others_may_write_is_used_only_if_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(lock_file.DIRECTORY_VARIABLE, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = lock_file.directory()
    assert found is not None
    found.chmod(0o777)
    assert lock_file.directory() is None
    monkeypatch.setenv(lock_file.DIRECTORY_VARIABLE, str(found))
    assert lock_file.directory() == found
    monkeypatch.setenv(lock_file.DIRECTORY_VARIABLE, "")
    assert lock_file.directory() is None
