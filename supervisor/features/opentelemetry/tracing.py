"""A run's place in a distributed trace, and how long its attempts take (extra `otel`).

1. Code that asks for a run leaves its trace context in the run's record, in the headers that its
   messages will have: a run that waits is sent by another process, hours later.
2. Each message of the run, and of each step of it, is sent within that context.
3. The worker makes a span of it around the task's body. Where opentelemetry-instrumentation-celery
   has made one already, that span gets the run's attributes and no second one is made.

Without the library, nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry

from supervisor.job.run_ids import StepId
from supervisor.ledger.limits import BOUNDS
from supervisor.times import clock

if TYPE_CHECKING:
    from supervisor.guard.attempt import Attempt

NAME = "supervisor"


@cache
def is_there() -> bool:
    try:
        import opentelemetry.propagate
        import opentelemetry.trace  # noqa: F401 - whether it can be
    except ImportError:
        return False
    return True


def current_headers() -> dict[str, str]:
    """The headers that carry the caller's trace; empty outside of any."""
    carrier: dict[str, str] = {}
    if is_there():
        from opentelemetry import propagate

        propagate.inject(carrier)
    return carrier


def without_trace(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """The headers without those that carry a trace."""
    if not is_there():
        return headers
    from opentelemetry import propagate

    ours = fields_of(propagate.get_global_textmap())
    return {name: value for name, value in headers.items() if name not in ours}


@contextmanager
def within(headers: Mapping[str, Any]) -> Iterator[None]:
    """Within the trace of these headers, or in no trace; never in that of the sending code."""
    if not is_there():
        yield
        return
    from opentelemetry import context, propagate

    token = context.attach(propagate.extract(headers, context=context.Context()))
    try:
        yield
    finally:
        context.detach(token)


@contextmanager
def traced(task: Any, attempt: Attempt) -> Iterator[None]:
    """Measures the task's body, in a span if there is one. A retry is no error."""
    if not is_there():
        yield
        return
    attributes = {
        "messaging.system": "celery",
        "messaging.operation.name": "process",
        "messaging.destination.name": attempt.delivery.queue,
        "supervisor.job": attempt.job,
    }
    began_at = clock()
    try:
        if has_span(task):
            with in_span(task, attempt):
                yield
        else:
            yield
    except (Ignore, Reject, Retry):
        raise
    except BaseException as error:
        attributes["error.type"] = type(error).__qualname__
        raise
    finally:
        durations().record(clock() - began_at, attributes)


def has_span(task: Any) -> bool:
    """False where the app records no spans, and the message has no trace that is to go on."""
    from opentelemetry import propagate, trace

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return True
    return not fields_of(propagate.get_global_textmap()).isdisjoint(task.request.headers or ())


@lru_cache(maxsize=1)
def fields_of(propagator: Any) -> frozenset[str]:
    return frozenset(propagator.fields)


@cache
def durations() -> Any:
    from opentelemetry import metrics

    return metrics.get_meter(NAME).create_histogram(
        "messaging.process.duration",
        unit="s",
        description="How long attempts of runs took.",
        explicit_bucket_boundaries_advisory=BOUNDS,
    )


@contextmanager
def in_span(task: Any, attempt: Attempt) -> Iterator[None]:
    from opentelemetry import context, propagate, trace

    present = trace.get_current_span()
    if present.get_span_context().is_valid:
        present.set_attributes(attributes_of(task, attempt))
        yield
        return
    span = trace.get_tracer(NAME).start_as_current_span(
        f"run {attempt.job}",
        context=propagate.extract(task.request.headers or {}, context=context.Context()),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes_of(task, attempt),
        record_exception=False,
        set_status_on_exception=False,
    )
    with span as opened:
        try:
            yield
        except (Ignore, Reject, Retry):  # how a task says what is next: no errors
            raise
        except BaseException as error:
            opened.record_exception(error)
            opened.set_status(trace.StatusCode.ERROR, type(error).__name__)
            raise


def attributes_of(task: Any, attempt: Attempt) -> dict[str, str | int]:
    step_id = StepId.of(attempt.run_id)
    attributes: dict[str, str | int] = {
        "supervisor.job": attempt.job,
        "supervisor.run": step_id.run if step_id else attempt.run_id,
        "celery.task_name": task.name,
    }
    if attempt.grant:
        attributes["supervisor.attempt"] = attempt.grant.attempt
    if step_id:
        attributes["supervisor.step"] = step_id.step
        if step_id.item is not None:
            attributes["supervisor.item"] = step_id.item
    return attributes
