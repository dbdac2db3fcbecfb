"""One trace from the code that asks for a run to the worker that does it, through the ledger."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from typing import Any

from supervisor.job.run import RunState
from tests.acceptance.project import Project
from tests.waiting import wait_until
from tests.written import json_lines

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

import logging
from celery.signals import after_setup_logger
from opentelemetry import metrics
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import (
    LogRecordExporter, LogRecordExportResult, SimpleLogRecordProcessor,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter, MetricExportResult, PeriodicExportingMetricReader,
)

class Measured(MetricExporter):
    def export(self, data, timeout_millis=0, **options):
        metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        points = [
            {"name": metric.name, "pid": os.getpid(), "attributes": dict(point.attributes),
             "value": point.value if hasattr(point, "value") else point.count}
            for metric in metrics for point in metric.data.data_points
        ]
        for point in points:  # each at once: other processes write to the same file
            with Path(__file__).with_name("points.jsonl").open("a") as points_file:
                points_file.write(json.dumps(point) + "\\n")
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis=0):
        return True

    def shutdown(self, timeout_millis=0, **options):
        pass

class Logged(LogRecordExporter):
    def export(self, batch):
        for data in batch:
            record = data.log_record
            run = (record.attributes or {}).get("supervisor_run")
            line = json.dumps({"text": record.body, "trace": record.trace_id, "run": run})
            with Path(__file__).with_name("logged.jsonl").open("a") as logged_file:
                logged_file.write(line + "\\n")
        return LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis=0):
        return True

    def shutdown(self):
        pass

reader = PeriodicExportingMetricReader(Measured(), export_interval_millis=500)
metrics.set_meter_provider(MeterProvider([reader]))
logger_provider = LoggerProvider()
logger_provider.add_log_record_processor(SimpleLogRecordProcessor(Logged()))

@after_setup_logger.connect
def export_logs(logger, **_):
    logger.addHandler(LoggingHandler(logger_provider=logger_provider))

@app.task(name="team.say")
def say(text):
    logging.getLogger("team").warning(text)
"""

JOBS = """
jobs:
  sad: {task: team.tell, kwargs: {fails: true}, every: 1s, paused: true}
  loud: {task: team.say, args: [aloud], every: 1d}
"""

INSTRUMENTED = """
from opentelemetry.instrumentation.celery import CeleryInstrumentor
CeleryInstrumentor().instrument()
"""

#: As older SDKs of Sentry: a task sees these as the headers of its message, and no others.
NESTED = """
from celery.signals import before_task_publish

@before_task_publish.connect
def nest(headers, **_):
    headers["headers"] = {"traced": "by another"}
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


def lines(project: Project, name: str) -> list[dict[str, Any]]:
    return json_lines(project.directory / f"{name}.jsonl")


def spans(project: Project) -> list[dict[str, Any]]:
    return lines(project, "spans")


def counted(project: Project, name: str, job: str) -> dict[str, int]:
    """What each process gave last of a metric of the job, summed up by what its points say."""
    newest = {
        (point["pid"], str(point["attributes"])): point
        for point in lines(project, "points")
        if point["name"] == name and point["attributes"]["supervisor.job"] == job
    }
    sums: dict[str, int] = defaultdict(int)
    for point in newest.values():
        sums[point["attributes"].get("error.type", "")] += point["value"]
    return dict(sums)


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
    ids = runs(team, 2, run_id)
    assert {span["trace"] for span in ids} == {named(team, "steps")["trace"]}
    assert [span["attributes"]["supervisor.step"] for span in ids] == ["work", "tell"]


def test_a_run_of_beat_begins_a_trace_and_its_failure_is_the_spans(team: Project) -> None:
    [span] = runs(team, 1, team.trigger("sad").id)
    assert (span["status"], span["parent"]) == ("ERROR", None)
    assert span["attributes"]["supervisor.job"] == "sad"


def test_what_a_run_logs_is_of_its_trace(team: Project) -> None:
    run_id = team.trigger("loud").id
    [span] = runs(team, 1, run_id)
    line = {"text": "aloud", "trace": span["trace"], "run": run_id}
    wait_until(lambda: line in lines(team, "logged"), 20)


def test_attempts_are_measured_with_the_error_that_they_raised(team: Project) -> None:
    runs(team, 1, team.trigger("sad").id)

    def agree() -> bool:
        failed = team.ledger.job("sad").counters["finished:failed"]
        return counted(team, "messaging.process.duration", "sad") == {"ValueError": failed}

    wait_until(agree, 20)


def test_beside_celerys_own_instrumentation_a_run_has_one_span(project: Project) -> None:
    project.extend(SETTINGS + INSTRUMENTED)
    project.worker()
    ids = runs(project, 2, *one_after_the_other(project))
    assert [span["name"] for span in ids] == ["run/team.import_feed"] * 2
    assert [span["attributes"]["supervisor.attempt"] for span in ids] == [1, 1]
    requests = {named(project, name)["trace"] for name in ("first", "second")}
    assert {span["trace"] for span in ids} == requests


def test_a_run_is_guarded_whatever_headers_a_tracer_nests(project: Project) -> None:
    project.extend(NESTED)
    project.worker()
    run_id = project.code("print(json.dumps(team.import_feed.delay('b').id))")
    wait_until(lambda: project.ledger.runs([run_id])[0].state is RunState.SUCCEEDED, 20)


def test_without_the_library_there_is_nothing() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from supervisor.features.opentelemetry.tracing import current_headers, is_there\n"
        "assert not is_there() and current_headers() == {}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
