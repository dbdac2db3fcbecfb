"""The Python of a page does what the page says of it.

The blocks of one page run in one process, in their order, between lines that stand for the
reader's code and for what the reader would see.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.ledger.ledger import Ledger
from tests.jobs import job
from tests.test_code_blocks import BLOCKS, Block
from tests.waiting import scaled

#: What pages take for granted.
BEFORE = """\
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from celery import Celery
from supervisor import current_run, jobs
from supervisor.app import supervise
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings

ledger = Ledger.open(Settings(os.environ["SUPERVISOR_REDIS_URL"]))


def states(job):
    return [run.state for run in ledger.history(job)]

"""

APP = """
app = Celery("proj")
supervise(app, schedules="schedules", redis_url=os.environ["SUPERVISOR_REDIS_URL"])
"""

#: Each of the page's blocks of Python, named by a piece of it, stands after a `%`.
STORIES = {
    "README.md": """
% supervise(app
assert app.conf.broker_url == os.environ["SUPERVISOR_REDIS_URL"]
assert app.conf.beat_scheduler.endswith("SupervisedScheduler"), app.conf.beat_scheduler
""",
    "docs/how-to/adopting.md": """
from celery.schedules import crontab
from redbeat import RedBeatSchedulerEntry
app = Celery("proj")
supervise(app, adopt_entries=True)
% RedBeatSchedulerEntry(
assert RedBeatSchedulerEntry.from_key("redbeat:report-acme", app=app).task == "proj.report"
""",
    "docs/how-to/after-commit.md": APP
    + """
from django.conf import settings
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

class Base(DeclarativeBase): ...

class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str | None]
    shipped: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime | None]

@app.task
def send_mail(number): ...

@app.task(guard=True)
def ship(number): ...

