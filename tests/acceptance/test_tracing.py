"""One trace from the code that asks for a run to the worker that does it, through the ledger."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.acceptance.project import Project
from tests.waiting import wait_until

#: What a team adds to its app; each span is written down when it ends, whichever process it is in.
SETTINGS = """
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

JOBS = "jobs: {sad: {task: team.tell, kwargs: {fails: true}, every: 1s, paused: true}}"

INSTRUMENTED = """
from opentelemetry.instrumentation.celery import CeleryInstrumentor
CeleryInstrumentor().instrument()
"""

CALL = """
with team.tracer.start_as_current_span("{name}"):
    print(json.dumps({call}))
"""

START = "__import__('supervisor.sending.starting').sending.starting.start"
RUN = "supervisor.run"


def call(project: Project, name: str, what: str) -> str:
    """The id of what is called within a span of this name."""
    return str(project.code(CALL.format(name=name, call=what)))


def spans(project: Project) -> list[dict[str, Any]]:
    path = project.directory / "spans.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def runs(project: Project, count: int, *ids: str) -> list[dict[str, Any]]:
    """The spans of these runs, once there are so many."""

    def found() -> list[dict[str, Any]]:
        return [span for span in spans(project) if span["attributes"].get(RUN) in ids]

    wait_until(lambda: len(found()) >= count, 30)
    return found()


def named(project: Project, name: str) -> dict[str, Any]:
    [found] = [span for span in spans(project) if span["name"] == name]
    return found


def test_a_call_and_its_run_are_one_trace(team: Project) -> None:
    run_id = call(team, "one", "team.import_feed.delay('b').id")
    [span] = runs(team, 1, run_id)
    request = named(team, "one")
    assert (span["trace"], span["parent"]) == (request["trace"], request["span"])
    assert span["name"] == "run team.import_feed"
    assert span["attributes"] == {
        "supervisor.job": "team.import_feed",
        RUN: run_id,
        "supervisor.attempt": 1,
        "celery.task_name": "team.import_feed",
    }


def test_a_run_that_waited_is_of_its_callers_trace(team: Project) -> None:
    ids = one_after_the_other(team)
    spans_of_runs = {span["trace"]: span for span in runs(team, 2, *ids)}
    assert set(spans_of_runs) == {named(team, name)["trace"] for name in ("first", "second")}


def one_after_the_other(project: Project) -> list[str]:
    """Two runs: the second waits for the first."""
    first = call(project, "first", "team.import_feed.delay('a', held=True).id")
    second = call(project, "second", "team.import_feed.delay('a').id")
    project.let_end(first)
    return [first, second]


def test_the_steps_of_a_run_continue_its_trace(team: Project) -> None:
    steps = "[('team.work', 2), {'task': 'team.tell', 'priority': 1}]"
    run_id = call(team, "steps", f"{START}({steps}, app=team.app)")
    found = runs(team, 2, run_id)
    assert {span["trace"] for span in found} == {named(team, "steps")["trace"]}
    assert [span["attributes"]["supervisor.step"] for span in found] == ["work", "tell"]


def test_a_run_of_beat_begins_a_trace_and_its_failure_is_the_spans(team: Project) -> None:
    [span] = runs(team, 1, team.trigger("sad").id)
    assert (span["status"], span["parent"]) == ("ERROR", None)
    assert span["attributes"]["supervisor.job"] == "sad"


def test_beside_celerys_own_instrumentation_a_run_has_one_span(project: Project) -> None:
    project.extend(SETTINGS + INSTRUMENTED)
    project.worker()
    found = runs(project, 2, *one_after_the_other(project))
    assert [span["name"] for span in found] == ["run/team.import_feed"] * 2
    assert [span["attributes"]["supervisor.attempt"] for span in found] == [1, 1]
    requests = {named(project, name)["trace"] for name in ("first", "second")}
    assert {span["trace"] for span in found} == requests


def test_without_the_library_there_is_nothing() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from supervisor.sending.tracing import current_headers, is_there, options_with_trace\n"
        "assert not is_there() and current_headers() == options_with_trace() == {}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
