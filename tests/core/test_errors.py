"""Errors that leave their process: by pickle, or by Celery's result backend."""

from __future__ import annotations

import json
import pickle

import pytest
from celery import Celery

from supervisor.errors import (
    ForeignLedger,
    InvalidGuard,
    InvalidJob,
    JobConflict,
    JobElsewhere,
    JobRaised,
    Problem,
    ScheduleFilesInvalid,
    SecretMissing,
    SupervisorError,
    UnknownJob,
    UnknownRun,
    UnreadableJob,
    WrongSchema,
)

ERRORS = [
    SupervisorError("no"),
    UnknownJob("nightly"),
    UnreadableJob("nightly"),
    UnknownRun("nightly@1", "its record cannot be read"),
    InvalidJob("nightly", ["'cron' is missing"]),
    JobConflict("nightly", 3),
    JobElsewhere("nightly", "jobs.yaml:3"),
    WrongSchema(2, 1),
    ForeignLedger("shop", "proj"),
    InvalidGuard("task 'a'", ["unknown key 'kye'"]),
    SecretMissing("${env:A}", "it is not set"),
    JobRaised.of(SystemExit(3)),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_celery_gives_a_caller_the_error_that_its_task_raised(error: SupervisorError) -> None:
    backend = Celery("errors", backend="cache+memory://", set_as_current=False).backend
    stored = json.loads(json.dumps(backend.prepare_exception(error, serializer="json")))
    copy = backend.exception_to_python(stored)
    assert (type(copy), str(copy)) == (type(error), str(error))


@pytest.mark.parametrize(
    "error",
    [
        *ERRORS,
        UnknownJob("nightyl", ["nightly"]),
        ScheduleFilesInvalid([Problem("jobs.yaml", 3, "nightly", "'cron' is missing")]),
    ],
    ids=repr,
)
def test_a_pickled_error_is_the_same(error: SupervisorError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), repr(copy), vars(copy)) == (type(error), repr(error), vars(error))
