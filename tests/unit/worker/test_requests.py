"""A task's own request class, in a worker's main process."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.worker.request import Request

from supervisor.app import supervise
from supervisor.worker.request import GuardedRequest, guarded_request, take_over_requests


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


def test_what_cannot_be_guarded_stops_the_worker_and_names_the_task() -> None:
    app = supervise(Celery("proj", set_as_current=False))

    @app.task(name="proj.odd", Request=int)
    def odd() -> None: ...

    with pytest.raises(SystemExit, match=r"task 'proj\.odd' cannot be put under the guard"):
        take_over_requests(app)
