"""The units: what systemd itself says of them, and what one more job adds."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from supervisor.embedded import server_binary
from supervisor.render import systemd
from supervisor.render.directory import write
from supervisor.render.systemd import SystemdOptions
from supervisor.spec import JobSpec
from tests.render.jobs import ROOT, examples, job, plan_of

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)

#: Of 100, where Celery's own units of beat have 92; docs/deploying.md states it.
EXPOSURE = 11

SERVICES = ["supervisor-beat@1", "supervisor-serve", "supervisor-valkey"]
WORKERS = ["supervisor-worker@default", "supervisor-worker@serial.checksum-docs"]


def rendered(*jobs: JobSpec, **options: object) -> Mapping[str, str]:
    return systemd.render(plan_of(*jobs), SystemdOptions(**options))  # type: ignore[arg-type]


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


@needs_systemd
@pytest.mark.parametrize(
    "unit", ["supervisor.target", *(f"{n}.service" for n in SERVICES + WORKERS)]
)
def test_systemd_has_nothing_to_say_of_a_unit(units: Path, unit: str) -> None:
    # It exits 0 for a key that it does not know, and only tells of it.
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


def test_an_instance_of_the_worker_consumes_the_queue_of_its_name_with_one_process() -> None:
    worker = rendered(*examples())["supervisor-worker@.service"]
    assert "worker -n %i@%%h -Q %i -c 1 --prefetch-multiplier 1 -P prefork" in worker
    assert "KillMode=mixed" in worker


def test_what_is_special_in_a_unit_file_is_escaped() -> None:
    files = rendered(directory="/opt/my app", environment=(("SHARE", '50% of "$HOME"'),))
    beat = files["supervisor-beat@.service"]
    assert "WorkingDirectory=/opt/my app\n" in beat
    assert 'ExecStart="/opt/my app/.venv/bin/celery" -A' in beat
    assert r'Environment="SHARE=50%% of \"$HOME\""' in beat


def test_valkey_may_run_elsewhere() -> None:
    assert not any("valkey.service" in name for name in rendered(valkey=None))
