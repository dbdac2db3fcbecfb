"""The whole product over TLS: a throw-away authority, a client's certificate, Sentinel, errors."""

from __future__ import annotations

import subprocess
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from urllib.parse import quote

import httpx
import pytest
from celery import Celery
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from supervisor.app import supervise
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.cli import main
from supervisor.ledger.ledger import Ledger
from supervisor.sending.app_settings import required_settings, settings_of
from supervisor.settings import Settings
from supervisor.store.connection import HANDSHAKE_TIMEOUT_SECONDS
from supervisor.testing import empty
from tests.acceptance.nodes import SERVER, Node
from tests.acceptance.project import Project
from tests.ports import free_port
from tests.programs import needed
from tests.waiting import scaled, status_of, wait_until

OVER_TLS = f"""\
{SERVER}
port 0
tls-port {{port}}
tls-cert-file {{certificates}}/server.crt
tls-key-file {{certificates}}/server.key
tls-ca-cert-file {{certificates}}/ca.crt
tls-auth-clients yes
requirepass secret
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
    def client_files(self) -> dict[str, str]:
        files = {"ca_certs": "ca.crt", "certfile": "client.crt", "keyfile": "client.key"}
        return {f"ssl_{what}": str(self.directory / name) for what, name in files.items()}

    @property
    def as_client(self) -> str:
        return "&".join(f"{option}={path}" for option, path in self.client_files.items())

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
    node.start(OVER_TLS, certificates=authority.directory)
    address = f"rediss://:secret@127.0.0.1:{node.port}/0"
    wait_until(lambda: jobs(f"{address}?{authority.as_client}").exit_code == 0, 20)
    Ledger.open(Settings(f"{address}?{authority.as_client}")).acknowledge_server()
    yield address
    node.kill()


def jobs(url: str) -> Result:
    return CliRunner().invoke(main, ["--redis-url", url, "jobs"])


def works(project: Project) -> None:
    """A job runs, and the doctor finds nothing wrong. What another project left is deleted."""
    empty(project.ledger)
    try:
        project.schedule("jobs: {other: {task: team.work, every: 1s}}")
        project.beat()
        project.hire()
        wait_until(
            lambda: project.events("beat", "leadership taken") and project.starts("other"), 60
        )

        def examined() -> str:
            """Once the first turn of beat is over: until then it does not lead for the doctor."""
            output = project.supervisor("doctor").stdout
            return "" if "no beat leads" in output else output

        assert " 0 wrong" in wait_until(examined, 20)
    finally:
        project.stop()


def test_the_product_works_over_tls_with_a_clients_certificate(
    tmp_path: Path, address: str, authority: Authority, stack: ExitStack
) -> None:
    project = Project(tmp_path / "team", f"{address}?{authority.as_client}")
    stack.callback(project.stop)
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
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=scaled(20)) as client:
        assert 'supervisor_runs_started_total{job="tick"}' in client.get("/metrics").text


SENTINEL = """\
bind 127.0.0.1
port 0
tls-port {port}
tls-cert-file {certificates}/server.crt
tls-key-file {certificates}/server.key
tls-ca-cert-file {certificates}/ca.crt
tls-auth-clients no
tls-replication yes
dir {directory}
requirepass of-sentinel
sentinel monitor jobs 127.0.0.1 {primary} 1
sentinel auth-pass jobs secret
"""


@pytest.fixture(scope="module")
def sentinel(
    tmp_path_factory: pytest.TempPathFactory, address: str, authority: Authority
) -> Iterator[int]:
    """The port of a sentinel that watches the server; it talks TLS as that does."""
    node = Node(tmp_path_factory.mktemp("sentinel") / "node", needed("redis-server"))
    primary = address.rpartition(":")[2].partition("/")[0]
    node.start(SENTINEL, "--sentinel", certificates=authority.directory, primary=primary)
    yield node.port
    node.kill()


@pytest.mark.parametrize("spelling", ["address", "celery"])
def test_sentinels_and_servers_talk_tls(
    tmp_path: Path, sentinel: int, authority: Authority, spelling: str
) -> None:
    bare = f"sentinel://:secret@127.0.0.1:{sentinel}/0"
    url = f"{bare}?master_name=jobs&sentinel_password=of-sentinel&{authority.as_client}"
    project = Project(tmp_path / "team", url)
    if spelling == "celery":
        tls = authority.client_files
        asked = {"password": "of-sentinel", "ssl": True, **tls}
        options = {"master_name": "jobs", "sentinel_kwargs": asked}
        project.broker, project.is_apart = bare, False
        project.settings(f"broker_transport_options = {options}\nbroker_use_ssl = {tls}\n")
    works(project)


SECRET = "S3cr/et#Qz7@W9k:x%"
ENCODED = quote(SECRET, safe="")


def ticked(beat: SupervisedScheduler) -> None:
    beat.tick()
    beat.close()


def told_of(url: str) -> str:
    """All that a deployment with this address says: verbs, beat, senders, reports, tracebacks."""
    app = Celery("telling", broker=url, set_as_current=False)
    app.task(name="telling.task")(jobs)
    told = [
        CliRunner().invoke(main, ["--redis-url", url, *words]).output
        for words in (["jobs"], ["doctor"], ["trigger", "job"])
    ]
    with capture_logs() as logs:
        for act in (
            lambda: supervise(app),
            lambda: required_settings(app),
            lambda: repr(settings_of(app)),
            lambda: Ledger.open(settings_of(app) or Settings()).now(),
            lambda: ticked(SupervisedScheduler(app, lazy=True)),
            lambda: app.tasks["telling.task"].apply_async(retry=False),
            lambda: app.bugreport(),
        ):
            try:
                told.append(str(act()))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it is looked at
                told.append("".join(traceback.format_exception(error)))
    return "".join([*told, *map(str, logs)]).replace(url, "")


@pytest.mark.parametrize(
    ("address_of", "said"),
    [
        ("redis://:{raw}@127.0.0.1:{port}/0", "cannot be read"),
        ("rediss://{raw}:{raw}@127.0.0.1:{port}/0?ssl_cert_reqs=none", "cannot be read"),
        ("redis://:{encoded}@127.0.0.1:{closed}/0", "Connection refused"),
        ("rediss://:{encoded}@127.0.0.1:{port}/0", "by an authority whose file"),
        ("rediss://:{encoded}@127.0.0.1:{port}/0?{client}", "does not let us in"),
        ("rediss://:{encoded}@127.0.0.1:{port}/0?ssl_ca_certs=/none", "/none cannot be read"),
        ("redis://:{encoded}@127.0.0.1:{port}/0", "the ledger is unavailable"),
        ("redis://:{encoded}@127.0.0.1:{port}/0?colour={encoded}", "does not know"),
        (
            "sentinel://:{encoded}@127.0.0.1:{closed}/0?master_name=m&sentinel_password={encoded}",
            "No master found",
        ),
    ],
)
def test_no_error_has_a_password(
    address: str, authority: Authority, address_of: str, said: str
) -> None:
    port = address.rpartition(":")[2].partition("/")[0]
    url = address_of.format(
        raw=SECRET, encoded=ENCODED, port=port, closed=free_port(), client=authority.as_client
    )
    told = told_of(url)
    assert said in told
    assert not {part for part in ("S3cr", "Qz7", "W9k") if part in told}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("ssl_ca_certs=/none/ca.crt", "/none/ca.crt cannot be read: No such file or directory"),
        ("ssl_ca_certs={own}/san", "{own}/san cannot be read: [X509"),
        ("ssl_certfile={own}/server.crt&ssl_keyfile={own}/ca.key", "cannot be read: [X509"),
    ],
)
def test_a_certificate_that_cannot_be_read_is_named_in_a_sentence(
    tmp_path: Path, address: str, authority: Authority, options: str, message: str, stack: ExitStack
) -> None:
    own = str(authority.directory)
    url = f"{address}?{options.format(own=own)}"
    refused = jobs(url)
    checked = CliRunner().invoke(main, ["--redis-url", url, "check"])
    for done in (refused, checked):
        assert done.exit_code == 2
        assert message.format(own=own) in done.output
        assert done.output.count("\n") == 1
    project = Project(tmp_path / "team", url)
    stack.callback(project.stop)
    for process in (project.beat(), project.hire()):
        assert status_of(process, 60) == 1
    assert "Traceback" not in project.logs()
    assert project.logs().count(message.format(own=own)) == 2


def test_a_port_without_tls_is_named_after_one_handshake(redis_url: str) -> None:
    server = redis_url.partition("://")[2]
    began = monotonic()
    refused = jobs(f"rediss://{server}")
    assert refused.exit_code == 5
    assert "redis:// in place of rediss://" in refused.output
    assert monotonic() - began < 5 * HANDSHAKE_TIMEOUT_SECONDS


def test_an_app_that_checks_no_certificate_is_supervised_as_it_is(
    tmp_path: Path, authority: Authority, stack: ExitStack
) -> None:
    """As kombu has it for rediss:// alone; a worker says so once."""
    node = Node(tmp_path / "server", needed("redis-server"))
    stack.callback(node.kill)
    node.start(OVER_TLS + "tls-auth-clients no\n", certificates=authority.directory)
    url = f"rediss://:secret@127.0.0.1:{node.port}/0"
    unchecked = f"{url}?ssl_cert_reqs=none"
    project = Project(tmp_path / "team", unchecked, broker=url, is_apart=False)
    stack.callback(project.stop)
    wait_until(lambda: jobs(unchecked).exit_code == 0, 20)
    project.ledger.acknowledge_server()
    project.schedule("jobs: {other: {task: team.work, every: 1s}}")
    project.beat()
    project.hire()
    wait_until(lambda: project.starts("other"), 60)
    assert project.logs().count("broker's certificate not checked") == 2


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
    works(project)
