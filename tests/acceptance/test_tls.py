"""The whole product over TLS, with a throw-away authority and a client's certificate."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from supervisor.cli import main
from supervisor.deploy.embedded import free_port
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.acceptance.nodes import Node
from tests.acceptance.project import Project
from tests.programs import needed
from tests.waiting import patience, wait_until

SERVER = """\
bind 127.0.0.1
port 0
tls-port {port}
tls-cert-file {certificates}/server.crt
tls-key-file {certificates}/server.key
tls-ca-cert-file {certificates}/ca.crt
tls-auth-clients yes
dir {directory}
logfile server.log
requirepass secret
appendonly yes
maxmemory-policy noeviction
save ""
"""

SCHEDULE = """\
jobs:
  tick: {task: team.work, every: 1s}
  in-a-row: {task: team.work, every: 1s, serial: true}
"""


class Authority:
    """Signs certificates for this machine's loopback address."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self._openssl("req", "-x509", *self._key("ca"), "-out", "ca.crt", "-subj", "/CN=test")

    def sign(self, name: str) -> None:
        self._openssl("req", *self._key(name), "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (self.directory / "san").write_text("subjectAltName=IP:127.0.0.1\n")
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", "san", "-out", f"{name}.crt"),
        )

    @property
    def as_client(self) -> str:
        files = {"ca_certs": "ca.crt", "certfile": "client.crt", "keyfile": "client.key"}
        return "&".join(f"ssl_{what}={self.directory / name}" for what, name in files.items())

    def _key(self, name: str) -> tuple[str, ...]:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        return (*curve, "-keyout", f"{name}.key")

    def _openssl(self, *arguments: str) -> None:
        command = [needed("openssl"), *arguments]
        subprocess.run(command, cwd=self.directory, check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    ours = Authority(tmp_path_factory.mktemp("tls") / "ours")
    ours.sign("server")
    ours.sign("client")
    return ours


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[str]:
    """Of a server that only clients of the authority reach."""
    node = Node(tmp_path_factory.mktemp("redis") / "server", needed("redis-server"))
    node.start(SERVER, certificates=authority.directory)
    address = f"rediss://:secret@127.0.0.1:{node.port}/0"
    wait_until(lambda: jobs(f"{address}?{authority.as_client}").exit_code == 0, 20)
    Ledger.open(Settings(f"{address}?{authority.as_client}")).acknowledge_server()
    yield address
    node.kill()


def jobs(url: str) -> Result:
    return CliRunner().invoke(main, ["--redis-url", url, "jobs"])


@pytest.mark.timeout(120)
def test_the_product_works_over_tls_with_a_clients_certificate(
    tmp_path: Path, address: str, authority: Authority
) -> None:
    project = Project(tmp_path / "team", f"{address}?{authority.as_client}")
    try:
        project.schedule(SCHEDULE)
        project.beat()
        project.hire()
        project.hire(queues="serial.in-a-row", processes=1)
        port = free_port()
        project.serve("--port", str(port))
        wait_until(lambda: project.starts("tick") and project.starts("in-a-row"), 60)
        done = project.supervisor("doctor")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 to note" in done.stdout  # a second beat
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=patience(20)) as client:
            assert 'supervisor_runs_started_total{job="tick"}' in client.get("/metrics").text
    finally:
        project.stop()


def test_a_server_of_another_authority_is_not_talked_to(
    tmp_path: Path, address: str, authority: Authority
) -> None:
    other = Authority(tmp_path / "other")
    other.sign("client")
    refused = jobs(f"{address}?{other.as_client}")
    assert refused.exit_code == 5
    assert "certificate verify failed" in refused.output


def test_a_client_without_a_certificate_is_refused(address: str, authority: Authority) -> None:
    refused = jobs(f"{address}?ssl_ca_certs={authority.directory}/ca.crt")
    assert refused.exit_code == 5
    assert "the ledger is unavailable" in refused.output


@pytest.mark.timeout(120)
@pytest.mark.parametrize("spelling", ["address", "broker_use_ssl"])
def test_tls_as_celery_spells_it_is_the_ledgers_too(
    tmp_path: Path, address: str, authority: Authority, spelling: str
) -> None:
    """Also of a server whose certificate is not to be checked."""
    own = authority.directory / "client"
    project = Project(tmp_path / "team", f"{address}?{authority.as_client}")
    if spelling == "address":
        options = f"ssl_certfile={own}.crt&ssl_keyfile={own}.key"
        project.broker = f"{address}?ssl_cert_reqs=CERT_NONE&{options}"
    else:
        project.broker = address.replace("rediss:", "redis:")
        project.settings(
            "import ssl\n"
            "broker_use_ssl = {'ssl_cert_reqs': ssl.CERT_NONE,"
            f" 'ssl_certfile': '{own}.crt', 'ssl_keyfile': '{own}.key'}}\n"
        )
    project.is_apart = False
    try:
        project.schedule("jobs: {other: {task: team.work, every: 1s}}")
        project.beat()
        project.hire()
        wait_until(lambda: project.starts("other"), 60)
        done = project.supervisor("doctor")
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        project.stop()
