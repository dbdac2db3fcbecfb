from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery
from celery.schedules import schedule
from click.testing import CliRunner, Result
from redbeat.schedulers import RedBeatSchedulerEntry

from supervisor.catalog.schedule_files import load
from supervisor.cli import main

APP = """\
from celery import Celery
from celery.schedules import crontab

app = Celery("proj", broker="{url}", set_as_current=False)
app.conf.redbeat_redis_url = "{url}"
app.conf.beat_schedule = {{
    "nightly": {{"task": "reports.nightly", "schedule": crontab(minute=30, hour=2)}},
    "poll": {{"task": "mail.poll", "schedule": 90.0, "options": {{"expires": 60}}}},
}}
"""
BLINK = """
app.conf.beat_schedule["blink"] = {"task": "t", "schedule": 0.5}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project as the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "app_of_the_import_test", raising=False)
    app_is(APP.format(url="redis://"))
    return tmp_path


def app_is(text: str) -> None:
    Path("app_of_the_import_test.py").write_text(text)


def supervisor(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def of_app(*words: str) -> Result:
    return supervisor("-A", "app_of_the_import_test", "import", *words)


def test_the_beat_schedule_is_written_to_standard_output(here: Path) -> None:
    result = of_app("beat-schedule")
    assert (result.exit_code, result.stderr) == (0, "")
    (here / "jobs.yaml").write_text(result.stdout)
    specs = load(here / "jobs.yaml").specs
    assert [(spec.name, spec.schedule) for spec in specs.values()] == [
        ("nightly", "30 2 * * *"),
        ("poll", "every 1m30s"),
    ]


def test_what_is_not_translated_is_on_stderr_and_in_its_place_and_exits_1() -> None:
    app_is(APP.format(url="redis://") + BLINK)
    result = of_app("beat-schedule")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("beat_schedule 'blink': not translated: an interval under")
    assert "  # beat_schedule 'blink': not translated:" in result.stdout
    assert "  #   schedule: 0.5" in result.stdout


def test_what_was_imported_passes_the_check() -> None:
    assert of_app("beat-schedule", "--output", "jobs.yaml").exit_code == 0
    assert supervisor("check", "jobs.yaml").stdout == "jobs.yaml: 2 jobs in 1 file, no problems\n"


def test_redbeats_entries_are_read_from_redis(redis_url: str) -> None:
    app_is(APP.format(url=redis_url))
    app = Celery("proj", broker=redis_url, set_as_current=False)
    app.conf.update(redbeat_redis_url=redis_url, redbeat_redis_options={})
    every_minute = schedule(60, app=app)
    RedBeatSchedulerEntry("saved", "mail.poll", every_minute, enabled=False, app=app).save()
    result = of_app("redbeat")
    assert result.exit_code == 0, result.output
    assert "  saved:\n    task: mail.poll\n    every: 1m\n    paused: true\n" in result.stdout


@pytest.mark.parametrize("source", ["beat-schedule", "redbeat"])
def test_without_an_app_the_command_line_is_off(source: str) -> None:
    result = supervisor("import", source)
    assert result.exit_code == 2
    assert "supervisor -A proj import" in result.stderr


def test_a_file_is_overwritten_only_by_force(here: Path) -> None:
    (here / "jobs.yaml").write_text("mine")
    result = of_app("beat-schedule", "-o", "jobs.yaml")
    assert (result.exit_code, (here / "jobs.yaml").read_text()) == (4, "mine")
    assert "--force" in result.stderr
    assert of_app("beat-schedule", "-o", "jobs.yaml", "--force").exit_code == 0
    assert load(here / "jobs.yaml").specs
    assert sorted(path.name for path in here.glob("*jobs*")) == ["jobs.yaml"]


@pytest.mark.parametrize(
    "words",
    [
        ("beat-schedule", "--timezone", "Europe/Berlin"),
        ("beat-schedule", "more"),
        ("crontab", "-"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_exits_2(words: tuple[str, ...]) -> None:
    assert supervisor("import", *words).exit_code == 2


def test_a_place_that_cannot_be_written_to_is_an_error(here: Path) -> None:
    result = of_app("beat-schedule", "-o", "app_of_the_import_test.py/jobs.yaml")
    assert (result.exit_code, "cannot be written" in result.stderr) == (1, True)


def test_a_link_and_a_device_stay_what_they_are(here: Path) -> None:
    (here / "link.yaml").symlink_to("real.yaml")
    os.mkfifo(here / "pipe")
    reader = os.open(here / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for name in ("link.yaml", "pipe"):
        assert of_app("beat-schedule", "-o", name, "--force").exit_code == 0
    assert (here / "link.yaml").is_symlink()
    assert (here / "pipe").is_fifo()
    assert os.read(reader, 100_000).decode() == (here / "real.yaml").read_text()
    os.close(reader)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="a device of Linux")
def test_output_to_a_full_disk_is_a_message(here: Path) -> None:
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "supervisor", "schema"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: [Errno 28] No space left on device\n"
