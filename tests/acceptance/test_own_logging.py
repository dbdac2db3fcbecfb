"""The app's logging, its tests, and its modules are not ours to touch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.project import Project
from tests.waiting import wait_until

JOBS = "jobs: {report: {task: team.work, every: 1d, paused: true}}"

#: What an app does with its logging, and a line that only then is there.
OWN = {
    "formats": ("app.conf.worker_log_format = 'OWN %(name)s: %(message)s'", "OWN supervisor."),
    "receiver": (
        """
import logging
from celery import signals

@signals.setup_logging.connect(weak=False)
def set_up(**_):
    logging.basicConfig(format="OWN %(name)s: %(message)s", level="INFO")
""",
        "OWN supervisor.",
    ),
    "after": (
        """
import logging
from celery import signals

@signals.after_setup_logger.connect(weak=False)
def extend(logger, **_):
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("OWN %(name)s: %(message)s"))
    logger.addHandler(handler)
""",
        "OWN supervisor.",
    ),
}


@pytest.mark.parametrize("how", OWN)
@pytest.mark.parametrize("form", ["", "json"])
def test_a_workers_lines_go_where_the_app_has_them(project: Project, how: str, form: str) -> None:
    text, line = OWN[how]
    project.environ["SUPERVISOR_LOG_FORMAT"] = form
    project.extend(text)
    project.schedule(JOBS)
    project.beat()
    worker = project.worker(processes=1)
    project.wait_for_jobs()
    project.run_when(project.trigger("report").id, "succeeded")
    wait_until(lambda: "run ended" in project.log_of(worker))
    logged = [line for line in project.log_of(worker).splitlines() if "run ended" in line]
    is_ours = form == "json" and how != "receiver"
    assert any(one.startswith(line) for one in logged) == (how == "after" or not is_ours)
    assert any(one.startswith("{") for one in logged) == is_ours
    if not is_ours:
        assert "job='report'" in logged[0]


#: An app's tests: eager calls, and a worker in a thread, without any Redis.
TESTS = """
import threading
import pytest
from celery import VERSION, Celery, Task, shared_task
from supervisor import current_run
from supervisor.app import supervise

pytest_plugins = ("celery.contrib.pytest",)

@pytest.fixture(scope="session")
def celery_config():
    return {"broker_url": "memory://", "result_backend": "cache+memory://"}

@shared_task(bind=True, guard={"overlap": "queue_one", "key": "{feed}"})
def import_feed(self, feed):
    assert current_run() is None
    if feed == "again" and not self.request.retries:
        raise self.retry(countdown=0)
    return feed

@shared_task
def plain(x):
    return x + 1

@pytest.fixture
def proj():
    app = Celery("proj", broker="memory://", task_cls="tasks_of_proj:Base")
    app.conf.result_backend = "cache+memory://"
    supervise(app)
    return app

def test_eager(proj):
    proj.conf.task_always_eager = True
    proj.set_current()
    done = import_feed.delay("a")
    assert (done.get(), done.was_skipped, done.state) == ("a", False, "SUCCESS")
    if VERSION >= (5, 5):  # before, a class with a `__call__` of its own has no such retry
        assert import_feed.delay("again").get() == "again"
    assert import_feed.s("b").apply().get() == "b"
    assert plain.delay(1).get() == 2

def test_plugin(celery_app, celery_worker):
    celery_worker.reload()
    assert plain.delay(1).get(timeout=300) == 2
    assert import_feed.delay("c").get(timeout=300) == "c"

def test_a_supervised_worker_in_a_thread(proj):
    from celery.contrib.testing.worker import start_worker
    with start_worker(proj, perform_ping_check=False):
        assert plain.delay(1).get(timeout=300) == 2
    for thread in threading.enumerate():
        if thread.name.startswith("supervisor"):
            thread.join(300)  # it was told to end, and may be at its last look
            assert not thread.is_alive()
"""


def test_an_apps_own_tests_need_no_redis(tmp_path: Path) -> None:
    (tmp_path / "test_proj.py").write_text(TESTS)
    (tmp_path / "tasks_of_proj.py").write_text("from celery import Task\nclass Base(Task): ...\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_proj.py"],
        cwd=tmp_path,
        env={"SUPERVISOR_REDIS_URL": "redis://127.0.0.1:1/0", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


#: The app's module names a task class of a module that imports the app.
CIRCLE = {
    "proj/__init__.py": "",
    "proj/celery.py": """
from celery import Celery
from supervisor.app import supervise
app = supervise(Celery("proj", broker="memory://", task_cls="proj.tasks:Base"))
""",
    "proj/tasks.py": """
from celery import Task
from proj.celery import app
class Base(Task):
    abstract = True
@app.task(guard=True)
def work(): ...
""",
}


def test_supervise_imports_nothing_of_the_apps(tmp_path: Path) -> None:
    for name, text in CIRCLE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    code = (
        "import sys, proj.celery; assert 'proj.tasks' not in sys.modules; import proj.tasks as t;"
        " print(isinstance(t.app.tasks['proj.tasks.work'], t.Base))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
