"""One trace from the code that asks for a run to the worker that does it, through the ledger."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.acceptance.project import Project
from tests.waiting import wait_until

#: What a team adds to its app; each span is written down when it ends, whichever process it is in.
TRACED = """
import json, os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

class Lines(SpanExporter):
    def export(self, spans):
        for span in spans:
            line = json.dumps({
                "name": span.name, "kind": span.kind.name, "status": span.status.status_code.name,
                "trace": span.context.trace_id, "span": span.context.span_id,
                "parent": span.parent and span.parent.span_id, "attributes": dict(span.attributes),
            })
            with Path(__file__).with_name("spans.jsonl").open("a") as spans_file:
                spans_file.write(line + "\\n")
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Lines()))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("team")
"""

INSTRUMENTED = """
from opentelemetry.instrumentation.celery import CeleryInstrumentor
CeleryInstrumentor().instrument()
"""

CALL = """
with team.tracer.start_as_current_span("request {number}"):
    print(json.dumps({call}))
"""


@pytest.fixture
def traced(project: Project) -> Project:
    app = project.directory / "team.py"
    app.write_text(app.read_text() + TRACED)
    return project


def instrument(project: Project) -> None:
    app = project.directory / "team.py"
    app.write_text(app.read_text() + INSTRUMENTED)


def call(project: Project, number: int, what: str) -> str:
    return str(project.code(CALL.format(number=number, call=what)))


def spans(project: Project) -> list[dict[str, Any]]:
    path = project.directory / "spans.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def runs(project: Project, count: int) -> list[dict[str, Any]]:
    """The spans of the first runs, once there are so many."""

    def found() -> list[dict[str, Any]]:
        return [span for span in spans(project) if span["kind"] == "CONSUMER"]

    wait_until(lambda: len(found()) >= count, 30)
    return found()


def named(project: Project, name: str) -> dict[str, Any]:
    [found] = [span for span in spans(project) if span["name"] == name]
    return found


def test_a_call_and_its_run_are_one_trace(traced: Project) -> None:
    traced.worker(processes=1)
    run_id = call(traced, 1, "team.import_feed.delay('a').id")
    [span] = runs(traced, 1)
    request = named(traced, "request 1")
    assert (span["trace"], span["parent"]) == (request["trace"], request["span"])
    assert span["name"] == "run team.import_feed"
    assert span["attributes"] == {
        "supervisor.job": "team.import_feed",
        "supervisor.run": run_id,
        "supervisor.attempt": 1,
        "celery.task_name": "team.import_feed",
    }


def test_a_run_that_waited_is_of_its_callers_trace(
    traced: Project,
) -> None:
    traced.worker()
    first = call(traced, 1, "team.import_feed.delay('a', held=True).id")
    call(traced, 2, "team.import_feed.delay('a').id")
    traced.let_end(first)
    spans_of_runs = {span["trace"]: span for span in runs(traced, 2)}
    assert set(spans_of_runs) == {named(traced, f"request {n}")["trace"] for n in (1, 2)}


def test_the_steps_of_a_run_continue_its_trace(traced: Project) -> None:
    traced.worker()
    steps = "[('team.work', 2), {'task': 'team.tell', 'priority': 1}]"
    run_id = call(traced, 1, f"{START}({steps}, app=team.app)")
    found = runs(traced, 2)
    assert {span["trace"] for span in found} == {named(traced, "request 1")["trace"]}
    assert {span["attributes"]["supervisor.run"] for span in found} == {run_id}
    assert [span["attributes"]["supervisor.step"] for span in found] == ["work", "tell"]


START = "__import__('supervisor.sending.starting').sending.starting.start"


def test_a_failure_is_the_spans_and_a_run_of_beat_begins_a_trace(traced: Project) -> None:
    traced.schedule("jobs:\n  sad: {task: team.tell, kwargs: {fails: true}, every: 1s}\n")
    traced.worker(processes=1)
    traced.beat()
    span = runs(traced, 1)[0]
    assert (span["status"], span["parent"]) == ("ERROR", None)
    assert span["attributes"]["supervisor.job"] == "sad"


def test_beside_celerys_own_instrumentation_one_span_knows_the_run(
    traced: Project,
) -> None:
    instrument(traced)
    traced.worker()
    first = call(traced, 1, "team.import_feed.delay('a', held=True).id")
    call(traced, 2, "team.import_feed.delay('a').id")
    traced.let_end(first)
    found = runs(traced, 2)
    assert [span["name"] for span in found] == ["run/team.import_feed"] * 2
    assert [span["attributes"]["supervisor.attempt"] for span in found] == [1, 1]
    requests = {named(traced, f"request {n}")["trace"] for n in (1, 2)}
    assert {span["trace"] for span in found} == requests


def test_without_the_library_there_is_nothing() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from supervisor.sending.tracing import current_headers, is_there, options_with_trace\n"
        "assert not is_there() and current_headers() == options_with_trace() == {}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
