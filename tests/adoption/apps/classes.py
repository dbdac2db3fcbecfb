"""Classes of its own, routes by a function, annotations, canvas, late acks, results in SQL."""

from pathlib import Path

import facts
from celery import Celery, Task, chain, chord, group
from celery.worker.request import Request


def witness(word):
    with Path("witness").open("a") as file:
        file.write(word + "\n")


class LoggedRequest(Request):
    def on_accepted(self, pid, time_accepted):
        super().on_accepted(pid, time_accepted)
        witness(f"accepted {self.task.name}")

    def on_failure(self, exc_info, send_failed_event=True, return_ok=False):
        witness(f"failed {self.task.name} {type(exc_info.exception).__name__}")
        return super().on_failure(exc_info, send_failed_event, return_ok)


class LoggedTask(Task):
    Request = LoggedRequest
    abstract = True
    autoretry_for = (ConnectionError,)
    retry_backoff = False
    default_retry_delay = 1  # at once, another child may end it before this one stores RETRY

    def apply_async(self, args=None, kwargs=None, **options):
        headers = {"tenant": "acme", **(options.pop("headers", None) or {})}
        return super().apply_async(args, kwargs, headers=headers, **options)

    def before_start(self, task_id, args, kwargs):
        witness(f"before {self.name}")

    def on_success(self, retval, task_id, args, kwargs):
        witness(f"succeeded {self.name}")

    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        witness(f"returned {status} {self.name}")


def route(name, args, kwargs, options, task=None, **kw):
    return {"queue": "bulk", "priority": 3} if name.startswith("bulk.") else None


app = Celery("classes", task_cls=LoggedTask)
app.config_from_object("settings")
app.conf.update(
    result_backend="db+sqlite:///results.sqlite",
    result_extended=True,
    task_routes=(route, {"mail.*": {"queue": "mail"}}),
    task_annotations={"*": {"rate_limit": "1000/s"}, "mail.send": {"time_limit": 600}},
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_track_started=True,
)
facts.supervised(app)


@app.task(bind=True, name="mail.send")
def send(self, *args, **kwargs):
    return facts.seen(self)


@app.task(bind=True, name="bulk.load", acks_late=False)
def load(self, number):
    return facts.seen(self)


@app.task(bind=True, name="add")
def add(self, a, b):
    return a + b


@app.task(name="total")
def total(parts):
    return sum(parts)


@app.task(bind=True, name="flaky", max_retries=3)
def flaky(self):
    if self.request.retries < 2:
        raise ConnectionError("away")
    return self.request.retries


@app.task(bind=True, name="again")
def again(self, left):
    if left:
        raise self.retry(args=(left - 1,), countdown=1)
    return facts.seen(self)


@app.task(name="fails")
def fails():
    raise ValueError("as it should")


@app.task(name="told")
def told(*args):
    witness(f"told {len(args)}")


def calls():
    return {
        "send": send.si("a", to="b"),
        "load": load.s(1),
        "linked": add.signature((1, 2), link=told.s()),
        "chain": chain(add.s(1, 2), add.s(3), add.s(4)),
        "group": group(add.s(1, 1), add.s(2, 2)),
        "chord": chord([add.s(1, 1), add.s(2, 2)], total.s()),
        "flaky": flaky.s(),
        "again": again.s(2),
        "fails": fails.signature((), link_error=told.s()),
        "expires": add.signature((5, 5), expires=3600),
        "counted down": add.signature((6, 6), countdown=0.2),
    }
