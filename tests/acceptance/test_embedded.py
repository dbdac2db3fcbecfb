"""The embedded server: one address, one owner, nothing lost that was written."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest
import redis

from supervisor.deploy import embedded
from supervisor.deploy.embedded import EmbeddedServer
from supervisor.errors import SupervisorError
from tests.waiting import wait_until


def test_data_and_address_survive_a_stop_and_a_kill(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        url = server.url
        client = redis.Redis.from_url(url, decode_responses=True)
        client.set("kept", "by a stop")
        server.stop()
        assert server.start() == url
        assert client.get("kept") == "by a stop"
        client.set("kept", "by a kill")
        # The append-only file is written every second.
        wait_until(lambda: client.execute_command("WAITAOF", 1, 0, 2_000)[0])
        server.kill()
        assert not server.is_alive
        assert server.start() == url
        assert client.get("kept") == "by a kill"
        client.close()


def test_a_directory_has_one_server_at_a_time(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as first:
        with pytest.raises(SupervisorError, match="another server is running in"):
            EmbeddedServer(tmp_path).start()
        assert first.is_alive
    with EmbeddedServer(tmp_path):
        pass


def test_a_directory_may_have_any_name(tmp_path: Path) -> None:
    directory = tmp_path / """my 'own' "jobs" é"""
    with EmbeddedServer(directory):
        assert (directory / "server.log").exists()
        assert (directory / "appendonlydir").is_dir()


def test_no_other_user_reads_the_password(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        password = server.url.split(":")[2].partition("@")[0]
        for name in ("password", "server.conf"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        assert password not in Path(f"/proc/{server.pid}/cmdline").read_text()
        assert password not in server.address
        with (
            redis.Redis.from_url(server.address) as without_password,
            pytest.raises(redis.exceptions.AuthenticationError),
        ):
            without_password.ping()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_free_port_is_not_one_of_outgoing_connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_known: bool
) -> None:
    first, last = (tmp_path / name for name in ("known", "unknown"))
    first.write_text("30000\t60999\n")
    monkeypatch.setattr(embedded, "OUTGOING", first if is_known else last)
    with socket.create_server(("127.0.0.1", embedded.free_port())) as server:
        port = server.getsockname()[1]
        assert not embedded.port_is_free(port)
    assert not is_known or 20_000 <= port < 30_000


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        redis.Redis.from_url(server.url).set("some", "data")
    manifest = next((tmp_path / "appendonlydir").glob("*.manifest"))
    manifest.write_text("this is no manifest")
    with pytest.raises(SupervisorError, match="did not start"):
        EmbeddedServer(tmp_path).start()
