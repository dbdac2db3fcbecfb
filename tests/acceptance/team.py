"""The app that the acceptance tests deploy: ordinary Celery tasks, and one line to supervise it."""

import contextlib
import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from celery import Celery, Task
from celery.exceptions import Ignore, Reject
from celery.worker.request import Request

from supervisor import current_run, run_command
from supervisor.app import supervise

app = Celery("team", broker=os.environ["TEAM_BROKER"])
if Path("team_settings.py").exists():
    app.config_from_object("team_settings")
supervise(app, schedules="schedules")

WITNESS = Path(__file__).with_name("witness.jsonl")


def sign(event, task):
    run = current_run()
    line = {
        "run": run.run_id,
        "step": run.step,
        "item": run.item,
        "event": event,
        "at": time.time(),
        "pid": os.getpid(),
        "attempt": run.attempt,
        "nominal_at": run.nominal_at.isoformat(),
        "fencing_token": run.fencing_token,
        "retries": task.request.retries,
    }
    descriptor = os.open(WITNESS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, (json.dumps(line) + "\n").encode())
    os.close(descriptor)


def say(*words):
    """Prints a line at once: other processes write to the same log."""
    print(" ".join(map(str, words)) + "\n", end="", flush=True)  # noqa: T201


@app.task(bind=True, guard=False)
def work(self, seconds=0.0):
    sign("start", self)
    try:
        time.sleep(seconds)
    finally:
        sign("end", self)


def wait_for(gate):
    """Until the test has made this file."""
    deadline = time.monotonic() + 900
    while not Path(gate).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(gate)
        time.sleep(0.01)


def wait_to_end():
    """Until the test lets the run end, with `Project.let_end`."""
    wait_for(WITNESS.with_name(f"may-end-{current_run().run_id}"))


@app.task(bind=True, guard=False)
def hold(self, fails=False):
    sign("start", self)
    try:
        wait_to_end()
    finally:
        sign("end", self)
    if fails:
        raise ValueError("not so")


@app.task(bind=True)
def tell(self, gate=None, fails=False):
    """Says where it is, waits for the gate to be there, and says the rest."""
    run = current_run()
    run.progress(1, 4, "opened")
    run.log("loaded %s rows", 17)
    sign("start", self)
    if gate:
        wait_for(gate)
    run.log("the last line")
    run.progress(4, 4, "closed")
    sign("end", self)
    if fails:
        raise ValueError("not so")


@app.task(bind=True)
def stubborn(self, seconds=None):
    """Goes on whatever is raised in it; without a time until the test lets it end."""
    sign("start", self)
    until = time.monotonic() + (seconds or 600)
    gate = WITNESS.with_name(f"may-end-{current_run().run_id}")
    while time.monotonic() < until and (seconds or not gate.exists()):
        with contextlib.suppress(BaseException):
            time.sleep(0.1)
    sign("end", self)


@app.task(bind=True, guard={"overlap": "queue_one", "key": "import:{feed}", "lease_ttl": "4s"})
def import_feed(self, feed, held=False):
    sign("start", self)
    if held:
        wait_to_end()
    sign("end", self)


class Forgetful(app.Task):
    """Its hook does not call the one above it, which for Celery does nothing."""

    def before_start(self, task_id, args, kwargs):
        pass


@app.task(base=Forgetful, bind=True, guard=True)
def forgetful(self):
    wait_to_end()


@app.task(bind=True, guard=True)
def hand_over(self):
    raise self.replace(import_feed.s("handed over"))


@app.task(bind=True, guard=True, max_retries=2)
def insist(self):
    say("insists", self.request.retries)
    raise self.retry(countdown=0, exc=ValueError("not yet"))


@app.task(bind=True, guard={"lease_ttl": "3s"}, max_retries=1)
def remember(self, word, *, twice):
    sign("start", self)
    if self.request.retries < 1:
        wait_to_end()
        raise self.retry(countdown=0, exc=ValueError("once more"))
    say("remembers", word, twice, self.request.timelimit)


@app.task(bind=True, guard={"overlap": "queue_all", "key": "family"})
def ask_parent(self):
    wait_to_end()
    say(f"{self.request.id} of", self.request.parent_id, self.request.root_id)


@app.task(bind=True)
def have_children(self):
    first, second = ask_parent.delay(), ask_parent.delay()
    WITNESS.with_name("children.json").write_text(
        json.dumps([self.request.id, first.id, second.id])
    )


@app.task
def hear(returned):
    say("heard of the end")


@app.task(bind=True)
def fail(self, attempts=99):
    sign("start", self)
    if self.request.retries < attempts:
        raise ValueError("not yet")


