"""What a worker takes from the broker: JSON, and nothing that runs code when it is read."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from celery import Celery
from kombu import Producer

from supervisor.errors import UnsafeContent
from supervisor.ledger.requests import RunRequest
from supervisor.sending.content import check_settings, check_tasks
from tests.acceptance.project import Project
from tests.waiting import status_of, wait_until


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mknod, (str(self.path),)


def send_pickle(url: str, path: Path) -> None:
    with Celery(broker=url).connection() as connection:
        Producer(connection).publish(
            pickle.dumps(((), {"path": Touch(path)}, {})),
            routing_key="celery",
            content_type="application/x-python-serialize",
            content_encoding="binary",
            headers={"task": "team.unsupervised", "id": "evil", "lang": "py"},
        )


def test_a_pickle_is_refused_and_the_worker_works_on(project: Project, tmp_path: Path) -> None:
    project.schedule("jobs: {report: {task: team.work, every: 1d}}")
    project.beat()
    worker = project.worker()
    send_pickle(project.url, tmp_path / "unpickled")
    wait_until(lambda: "ContentDisallowed" in project.log_of(worker))
    ledger = project.ledger
    wait_until(lambda: "report" in ledger.job_names())
    project.run_when(ledger.trigger(ledger.spec("report"), RunRequest()).id, "succeeded")
    assert worker.poll() is None
    assert not (tmp_path / "unpickled").exists()


def test_a_worker_that_would_take_pickles_does_not_start(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("C_FORCE_ROOT", "1")  # Celery itself refuses no more than root
    project.extend("\napp.conf.accept_content = ['json', 'pickle']\n")
    worker = project.hire()
    assert status_of(worker, 30) != 0
    assert "JSON, not accept_content='pickle'" in project.log_of(worker)


def test_neither_beat_nor_worker_starts_with_redbeat_in_another_redis(project: Project) -> None:
    project.extend("\napp.conf.redbeat_redis_url = 'redis://:secret@elsewhere/1'\n")
    for started in (project.hire(), project.beat()):
        assert status_of(started, 30) != 0
    for name in ("worker0", "beat"):
        assert "redbeat_redis_url leads to elsewhere:6379/1" in project.log(name)
        assert "secret" not in project.log(name)


@pytest.mark.parametrize(
    "setting", ["task_serializer", "result_serializer", "event_serializer", "accept_content"]
)
@pytest.mark.parametrize("name", ["pickle", "yaml", "msgpack", "application/x-python-serialize"])
def test_only_json_plain_or_signed_passes(setting: str, name: str) -> None:
    check_settings({setting: "json"})
    check_settings({setting: ["auth"]})
    with pytest.raises(UnsafeContent, match=f"{setting}='{name}'"):
        check_settings({setting: name})


def test_a_task_with_a_serializer_of_its_own_is_named() -> None:
    app = Celery(set_as_current=False)
    app.task(name="proj.fine")(send_pickle)
    check_tasks(app)
    app.task(name="proj.bad", serializer="pickle")(send_pickle)
    with pytest.raises(UnsafeContent, match=r"task 'proj\.bad' has serializer='pickle'"):
        check_tasks(app)
