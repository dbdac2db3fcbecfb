"""An app whose tasks are looked at: by Celery's own means and Flower while they run, by tracers."""

import os
import time
from contextlib import contextmanager
from pathlib import Path

import facts
from celery import Celery

if os.environ.get("TRACER") == "sentry":
    import sentry_sdk
    from sentry_sdk.integrations.celery import CeleryIntegration

    sentry_sdk.init(
        dsn="http://key@127.0.0.1:1/1",
        traces_sample_rate=1.0,
        integrations=[CeleryIntegration()],
    )

if os.environ.get("TRACER") == "opentelemetry":
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())
    CeleryInstrumentor().instrument()

app = Celery("listed")
app.config_from_object("settings")
facts.supervised(app)


def hold(number):
    """Until the test has made this file."""
    deadline = time.monotonic() + 600
    while not Path(f"may-end-{number}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return number


@app.task(name="called", guard=True)
def called(number, text):
    return hold(number)


@app.task(name="scheduled")
def scheduled(number, text):
    return hold(number)


@contextmanager
def request():
    """What a web server does for a request, whose trace is given."""
    match os.environ.get("TRACER"):
        case "sentry":
            with sentry_sdk.start_transaction(name="request") as transaction:
                yield transaction.trace_id
        case "opentelemetry":
            with trace.get_tracer("web").start_as_current_span("request") as span:
                yield format(span.get_span_context().trace_id, "032x")
        case _:
            yield ""


def calls():
    return {}
