"""What `self.retry` says of the next attempt's arguments, beside what they were."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from supervisor.worker.retries import given_once


@pytest.mark.parametrize(
    ("args", "kwargs", "again"),
    [
        (None, None, (None, None)),
        (None, {"b": 5}, ([1, 5], {})),
        (None, {"c": 5}, ([1, 2], {"c": 5})),
        (None, {"b": 5, "other": 6}, ([1, 5], {"other": 6})),
        ([7], None, ([7], {"c": 3})),
        ([7, 8, 9], None, ([7, 8, 9], {})),
        ([7], {"c": 9}, ([7], {"c": 9})),
    ],
)
def test_an_argument_that_is_given_in_another_way_is_given_once(
    args: Any, kwargs: Any, again: Any
) -> None:
    app = Celery("retries", set_as_current=False)

    @app.task(bind=True, shared=False)
    def work(self: Any, a: int, b: int, c: int = 0, **more: Any) -> None: ...

    work.push_request(args=[1, 2], kwargs={"c": 3})
    assert given_once(work, args, kwargs) == again
    assert work.request.kwargs == {"c": 3}