@app.task(bind=True, max_retries=1)
def ask_again(self):
    sign("start", self)
    if self.request.retries < 1:
        raise self.retry(countdown=1, exc=ValueError("asked again"))


@app.task(bind=True, autoretry_for=(KeyError,), default_retry_delay=1)
def auto(self):
    sign("start", self)
    if self.request.retries < 1:
        raise KeyError("auto")


@app.task(bind=True)
def leave(self, how):
    sign("start", self)
    if how == "exit":
        sys.exit(3)
    if how == "memory":
        raise MemoryError
    if how == "ignore":
        raise Ignore
    if how == "reject":
        raise Reject("not mine", requeue=True)
    if how == "kill":
        os.kill(os.getpid(), 9)


@app.task(bind=True)
def hang(self, attempts=1):
    """Works until it is ended, so many times."""
    sign("start", self)
    if current_run().attempt <= attempts:
        time.sleep(60)
    sign("end", self)


@app.task(bind=True)
def family(self):
    """Runs a program that starts another; until it is ended."""
    pids = WITNESS.with_name(f"pids-{current_run().run_id}")
    sign("start", self)
    run_command(["sh", "-c", f"sleep 60 & echo $$ $! > '{pids}'; wait"])


@app.task(bind=True)
def cling(self):
    """Does not end when Celery tells it to."""
    sign("start", self)
    try:
        while True:
            try:
                time.sleep(60)
            except SystemExit:
                sign("told", self)
    finally:
        sign("end", self)


class Custom(Task):  # Celery's own: a base that knows nothing of the guard
    abstract = True


@app.task(bind=True, base=Custom)
def custom(self):
    sign("start", self)


class Announced(Request):
    """The team's own, which tells what its worker has accepted."""

    def on_accepted(self, pid, time_accepted):
        super().on_accepted(pid, time_accepted)
        WITNESS.with_name(f"accepted-{self.id}").touch()


class Announcing(Task):
    abstract = True
    Request = Announced


class AnnouncingToo(app.Task):
    abstract = True
    Request = f"{__name__}:Announced"


@app.task(bind=True, base=Announcing)
def announced(self, seconds=0.0):
    sign("start", self)
    time.sleep(seconds)


@app.task(bind=True, base=AnnouncingToo)
def announced_too(self, seconds=0.0):
    sign("start", self)
    time.sleep(seconds)


@app.task
def unsupervised(path):
    Path(path).write_text(str(current_run()))


@app.task(bind=True, guard=True)
def echo(self, moment, amount):
    say("echoed", type(moment).__name__, type(amount).__name__)


@app.task(bind=True, max_retries=3)
def spend_again(self, *args, page=1, **kwargs):
    """Tries again in each way to say with what; writes down what each attempt was given."""
    with WITNESS.with_name("given.jsonl").open("a") as given:
        said = self.request.headers.get("colour"), self.request.delivery_info["priority"]
        given.write(json.dumps([page, args, kwargs, *said]) + "\n")
    if page == 1:  # the arguments as they are known here, one of them changed in place
        kwargs["done"].append(page)
        kwargs["deep"] = {"token": args[0]}
        raise self.retry((*args, "more"), {**kwargs, "page": 2}, countdown=0)
    if page == 2:  # as they came, which some tasks hand on
        later = datetime.now(UTC) + timedelta(hours=1)
        colours = {"headers": {"colour": "green"}, "expires": later}
        kwargs = {**self.request.kwargs, "page": 3}
        self.retry(kwargs=kwargs, countdown=0, throw=False, **colours)
        return
    if self.request.retries == 2:
        raise self.retry(countdown=0, priority=3)


@app.task(bind=True)
def spend(self, *args, **kwargs):
    """Writes down what it was given; fails with the password in its last words, if it is to."""
    WITNESS.with_name("given.json").write_text(json.dumps([args, kwargs]))
    sign("start", self)
    if kwargs.get("fails"):
        raise ValueError(f"no login with {kwargs['password']}")


@app.task(bind=True)
def heed(self):
    """Ends when it is asked to, and not before."""
    sign("start", self)
    try:
        while not (run := current_run()).should_end:
            time.sleep(0.05)
        run.check()
    finally:
        sign("end", self)


@app.task(bind=True)
def spin(self, seconds):
    """Computes without a pause, in its first attempt, and then waits."""
    sign("start", self)
    try:
        until = time.monotonic() + seconds
        if current_run().attempt == 1:
            while time.monotonic() < until:
                pass
            time.sleep(60)
    finally:
        sign("end", self)
