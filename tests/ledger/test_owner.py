"""A ledger is one app's: a beat of another by mistake changes nothing in it, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery
from click.testing import CliRunner

from supervisor.app import supervise
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.cli import main
from supervisor.errors import ForeignLedger
from supervisor.ledger.ledger import Ledger
from supervisor.operate.doctor import owner
from supervisor.operate.doctor_facts import read
from supervisor.sending.app_settings import owner_of
from tests.ledger.contents import digests
from tests.waiting import wait_until


class Team:
    """An app with one job, named like itself."""

    def __init__(self, url: str, directory: Path, name: str, owner: str | None = None) -> None:
        self.files = directory / name
        self.files.mkdir(exist_ok=True)
        (self.files / "jobs.yaml").write_text(f"jobs: {{{name}: {{task: t, every: 1h}}}}\n")
        broker = {"broker": url, "set_as_current": False}
        self.app = supervise(Celery(name, **broker), schedules=self.files, owner=owner)

    @contextmanager
    def beat(self) -> Iterator[SupervisedScheduler]:
        beat = SupervisedScheduler(self.app, lazy=True)
        try:
            yield beat
        finally:
            beat.close()
            self.app.close()


@pytest.fixture
def shop(redis_url: str, tmp_path: Path, ledger: Ledger) -> Team:
    """Its beat has led, loaded its job, and is gone."""
    team = Team(redis_url, tmp_path, "shop")
    with team.beat() as beat:
        wait_until(lambda: beat.tick() >= 0 and ledger.scheduled_names() == ["shop"])
    return team


def test_a_beat_of_another_app_changes_nothing_and_names_both(
    shop: Team, redis_url: str, tmp_path: Path, ledger: Ledger
) -> None:
    before = digests(ledger.client)
    with Team(redis_url, tmp_path, "billing").beat() as beat:
        with pytest.raises(ForeignLedger, match="'shop', and this is 'billing'") as refused:
            beat.tick()
        assert "apply --take-over" in str(refused.value)
    after = digests(ledger.client)
    assert before.keys() == after.keys()
    assert {key for key in before if before[key] != after[key]} == {ledger.keys.beat}
    [finding] = owner(read(ledger))
    assert "billing (" in finding.what


def test_a_standby_of_another_app_is_refused_while_the_owner_leads(
    shop: Team, redis_url: str, tmp_path: Path
) -> None:
    with shop.beat() as leader, Team(redis_url, tmp_path, "billing").beat() as other:
        leader.tick()
        with pytest.raises(ForeignLedger):
            other.tick()


def test_a_ledger_without_an_owner_is_that_of_the_first_beat(
    shop: Team, redis_url: str, tmp_path: Path, ledger: Ledger
) -> None:
    """As an earlier version left it, or `up` on a server of its own."""
    ledger.forget_owner()
    with shop.beat() as beat:
        beat.tick()
    assert ledger.beat().app == "shop"


def test_the_same_owner_leads_under_another_name_of_the_app(
    shop: Team, redis_url: str, tmp_path: Path, ledger: Ledger
) -> None:
    renamed = Team(redis_url, tmp_path, "boutique", owner="shop")
    assert owner_of(renamed.app) == "shop"
    with renamed.beat() as beat:
        wait_until(lambda: beat.tick() >= 0 and ledger.scheduled_names() == ["boutique"])


def test_apply_takes_a_ledger_over_on_purpose_alone(
    shop: Team, redis_url: str, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "boutique_app.py").write_text(
        "from celery import Celery\n"
        "from supervisor.app import supervise\n"
        f"app = supervise(Celery('boutique', broker={redis_url!r}, set_as_current=False))\n"
        "@app.task(name='t', shared=False)\ndef t(): ...\n"
    )
    files = tmp_path / "boutique"
    files.mkdir()
    (files / "jobs.yaml").write_text("jobs: {boutique: {task: t, every: 1h}}\n")

    def apply(*words: str) -> str:
        done = CliRunner().invoke(
            main, ["-A", "boutique_app", "apply", str(files), "--yes", *words]
        )
        return f"{done.exit_code} {done.output}"

    refused = apply()
    assert refused.startswith("4 ")
    assert "'shop', and this is 'boutique'" in refused
    assert ledger.scheduled_names() == ["shop"]
    with shop.beat() as old:
        old.tick()
        assert apply("--take-over").startswith("0 ")
        assert ledger.scheduled_names() == ["boutique"]
        with pytest.raises(ForeignLedger, match="'boutique', and this is 'shop'"):
            old.tick()
    assert ledger.scheduled_names() == ["boutique"]
    assert apply("--take-over").startswith("0 ")
