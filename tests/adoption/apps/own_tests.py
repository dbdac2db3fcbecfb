"""The tests of that app; the ones named `eager` are run with task_always_eager."""

import pytest
from celery import chain, chord, group
from celery.contrib.testing.tasks import ping
from tested import add, app

pytest_plugins = ("celery.contrib.pytest",)
ping  # noqa: B018  (the task that celery_worker asks for)


def test_eager_call():
    result = add.delay(2, 3)
    assert (result.get(), result.state) == (5, "SUCCESS")


def test_eager_error():
    with pytest.raises(TypeError):
        add.delay(1, "a")


def test_eager_canvas():
    assert chain(add.s(1, 2), add.s(3))().get() == 6
    assert group(add.s(1, 1), add.s(2, 2))().get() == [2, 4]
    assert chord([add.s(1, 1), add.s(2, 2)], shared_total.s())().get() == 6


@app.task
def shared_total(numbers):
    return sum(numbers)


def test_eager_context():
    @app.task(bind=True)
    def context(self):
        return self.request.is_eager, self.request.called_directly, self.request.retries

    assert context.delay().get() == (True, False, 0)
    assert context() == (False, True, 0)


@pytest.fixture(scope="module")
def celery_app():
    return app


def test_worker_runs_tasks(celery_app, celery_worker):
    assert add.delay(4, 4).get(timeout=60) == 8


def test_worker_of_a_test_app(celery_session_app, celery_session_worker):
    @celery_session_app.task
    def double(number):
        return 2 * number

    celery_session_worker.reload()
    assert double.delay(4).get(timeout=60) == 8
