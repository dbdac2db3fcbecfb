"""What a worker takes from the broker: runs are JSON, and what else is the app's own business."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from celery import Celery
from kombu import Producer

from supervisor.ledger.run_request import RunRequest
from tests.acceptance.project import Project
from tests.waiting import wait_until


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


@pytest.mark.parametrize("content", ["pickle", "yaml"])
def test_runs_are_json_in_an_app_whose_other_messages_are_not(
    project: Project, content: str, tmp_path: Path
) -> None:
    project.environ["C_FORCE_ROOT"] = "1"  # Celery itself refuses pickles to root
    project.settings(
        f"task_serializer = result_serializer = {content!r}; accept_content = [{content!r}]"
    )
    project.schedule("jobs: {report: {task: team.work, every: 1d, args: [0.1]}}")
    project.beat()
    project.worker()
    project.wait_for_jobs()
    project.run_when(project.trigger("report").id, "succeeded")
    project.code(
        f"""
given = {str(tmp_path / "plain")!r}
team.unsupervised.delay(__import__("pathlib").Path(given) if {content!r} == "pickle" else given)
team.import_feed.delay("a")
print(1)"""
    )
    wait_until((tmp_path / "plain").exists)
    wait_until(lambda: project.witness("team.import_feed"))
    assert "message dropped" not in project.logs()