engine = create_engine("sqlite://")
Base.metadata.create_all(engine)
% trigger_on_commit(session, send_mail
assert states("ship-orders") == ["queued"], states("ship-orders")
assert ledger.client.llen("mails") == 1
with Session(engine) as session:
    session.query(Order).delete()
    session.commit()
% def ship_what_was_lost
with Session(engine) as session:
    session.scalars(select(Order)).one().created_at = datetime.now(UTC) - timedelta(hours=1)
    session.commit()
ship_what_was_lost()
assert len(states(ship.name)) == 1, states(ship.name)

memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(DATABASES={"default": memory}, SUPERVISOR_APP="__main__")
import django
from django.db import connection, models, transaction
django.setup()

class Order(models.Model):
    number = models.IntegerField(unique=True)
    class Meta:
        app_label = "proj"

with connection.schema_editor() as editor:
    editor.create_model(Order)
% with transaction.atomic
assert states("ship-orders") == ["skipped", "queued"], states("ship-orders")
assert ledger.client.llen("mails") == 2
""",
    "docs/how-to/deploying.md": """
% no broker=
assert app.conf.broker_url == os.environ["SUPERVISOR_REDIS_URL"]
""",
    "docs/how-to/importing.md": """
% def run_command
run_command("echo done > done.txt")
assert Path("done.txt").read_text() == "done\\n"
""",
    "docs/how-to/from-lock-decorators.md": APP
    + """
% guard=
assert not import_feed.delay("a").was_skipped
assert import_feed.delay("a", full=True).was_skipped
assert not import_feed.delay("b").was_skipped
""",
    "docs/how-to/guarded-tasks.md": APP
    + """
import io, sqlite3
from contextlib import redirect_stdout
from celery.contrib.testing.worker import start_worker
% max_wait": "10m"})
% import_feed.delay
assert not result.was_skipped
% headers={"guard"
assert states(import_feed.name) == ["queued", "queued"]  # it has a lock of its own

heard, loaded, rows = [], [], ["a", "b"]
load = loaded.append

@app.task(guard=True, name="ask")
def ask():
    global path
    path = "dump"

% run.fencing_token
    assert (run.job, run.attempt) == ("ask", 1)
    heard.append(run.fencing_token)
% run.progress(
    Path("pg_dump").write_text('#!/bin/sh\\necho "$@"')
    Path("pg_dump").chmod(0o755)
    os.environ["PATH"] = f"{Path.cwd()}:{os.environ['PATH']}"
% pg_dump
    assert done.returncode == 0
% LeaseLost, RunCancelled
    assert not issubclass(LeaseLost, Exception) and not issubclass(RunCancelled, Exception)
% current_run().check()
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE fence (resource TEXT PRIMARY KEY, token BIGINT NOT NULL)")
% def claim
    claim(database.cursor(), "report")
    claim(database.cursor(), "report")
    database.execute("UPDATE fence SET token = token + 1")
    try:
        claim(database.cursor(), "report")
    except RuntimeError as error:
        heard.append(str(error))

call = ask.delay()
with start_worker(app, perform_ping_check=False):
    while (run := ledger.run(call.id)).state.is_open:
        pass
assert run.state == "succeeded", run
assert heard[1] == "report was written by a later run"
assert loaded == rows
""",
    "docs/how-to/jobs-at-run-time.md": APP
    + """
from supervisor.errors import JobConflict

@app.task(name="proj.report")
def report(tenant): ...

% jobs.remove("report-acme")
assert "report-acme" not in ledger.specs()
keys = {"task": "proj.report", "every": "1h", "kwargs": {"tenant": "acme"}}
jobs.put("report-acme", **keys)
changed = {**keys, "every": "2h"}
% if_version=0
assert {"report-acme", "report-new"} <= {*ledger.specs()}
for name, version in {"report-acme": job.version, "report-new": 0}.items():
    try:
        jobs.put(name, if_version=version, **keys)
    except JobConflict:
        continue
    raise AssertionError(name)
""",
    "docs/how-to/logs.md": """
import io, logging, logging.config
% LOGGING =
logging.config.dictConfig({"version": 1, **LOGGING})
shown = io.StringIO()
handler = logging.getHandlerByName("own") if hasattr(logging, "getHandlerByName") else None
handler = handler or logging._handlers["own"]
handler.setStream(shown)
handler.handle(logging.makeLogRecord({"msg": "outside of a run"}))
assert shown.getvalue().endswith("  outside of a run\\n"), shown.getvalue()
""",
    "docs/how-to/rabbitmq.md": """
% acks_late
assert app.conf.broker_url.startswith("amqp:")
""",
    "docs/how-to/steps.md": APP
    + """
Path("tree").mkdir()
Path("tree/page.md").touch()
% def list_files
assert list_files("tree") == {"files": ["tree/page.md"]}
% def words
def work(tree): ...

for name in ("extract", "convert", "index"):
    app.task(work, name=f"docs.{name}")
% supervisor.start
[run] = [run for name in ledger.specs() for run in ledger.history(name) if run.id == run_id]
assert run.state in ("queued", "running"), run
""",
    "docs/reference/settings.md": """
% returns the app
assert supervise(app) is app
""",
}

#: Blocks of Python that other tests run, or that cannot be run here.
ELSEWHERE = {
    "docs/how-to/django.md": "examples/django has them (tests/adoption/test_examples.py); settings",
    "docs/how-to/web-apps.md": "examples/ has them (tests/adoption/test_examples.py)",
    "docs/how-to/notices.md": "tests/features/notices/test_notify.py",
    "docs/how-to/telemetry.md": "the SDK wants the address of a real project",
    "docs/how-to/testing.md": "tests/acceptance/test_testing.py",
    "docs/tutorial/first-job.md": "tests/acceptance/test_tutorial.py",
}

#: Of a page with a story, the block that shows what others have.
OF_OTHERS = ("docs/how-to/from-lock-decorators.md", "base=Singleton")

PYTHON = [block for block in BLOCKS if block.language == "python" and not block.mark]


def test_every_block_of_python_is_run_or_it_is_said_where() -> None:
    assert {block.page for block in PYTHON} == STORIES.keys() | ELSEWHERE.keys()
    for page, story in STORIES.items():
        named = [line[2:] for line in story.splitlines() if line.startswith("% ")]
        own = [b for b in PYTHON if b.page == page and not is_of_others(b)]
        assert len(own) == len(named), page


def is_of_others(block: Block) -> bool:
    page, piece = OF_OTHERS
    return block.page == page and piece in block.text


def program(page: str) -> str:
    """The story with the blocks in it, each as far to the right as the line before it."""
    lines: list[str] = []
    for line in STORIES[page].splitlines():
        if not line.startswith("% "):
            lines.append(line)
            continue
        [text] = [b.text for b in PYTHON if b.page == page and line[2:] in b.text]
        before = next((one for one in reversed(lines) if one.strip()), "")
        indent = before[: len(before) - len(before.lstrip())]
        lines += [indent + one for one in text.splitlines()]
    return BEFORE + "\n".join(lines)


@pytest.mark.parametrize("page", STORIES)
def test_the_python_of_a_page_does_what_the_page_says(
    page: str, ledger: Ledger, redis_url: str, tmp_path: Path
) -> None:
    job(ledger, "ship-orders", task="proj.ship", every=None, cron="0 0 1 1 *")
    (tmp_path / "schedules").mkdir(exist_ok=True)
    file = tmp_path / "story.py"
    file.write_text(program(page))
    done = subprocess.run(
        [sys.executable, file],
        cwd=tmp_path,
        env={**os.environ, "SUPERVISOR_REDIS_URL": redis_url},
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )
    assert done.returncode == 0, done.stderr
