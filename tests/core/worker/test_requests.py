"""A request in a worker: what it is given, how it is taken in, tried again and ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery, signals, states
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, InvalidTaskError, Reject, Retry
from celery.worker.request import Request

from supervisor.app import supervise
from supervisor.guard.attempt import Attempt
from supervisor.guard.guard import Guard
from supervisor.job.run_ids import manual_id
from supervisor.worker.endings import end_of
from supervisor.worker.intake import RunStrategies
from supervisor.worker.request import GuardedRequest, guarded_request
from supervisor.worker.task import GuardedTask, prepare_to_run, task_of
from tests.jobs import delivery

# A task's own request class, in a worker's main process


class Own(Request):
    pass


@pytest.mark.parametrize("given", [Request, Own])
def test_every_request_is_guarded_and_what_it_was(given: type[Request]) -> None:
    made = guarded_request(given)
    assert issubclass(made, GuardedRequest)
    assert issubclass(made, given)
    assert guarded_request(given) is made


def test_a_run_that_celery_finds_nowhere_in_its_message_is_refused() -> None:
    """By Celery's older protocol it reads the body alone, where another client names no run."""
    run = manual_id("nightly")
    said = {"id": run, "supervisor": dict(delivery(run).header)}
    kombus = {"properties": {}, "delivery_info": {}, "content_type": None, "content_encoding": None}
    message, app = SimpleNamespace(headers=said, **kombus), Celery("proj", set_as_current=False)
    body = {"body": ([], {}, {}), "decoded": True}
    taken = partial(guarded_request(Request), message, app=app, task=app.Task(), **body)
    assert taken(headers={**said, "task": "t"})
    with pytest.raises(InvalidTaskError, match="the run is not named"):
        taken(headers={"id": run, "task": "t"})


def test_a_request_class_that_cannot_be_guarded_takes_no_run() -> None:
    app = supervise(Celery("proj", set_as_current=False))

    @app.task(name="proj.odd", Request=int)
    def odd() -> None: ...

    pool = SimpleNamespace(apply_async=None)
    strategies = RunStrategies(SimpleNamespace(app=app, pool=pool), lambda *_: None)
    with pytest.raises(InvalidTaskError, match=r"task 'proj\.odd' cannot be put under the guard"):
        strategies["proj.odd"]
    assert app.tasks["proj.odd"].Request is int


# How a task ended, of what Celery's own tracer says of it


def attempt() -> Attempt:
    """Of a run with an id of its own: Celery remembers ids that have succeeded."""
    return Attempt(cast(Guard, None), delivery(manual_id("nightly")))


def app_with_results() -> Celery:
    """One that asks for the result of what is delivered again."""
    app = Celery("team", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.update(task_acks_late=True, worker_deduplicate_successful_tasks=True)
    return app


def traced(app: Celery, body: Callable[[], Any], seen: Attempt) -> tuple[str | None, Any, Any]:
    """The end of a redelivered task with this body, and the state that the tracer came with."""

    @app.task(name="team.nightly", shared=False)
    def nightly() -> Any:
        try:
            returned = body()
        except BaseException as error:
            seen.raised = error
            raise
        seen.has_returned = True
        return returned

    told: list[tuple[str | None, Any, Any]] = []

    def look(retval: Any = None, state: str | None = None, **_: Any) -> None:
        told.append((*end_of(seen, retval, state), state))

    signals.task_postrun.connect(look, weak=False)
    try:
        tracer = build_tracer("team.nightly", app.tasks["team.nightly"], app=app)
        request = {"id": seen.run_id, "delivery_info": {"redelivered": True}}
        with contextlib.suppress(SystemExit, Reject, OSError):
            tracer(seen.run_id, (), {}, request)
    finally:
        signals.task_postrun.disconnect(look)
    [end] = told
    return end


def raising(error: BaseException) -> Callable[[], Any]:
    def body() -> Any:
        raise error

    return body


@pytest.mark.parametrize("stored", [None, states.STARTED, states.RETRY, states.FAILURE])
@pytest.mark.parametrize(
    ("body", "end"),
    [
        (lambda: 1, states.SUCCESS),
        (raising(ValueError("not so")), states.FAILURE),
        (raising(Retry("again", when=1)), states.RETRY),
        (raising(Ignore()), states.IGNORED),
        (raising(Reject()), states.REJECTED),
        (raising(SystemExit(15)), None),
    ],
    ids=["returns", "raises", "retries", "ignores", "rejects", "is told to stop"],
)
def test_what_an_earlier_delivery_left_in_the_result_backend_is_no_end(
    stored: str | None, body: Callable[[], Any], end: str | None
) -> None:
    app, seen = app_with_results(), attempt()
    if stored:
        app.backend.store_result(seen.run_id, None, stored)
    assert traced(app, body, seen)[0] == end


@pytest.mark.filterwarnings("ignore:Exception raised outside body:RuntimeWarning")
@pytest.mark.parametrize("stored", [None, states.STARTED])
@pytest.mark.parametrize("error", [ValueError("not so"), Retry("again", when=1)])
def test_what_the_body_raised_is_the_end_when_it_cannot_be_stored(
    stored: str | None, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, seen = app_with_results(), attempt()
    if stored:
        app.backend.store_result(seen.run_id, None, stored)
    for name in ("mark_as_failure", "mark_as_retry"):
        monkeypatch.setattr(app.backend, name, lambda *_, **__: raising(OSError("away"))())
    state, value, said = traced(app, raising(error), seen)
    assert (state, value) == (states.RETRY if isinstance(error, Retry) else states.FAILURE, error)
    assert said == (stored or states.PENDING)  # what was there before, as it seems to Celery


def test_a_run_told_to_stop_after_its_body_has_returned_has_succeeded() -> None:
    returned = attempt()
    returned.has_returned = True
    assert end_of(returned, None, None) == (states.SUCCESS, None)


@pytest.mark.parametrize("is_lazy", [True, False])
def test_a_task_of_another_app_that_is_registered_is_put_under_the_guard(is_lazy: bool) -> None:
    """A decorator of Celery's gives a proxy, until it is asked for its name."""
    app, other = Celery("app", set_as_current=False), Celery("other", set_as_current=False)

    @other.task(name="proj.lazy")
    def lazy() -> None: ...

    app.tasks.register(lazy if is_lazy else other.tasks["proj.lazy"])
    prepare_to_run(task_of(app, "proj.lazy"), "host")
    assert isinstance(app.tasks["proj.lazy"], GuardedTask)
    assert app.tasks["proj.lazy"].app is app
