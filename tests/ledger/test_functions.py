"""The library of functions: who loads it, versions beside each other, servers that refuse it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis.exceptions import NoPermissionError

from supervisor.ledger.connection import NO_FUNCTIONS, NotServed, Unavailable, explained
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.acceptance.nodes import Node
from tests.ledger.commands import supervisor_at
from tests.ledger.jobs import begun, job, ticks
from tests.ledger.test_models_catch import break_functions
from tests.programs import needed
from tests.waiting import wait_until


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
    ledger.client.function_flush()
    ledger.rescue()
    other_version.rescue()
    assert len(libraries(ledger)) == 2
    ledger.rescue()
    assert len(libraries(ledger)) == 2


def test_a_version_deletes_the_libraries_of_others(ledger: Ledger, other_version: Ledger) -> None:
    ledger.client.function_flush()
    other_version.rescue()
    [other] = libraries(ledger)
    ledger.forget_other_versions()
    assert libraries(ledger) == set()
    ledger.rescue()
    [own] = libraries(ledger)
    assert own != other
    ledger.forget_other_versions()
    assert libraries(ledger) == {own}


def test_another_prefix_keeps_its_library(ledger: Ledger, settings: Settings) -> None:
    beside = Ledger.open(Settings(redis_url=settings.redis_url, prefix="beside"))
    ledger.client.function_flush()
    beside.rescue()
    before = libraries(ledger)
    ledger.forget_other_versions()
    assert libraries(ledger) == before
    beside.client.close()


def test_functions_outlive_the_data(ledger: Ledger) -> None:
    ledger.rescue()
    before = libraries(ledger)
    ledger.client.flushall()
    assert libraries(ledger) == before


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
    ledger.client.function_flush()
    with pytest.raises(NoPermissionError) as refused:
        without_right.rescue()
    assert "'function|load' command (docs/redis.md has what each user needs)" in explained(
        refused.value
    )
    ledger.rescue()
    without_right.rescue()


def test_a_user_who_may_not_load_functions_reads_jobs(
    ledger: Ledger, without_right: Ledger
) -> None:
    spec = begun(ledger)
    ledger.client.function_flush()
    ledger.client.script_flush()
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
    except Unavailable:
        return False


@pytest.mark.parametrize("way", ["one call", "several"])
def test_a_server_without_functions_is_refused_in_a_sentence(old_server: Node, way: str) -> None:
    ledger = Ledger.open(Settings(redis_url=f"redis://127.0.0.1:{old_server.port}/0"))
    wait_until(lambda: answers(ledger), 20)
    spec = job(ledger)
    with pytest.raises(NotServed, match="has no Redis Functions, and the ledger needs them"):
        ledger.rescue() if way == "one call" else ledger.admit(ticks(spec, 0))
    ledger.client.close()


def test_doctor_names_a_server_without_functions(old_server: Node) -> None:
    url = f"redis://127.0.0.1:{old_server.port}/0"
    told = wait_until(lambda: "Connection refused" not in (said := doctor(url)) and said, 20)
    assert told == f"Error: {NO_FUNCTIONS}\n"


def doctor(url: str) -> str:
    return supervisor_at(url)("doctor").output
