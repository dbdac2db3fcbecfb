"""Our verbs as Celery's: `celery -A proj supervisor VERB`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from celery.bin.celery import celery
from click.testing import CliRunner, Result

APP = "examples.app"

SCHEDULES = str(Path(__file__).parents[3] / "schedules")


def said(*words: str, app: str | None = APP) -> Result:
    named = ["-A", app] if app else []
    return CliRunner().invoke(celery, [*named, "supervisor", *words], catch_exceptions=False)


def test_queues_prints_commands_with_the_apps_own_name() -> None:
    done = said("queues", "--schedules", SCHEDULES, "--json")
    commands = [worker["command"][1:3] for worker in json.loads(done.output)]
    assert all(command in (["-A", APP], ["-A", f"{APP}:app"]) for command in commands)


def test_render_takes_the_app_from_celery(tmp_path: Path) -> None:
    done = said("render", "systemd", "--output", str(tmp_path), "--schedules", SCHEDULES)
    assert done.exit_code == 0, done.output
    assert any(f"-A {APP}" in unit.read_text() for unit in tmp_path.glob("*.service"))


def test_up_takes_the_app_from_celery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The check after the app's, and the last before anything is started.
    done = said("up", "--host", "0.0.0.0")
    assert (done.exit_code, "SUPERVISOR_TOKEN" in done.output) == (2, True), done.output


@pytest.mark.parametrize("verb", [("up",), ("render", "systemd", "--output", "x")])
def test_without_an_app_there_is_none(verb: tuple[str, ...]) -> None:
    done = said(*verb, app=None)
    assert (done.exit_code, "name the Celery app" in done.output) == (2, True), done.output
