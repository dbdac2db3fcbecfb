"""A task's own request class, in a worker's main process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery
from celery.exceptions import InvalidTaskError
from celery.worker.request import Request

from supervisor.app import supervise
from supervisor.worker.request import GuardedRequest, RunStrategies, guarded_request


class Own(Request):
    pass


class OwnOfOurs(GuardedRequest):
    pass


@pytest.mark.parametrize("given", [Request, Own, GuardedRequest, OwnOfOurs])
def test_every_request_is_guarded_and_what_it_was(given: type[Request]) -> None:
    made = guarded_request(given)
    assert issubclass(made, GuardedRequest)
    assert issubclass(made, given)
    assert guarded_request(given) is made


def test_a_request_class_that_cannot_be_guarded_takes_no_run() -> None:
    app = supervise(Celery("proj", set_as_current=False))

    @app.task(name="proj.odd", Request=int)
    def odd() -> None: ...

    pool = SimpleNamespace(apply_async=None)
    strategies = RunStrategies(SimpleNamespace(app=app, pool=pool))
    with pytest.raises(InvalidTaskError, match=r"task 'proj\.odd' cannot be put under the guard"):
        strategies["proj.odd"]
    assert app.tasks["proj.odd"].Request is int
