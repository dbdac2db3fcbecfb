"""The ids of runs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from celery import Celery

from supervisor.job import run_ids
from supervisor.job.run_ids import StepId, tick_id
from supervisor.ledger.ledger import Ledger
from supervisor.sending.publisher import publisher_of
from supervisor.sending.starting import start

MAKERS = [maker for name, maker in vars(run_ids).items() if name.endswith("_id")]


def test_the_hour_that_comes_twice_has_two_ids_for_each_time() -> None:
    """Python calls both equal, and a cache by the time would give one id to both."""
    once = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    again = once.replace(fold=1)
    assert once == again
    assert tick_id("nightly", once) == "nightly@2026-10-25T00:30:00Z"
    assert tick_id("nightly", again) == "nightly@2026-10-25T01:30:00Z"


@pytest.mark.parametrize("maker", MAKERS)
def test_an_id_is_one_part_of_a_path(maker: Callable[..., str]) -> None:
    """Result backends name files after ids, and the page's addresses have them."""
    given = ("nightly", datetime(2026, 10, 25, 2, 30, 1, 500_000, tzinfo=UTC))
    run = maker(*given[: len(inspect.signature(maker).parameters)])
    assert run.startswith("nightly@")
    assert "/" not in StepId(run, "step").batch


def count_stock() -> None: ...


def test_steps_and_items_have_results_in_files(app: Celery, ledger: Ledger, tmp_path: Path) -> None:
    app.conf.result_backend = f"file://{tmp_path}"
    app.task(name="paths.step", shared=False)(count_stock)
    each = {"task": "paths.step", "priority": 1, "name": "each", "foreach": "items"}
    step = {"task": "paths.step", "priority": 1, "name": "step"}
    run = start([each, step], {"items": ["a"]}, app=app)
    publisher_of(app).publish(ledger.outbox())
    messages = map(json.loads, ledger.client.lrange("celery", 0, -1))
    sent = [message["headers"]["id"] for message in messages]
    assert {*sent} == {f"{run}~each#0", f"{run}~step"}
    for task_id in sent:
        app.backend.mark_as_done(task_id, task_id)
        assert app.AsyncResult(task_id).result == task_id
