"""The units: what systemd itself says of them, and what one more job adds."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import redis

from supervisor.deploy import targets
from supervisor.deploy.directory import write
from supervisor.deploy.embedded import server_binary
from supervisor.job.spec import JobSpec
from tests.acceptance.nodes import answers
from tests.ports import free_port
from tests.programs import needed, needs
from tests.tools.deploy.jobs import ROOT, examples, job, plan_of
from tests.waiting import status_of, wait_until

needs_systemd = needs("systemd-analyze")

#: Of 100, where Celery's own units of beat have 92.
EXPOSURE = 11

SERVICES = ["supervisor-beat@1", "supervisor-serve", "supervisor-valkey"]
WORKERS = ["supervisor-worker@default", "supervisor-worker@serial.checksum-docs"]


def rendered(*jobs: JobSpec, **options: object) -> Mapping[str, str]:
    return targets.render_systemd(plan_of(*jobs), **options)  # type: ignore[arg-type]


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The examples' units, with programs that exist here: systemd looks for them."""
    programs = tmp_path / "opt" / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("celery", "supervisor"):
        (programs / name).symlink_to(ROOT / ".venv" / "bin" / name)
    files = rendered(*examples(), directory=str(tmp_path / "opt"), valkey=server_binary())
    write(tmp_path / "units", "systemd", files)
    return tmp_path / "units"


def test_serve_is_given_its_token_and_no_secret_of_jobs() -> None:
    given = {
        name: set(re.findall("^EnvironmentFile=-?/etc/supervisor/(.*)$", text, re.MULTILINE))
        for name, text in rendered(*examples()).items()
        if "\nExecStart=/opt" in text and "[Unit]" in text
    }
    assert given == {
        "supervisor-beat@.service": {"supervisor.env", "jobs.env"},
        "supervisor-serve.service": {"supervisor.env", "serve.env"},
        "supervisor-worker@.service": {"supervisor.env", "jobs.env"},
    }


@needs_systemd
@pytest.mark.parametrize(
    "unit", ["supervisor.target", *(f"{n}.service" for n in SERVICES + WORKERS)]
)
def test_systemd_has_nothing_to_say_of_a_unit(units: Path, unit: str) -> None:
    # It exits 0 for a key that it does not know, and only warns.
    done = subprocess.run(
        ["systemd-analyze", "verify", unit],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{units}:"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("name", ["beat@", "worker@", "serve", "valkey"])
def test_a_unit_is_exposed_no_more_than_is_stated(name: str) -> None:
    unit = ROOT / "deploy" / "systemd" / f"supervisor-{name}.service"
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_one_more_serial_job_adds_exactly_its_worker() -> None:
    before = rendered(*examples())
    after = rendered(*examples(), job("mail", serial=True, time_limit="2m"))
    unit = "supervisor-worker@serial.mail.service"
    assert after.keys() - before.keys() == {
        f"{unit}.d/50-worker.conf",
        f"supervisor.target.d/{unit}.conf",
    }
    assert {name: after[name] for name in before} == before
    assert "TimeoutStopSec=150\n" in after[f"{unit}.d/50-worker.conf"]


def test_an_instance_of_the_worker_consumes_the_queue_of_its_name() -> None:
    worker = rendered(*examples())["supervisor-worker@.service"]
    assert "worker -n %i@%%h -Q %i -c 1 --prefetch-multiplier 1 -P prefork" in worker
    assert "KillMode=mixed" in worker


def test_what_is_special_in_a_unit_file_is_escaped() -> None:
    files = rendered(directory="/opt/my app", environment=(("SHARE", '50% of "$HOME"'),))
    beat = files["supervisor-beat@.service"]
    assert "WorkingDirectory=/opt/my app\n" in beat
    assert 'ExecStart="/opt/my app/.venv/bin/celery" -A' in beat
    assert r'Environment="SHARE=50%% of \"$HOME\""' in beat


def test_without_a_local_valkey_the_address_is_to_be_filled_in() -> None:
    assert "@127.0.0.1:6379/" in rendered()["supervisor.env.example"]
    assert "@HOST:6379/" in rendered(valkey=None)["supervisor.env.example"]
    assert not any("valkey" in text for text in rendered(valkey=None).values())


@pytest.mark.parametrize(
    ("schedules", "followed"),
    [
        ("schedules", "/opt/supervisor/schedules"),
        ("etc/jobs", "/opt/supervisor/etc/jobs"),
        (".", "/opt/supervisor"),
        ("{here}/schedules", "/opt/supervisor/schedules"),
        ("/etc/jobs", "/etc/jobs"),
        ("../jobs", "{above}/jobs"),
    ],
)
def test_beat_follows_the_schedule_files_that_were_read(
    schedules: str, followed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`supervisor check` beside the app reads the same ones."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    path = Path(schedules.format(here=here))
    expected = followed.format(above=tmp_path)
    seen = targets.seen_from("/opt/supervisor", path)
    assert os.path.normpath(seen) == expected
    beat = rendered(schedules=seen)["supervisor-beat@.service"]
    assert f"Environment=SUPERVISOR_SCHEDULES={seen}\n" in beat


def test_redis_takes_the_arguments_that_valkey_is_given(tmp_path: Path) -> None:
    """Where a distribution has no Valkey: `--valkey /usr/bin/redis-server`."""
    program = needed("redis-server")
    [line] = settings_of(rendered(valkey=program)["supervisor-valkey.service"], "ExecStart")
    (tmp_path / "valkey.conf").write_text("requirepass of-the-test\n")
    port = free_port()
    line = line.replace("${CREDENTIALS_DIRECTORY}", str(tmp_path)).replace("6379", str(port))
    command = shlex.split(line.replace("/var/lib/supervisor-valkey", str(tmp_path)))
    client = redis.Redis(port=port, password="of-the-test")
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: answers(client), 10)
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly") == {"appendonly": "yes"}
    finally:
        client.close()
        server.terminate()
        assert status_of(server, 30) == 0


def settings_of(unit: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in unit.splitlines() if line.startswith(f"{key}=")]
