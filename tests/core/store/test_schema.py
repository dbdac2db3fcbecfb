"""The ledger's schema and its functions: who writes them, and who is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from celery import Celery
from redis.exceptions import NoPermissionError

from supervisor.app import supervise
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load
from supervisor.errors import WrongSchema
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import SCHEMA
from supervisor.ledger.presence import BeatProcess, Broker, Registration
from supervisor.operate.deployment import read
from supervisor.schedule.ticks import Tick
from supervisor.settings import Settings
from supervisor.store.failures import NO_FUNCTIONS, UNREACHABLE, NotServed, explained
from tests.acceptance.nodes import Node
from tests.commands import supervisor_at
from tests.contents import digests
from tests.core.ledger.test_models_catch import break_functions
from tests.damage import lose_functions, of_schema
from tests.jobs import begun, job, ticks
from tests.programs import needed
from tests.waiting import wait_until


@pytest.fixture
def used(ledger: Ledger) -> Ledger:
    """A ledger with a run at work."""
    spec = job(ledger)
    run_id = ledger.admit([Tick(spec, ledger.now())])[0].run_id
    ledger.begin(run_id, "token", "host:1")
    return ledger


def beat_at(ledger: Ledger) -> Registration:
    return Registration(ledger, Broker("celery", is_ledger=True))


def test_the_first_script_writes_the_schema_of_its_code(ledger: Ledger) -> None:
    assert ledger.client.get(ledger.keys.schema) is None
    ledger.rescue()
    assert ledger.client.get(ledger.keys.schema) == str(SCHEMA)


@pytest.mark.parametrize("found", [SCHEMA - 1, SCHEMA + 1])
def test_nothing_is_written_to_a_ledger_of_another_schema(used: Ledger, found: int) -> None:
    [run] = used.runs(list(used.client.smembers(used.keys.open("nightly"))))
    spec, now = used.spec("nightly"), used.now()
    of_schema(used, found)
    before = digests(used.client)
    writes = {
        "admit": lambda: used.admit([Tick(spec, now)]),
        "begin": lambda: used.begin(run.id, "other", "host:2"),
        "renew": lambda: used.renew([(run.id, "token", True, None)]),
        "finish": lambda: used.finish(run.id, "token", RunState.SUCCEEDED),
        "rescue": lambda: used.rescue(),
        "pause": lambda: used.pause("nightly"),
        "present": lambda: beat_at(used).say(BeatProcess("host:3", leads=True)),
        "load": lambda: load(used, entries_of(used), {}, "digest", now),
    }
    for write in writes.values():
        with pytest.raises(WrongSchema, match=f"has schema {found} .* schema {SCHEMA}:"):
            write()
    assert digests(used.client) == before


def entries_of(ledger: Ledger) -> Entries:
    """Of an app whose RedBeat never comes to be asked."""
    return Entries.__new__(Entries)


@pytest.mark.parametrize("found", [SCHEMA - 1, SCHEMA + 1])
def test_a_beat_at_a_ledger_of_another_schema_ends(
    used: Ledger, redis_url: str, found: int
) -> None:
    """As Celery's beat does: what its closing raises would stand in place of the reason."""
    of_schema(used, found)
    app = supervise(Celery("newer", broker=redis_url))
    beat = SupervisedScheduler(app, lazy=True)

    def run() -> None:
        try:
            beat.tick()
        finally:
            beat.close()

    with pytest.raises(WrongSchema, match="install the version that the other processes run"):
        run()
    app.close()


@pytest.mark.parametrize("found", [SCHEMA - 1, SCHEMA + 1])
def test_doctor_of_another_version_names_both_schemas(used: Ledger, found: int) -> None:
    of_schema(used, found)
    with pytest.raises(WrongSchema, match=rf"schema {found} .* schema {SCHEMA}"):
        read(used)


def test_a_process_may_leave_a_ledger_whose_schema_has_changed(used: Ledger) -> None:
    beat = beat_at(used)
    beat.say(BeatProcess("host:3", leads=True))
    of_schema(used, SCHEMA + 1)
    beat.leave()
    assert used.presences.processes().present == ()


# The library of functions: who loads it, versions beside each other, servers that refuse it


def libraries(ledger: Ledger) -> set[str]:
    return {found[1] for found in ledger.client.function_list(library="supervisor_*")}


@pytest.fixture
def other_version(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """The same ledger as a version calls it whose text of one function is another."""
    with monkeypatch.context() as patch:
        break_functions(patch, "resign", "return 0 end", "return 2 - 2 end")
        other = Ledger(ledger.client, ledger.keys)
        other.rescue()
    return other


def test_two_versions_call_functions_of_their_own(ledger: Ledger, other_version: Ledger) -> None:
    lose_functions(ledger)
    ledger.rescue()
    other_version.rescue()
    assert len(libraries(ledger)) == 2
    ledger.rescue()
    assert len(libraries(ledger)) == 2


def test_a_version_deletes_the_libraries_of_others(ledger: Ledger, other_version: Ledger) -> None:
    lose_functions(ledger)
    other_version.rescue()
    [other] = libraries(ledger)
    ledger.functions.forget_other_versions()
    assert libraries(ledger) == set()
    ledger.rescue()
    [own] = libraries(ledger)
    assert own != other
    ledger.functions.forget_other_versions()
    assert libraries(ledger) == {own}


def test_another_prefix_keeps_its_library(ledger: Ledger, settings: Settings) -> None:
    beside = Ledger.open(Settings(redis_url=settings.redis_url, prefix="beside"))
    lose_functions(ledger)
    beside.rescue()
    before = libraries(ledger)
    ledger.functions.forget_other_versions()
    assert libraries(ledger) == before
    beside.client.close()


@pytest.fixture
def without_right(ledger: Ledger, settings: Settings) -> Iterator[Ledger]:
    """The ledger for a user who may call functions and load none."""
    ledger.client.acl_setuser(
        "caller", enabled=True, passwords=["+x"], keys=["*"], commands=["+@all", "-function|load"]
    )
    url = urlsplit(settings.redis_url)
    opened = Ledger.open(
        Settings(redis_url=f"redis://caller:x@{url.hostname}:{url.port}{url.path}")
    )
    yield opened
    opened.client.close()
    ledger.client.acl_deluser("caller")


def test_a_user_who_may_not_load_functions_is_told_so(
    ledger: Ledger, without_right: Ledger
) -> None:
    lose_functions(ledger)
    with pytest.raises(NoPermissionError) as refused:
        without_right.rescue()
    assert "'function|load' command (docs/how-to/redis.md has what each user needs)" in explained(
        refused.value
    )
    ledger.rescue()
    without_right.rescue()


def test_a_user_who_may_not_load_functions_reads_jobs(
    ledger: Ledger, without_right: Ledger
) -> None:
    spec = begun(ledger)
    lose_functions(ledger)
    assert without_right.history(spec.name)[0].state.value == "running"


@pytest.fixture
def old_server(tmp_path: Path) -> Iterator[Node]:
    """As Redis 6: it knows neither of the commands."""
    server = Node(tmp_path / "redis", needed("redis-server"))
    renamed = ("--rename-command", "FCALL", "", "--rename-command", "FUNCTION", "")
    server.start("bind 127.0.0.1\nport {port}\ndir {directory}\n", *renamed)
    yield server
    server.kill()


def answers(ledger: Ledger) -> bool:
    try:
        return bool(ledger.client.execute_command("PING"))
    except UNREACHABLE:
        return False


@pytest.mark.parametrize("way", ["one call", "several"])
def test_a_server_without_functions_is_refused_in_a_sentence(old_server: Node, way: str) -> None:
    ledger = Ledger.open(Settings(redis_url=f"redis://127.0.0.1:{old_server.port}/0"))
    wait_until(lambda: answers(ledger), 20)
    spec = JobSpec(name="nightly", task="proj.nightly", every="1s")
    with pytest.raises(NotServed, match="has no Redis Functions, and the ledger needs them"):
        ledger.rescue() if way == "one call" else ledger.admit(ticks(spec, 0))
    ledger.client.close()


def test_doctor_names_a_server_without_functions(old_server: Node) -> None:
    url = f"redis://127.0.0.1:{old_server.port}/0"
    told = wait_until(lambda: "Connection refused" not in (said := doctor(url)) and said, 20)
    assert told == f"Error: {NO_FUNCTIONS}\n"


def doctor(url: str) -> str:
    return supervisor_at(url)("doctor").output
