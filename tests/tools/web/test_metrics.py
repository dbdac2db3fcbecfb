"""The metrics: complete from the start, true to the ledger, documented, and well-formed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from supervisor.catalog.guards import guarded_task_spec
from supervisor.errors import NotConfigured
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.attempt import LeaseState
from supervisor.ledger.job_reads import JOBS_COUNTED as OPEN_AT_ONCE
from supervisor.ledger.job_record import FILES, HISTOGRAM_FIELDS
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.loading import JobChange
from supervisor.ledger.presence import WorkerProcess
from supervisor.ledger.run_request import RunRequest
from supervisor.sending.queues import AppQueues
from supervisor.settings import Settings
from supervisor.times import ms_of
from supervisor.web.access_file import AccessFile
from supervisor.web.metrics import Metrics, label_names
from supervisor.web.metrics_table import COUNTERS
from tests.damage import lose_lock, stray
from tests.jobs import (
    ENTRIES,
    MIDNIGHT,
    admitted,
    at_work,
    begin,
    begun,
    job,
    job_has,
    renew,
    run_id,
    ticks,
)
from tests.presence import beat_is_there, beat_says, worker_is_there
from tests.programs import needed
from tests.queues import put
from tests.waiting import scaled

COUNTED = [name for row in COUNTERS for name, _ in row.series]

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def exposition(ledger: Ledger) -> str:
    return text_of(Metrics(ledger))


def text_of(metrics: Metrics, accept: str = "") -> str:
    text, _ = metrics.written(metrics.read(), accept)
    return text.decode()


def samples(ledger: Ledger) -> dict[tuple[str, ...], float]:
    """Values by name and labels other than `job`, of a ledger with one job."""
    return {
        (sample.name, *(value for label, value in sample.labels.items() if label != "job")): (
            sample.value
        )
        for family in text_string_to_metric_families(exposition(ledger))
        for sample in family.samples
    }


def series_of(ledger: Ledger, job: str) -> set[str]:
    """The series of a job, each with its labels other than `job`."""
    lines = [line for line in exposition(ledger).splitlines() if f'{{job="{job}"' in line]
    return {line.rpartition(" ")[0].replace(f'job="{job}"', "") for line in lines}


def test_the_default_policy_has_thirty_series_a_job_at_most(ledger: Ledger) -> None:
    spec = job(ledger, every="5m")
    at_work(ledger, spec, 0)
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    seen = dict.fromkeys(HISTOGRAM_FIELDS["duration"], 24) | {"next": ms_of(ledger.now())}
    job_has(ledger, spec.name, **seen)
    idle = series_of(ledger, spec.name)
    at_work(ledger, spec, 1)
    working = series_of(ledger, spec.name)
    assert working - idle == {"supervisor_oldest_running_timestamp_seconds{}"}
    assert len(working) <= 30


def test_a_counter_starts_at_zero_where_the_policy_makes_it_likely(
    ledger: Ledger,
) -> None:
    job(ledger)
    values = samples(ledger)
    assert values["supervisor_runs_started_total",] == 0
    assert values["supervisor_overlaps_total",] == 0
    assert values["supervisor_run_duration_seconds_bucket", "+Inf"] == 0
    assert labels_at_zero(values) == {
        *("finished succeeded", "finished failed", "skipped overlap", "missed catchup"),
    }
    assert ("supervisor_last_success_timestamp_seconds",) not in values
    job(ledger, overlap="queue_all", time_limit="5m", on_crash="fail", catchup="all")
    values = samples(ledger)
    assert labels_at_zero(values) == {
        *("finished succeeded", "finished failed", "finished timed_out", "finished lost"),
        *("skipped buffer_full", "missed window"),
    }
    assert values["supervisor_runs_waiting",] == 0
    job(ledger, overlap="replace")
    assert {"finished replaced", "skipped replaced"} <= labels_at_zero(samples(ledger))
    job(ledger, overlap="requeue", max_retries=2, max_wait="1h")
    values = samples(ledger)
    assert {"skipped requeues_exhausted", "skipped wait_expired"} <= labels_at_zero(values)
    assert values["supervisor_runs_requeued_total",] == 0
    assert values["supervisor_runs_retried_total",] == 0


def labels_at_zero(found: Mapping[tuple[str, ...], float]) -> set[str]:
    """`finished failed` of ``supervisor_runs_finished_total{outcome="failed"} 0.0``."""
    at_zero = [name for name, value in found.items() if name[0].endswith("_total") and not value]
    labelled = [name for name in at_zero if len(name) == 2 and "_outbound_" not in name[0]]
    return {f"{name.removesuffix('_total').rpartition('_')[2]} {of}" for name, of in labelled}


def test_an_unlikely_counter_is_there_when_it_has_happened(ledger: Ledger) -> None:
    spec = job(ledger)
    assert ("supervisor_runs_finished_total", "cancelled") not in samples(ledger)
    at_work(ledger, spec, 0)
    ledger.finish(run_id(spec, 0), "token", RunState.CANCELLED)
    ledger.trigger(spec)
    values = samples(ledger)
    assert values["supervisor_runs_finished_total", "cancelled"] == 1
    assert values["supervisor_runs_triggered_total",] == 1


def test_everything_that_the_ledger_counts_is_shown(ledger: Ledger) -> None:
    job(ledger)
    counted = {counted: 1_000 + number for number, counted in enumerate(COUNTED)}
    fields = {f"n:{name}": count for name, count in counted.items()}
    job_has(ledger, "nightly", **fields)
    values = samples(ledger)
    for row in COUNTERS:
        for name, labels in row.series:
            assert values[f"supervisor_{row.name}_total", *labels] == counted[name] / row.scale


def test_the_counters_say_what_happened(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, 1, 2, 2, overlap="queue_one")
    begin(ledger, run_id(spec, 0))
    values = samples(ledger)
    assert values["supervisor_runs_started_total",] == 1
    assert values["supervisor_runs_running",] == 1
    assert values["supervisor_runs_waiting",] == 1
    assert values["supervisor_consecutive_skips",] == 0
    assert values["supervisor_runs_skipped_total", "overlap"] == 1
    assert values["supervisor_duplicates_dropped_total",] == 1
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    values = samples(ledger)
    assert values["supervisor_runs_finished_total", "succeeded"] == 1
    assert values["supervisor_run_duration_seconds_count",] == 1
    assert values["supervisor_start_delay_seconds_count",] == 1
    assert values["supervisor_last_success_timestamp_seconds",] > 1.7e9


def test_a_histogram_shows_some_of_the_bounds_that_the_ledger_counts_by(ledger: Ledger) -> None:
    spec = job(ledger)
    *in_each_bucket, total_ms = HISTOGRAM_FIELDS["duration"]
    seen = dict.fromkeys(in_each_bucket, 1) | {total_ms: 7_500}
    job_has(ledger, spec.name, **seen)
    values, name = samples(ledger), "supervisor_run_duration_seconds"
    up_to = {key[1]: value for key, value in values.items() if key[0] == f"{name}_bucket"}
    assert up_to == {"5.0": 5, "60.0": 8, "900.0": 10, "14400.0": 12, "+Inf": 13}
    assert (values[f"{name}_count",], values[f"{name}_sum",]) == (13, 7.5)


def test_a_run_that_does_not_end_well_leaves_its_time(ledger: Ledger) -> None:
    spec = job(ledger)
    for second, outcome in enumerate((RunState.SUCCEEDED, RunState.CANCELLED, RunState.FAILED)):
        assert ("supervisor_last_failure_timestamp_seconds",) not in samples(ledger)
        at_work(ledger, spec, second)
        ledger.finish(run_id(spec, second), "token", outcome)
    values = samples(ledger)["supervisor_last_failure_timestamp_seconds",]
    assert abs(values - ledger.now().timestamp()) < scaled(10)


def test_a_lease_that_is_renewed_too_late_is_counted(ledger: Ledger) -> None:
    spec = begun(ledger)
    assert renew(ledger, run_id(spec, 0)) is LeaseState.RENEWED
    assert ("supervisor_leases_reasserted_total",) not in samples(ledger)
    lose_lock(ledger, spec)
    assert renew(ledger, run_id(spec, 0)) is LeaseState.REASSERTED
    assert samples(ledger)["supervisor_leases_reasserted_total",] == 1


def test_without_redis_only_up_is_left() -> None:
    nowhere = Ledger.open(Settings(redis_url="redis://127.0.0.1:1/0"))
    lines = [line for line in exposition(nowhere).splitlines() if not line.startswith("#")]
    assert lines == ["supervisor_up 0.0"]


@pytest.mark.parametrize(("guard", "most"), [({}, 1_000_000), ({"max_consecutive_skips": 3}, 3)])
def test_skips_are_too_many_only_for_a_guard_that_says_so(
    ledger: Ledger, guard: dict[str, Any], most: int
) -> None:
    spec = guarded_task_spec("proj.sync", guard)
    ledger.register(spec)
    assert samples(ledger)["supervisor_job_max_consecutive_skips",] == most
    assert spec.rules().max_skips == most


def everything_happens(ledger: Ledger) -> None:
    """So much that no metric has a reason to be absent."""
    bounds = {"due_by": "06:00", "max_duration": "4m", "min_duration": "1s"}
    bounds |= {"labels": {"tenant": "acme"}}
    bounds |= {"max_consecutive_skips": 5}
    spec = begun(ledger, overlap="queue_all", time_limit="5m", serial=True, **bounds)
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    ledger.admit(ticks(spec, 1, 2))
    begin(ledger, run_id(spec, 1))
    happened = {f"n:{name}": 1 for name in COUNTED}
    happened |= {"next": 1, "loaded": 1, "last_failure": 1}
    job_has(ledger, spec.name, **happened)
    ledger.pause(job(ledger, "paused").name)
    beat_says(ledger, leader="b", last_tick=1, last_reload_successful=1)
    stray(ledger, ledger.keys.unsent, "destination")
    worker_is_there(ledger, "w@host", queues=("serial.nightly",))
    beat_is_there(ledger, "b", leads=True)


def test_the_page_has_every_metric_and_no_other(ledger: Ledger, tmp_path: Path) -> None:
    everything_happens(ledger)
    _, _, page = PAGE.read_text().partition("\n## Of each job\n")
    of_jobs, _, others = page.partition("\n## Of the service\n")
    documented = documented_in(of_jobs, {"job"}) | documented_in(others, set())
    served: dict[str, tuple[str, set[str]]] = {}
    path = tmp_path / "access.yaml"
    path.write_text("tokens: []")
    text = text_of(Metrics(ledger, labels=("tenant",), access_file=AccessFile(path)))
    for family in text_string_to_metric_families(text):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        is_info = family.name.endswith("_info")
        suffix = "_total" if family.type == "counter" else ""
        served[family.name + suffix] = ("info" if is_info else family.type, labels)
    assert documented == served


def documented_in(table: str, common: set[str]) -> dict[str, tuple[str, set[str]]]:
    """Type and labels of each metric. common: those that the page says once, of all of them."""
    rows = re.findall(r"^\| `(supervisor_\w+)` \| (\w+) \| ([\w, ]*) \|", table, re.M)
    return {
        name: (kind, common.union(filter(None, labels.split(", ")))) for name, kind, labels in rows
    }


def test_labels_are_shown_of_the_jobs_that_have_those_named(ledger: Ledger) -> None:
    job(ledger, "a", labels={"tenant": 'a"c\\me', "team": "data", "cost": "12"})
    job(ledger, "b", labels={"cost": "12"})
    job(ledger, "c")
    metrics = Metrics(ledger, labels=("tenant", "team"))
    families = {f.name: f for f in text_string_to_metric_families(text_of(metrics))}
    shown = {"job": "a", "label_tenant": 'a"c\\me', "label_team": "data"}
    assert [s.labels for s in families["supervisor_job_labels"].samples] == [shown]
    job(ledger, "a", labels={"tenant": "acme"})
    assert 'supervisor_job_labels{job="a",label_tenant="acme"} 1.0\n' in text_of(metrics)
    assert "label_tenant" not in exposition(ledger), "without the setting"


def test_names_of_labels_are_read_from_a_text() -> None:
    assert label_names("") == ()
    assert label_names(" tenant, team,tenant ,") == ("tenant", "team")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tenant;team", "'tenant;team' cannot be the name of a label"),
        ('a"b,1x', "'a\"b', '1x' cannot be the name"),
    ],
)
def test_names_of_labels_that_make_no_sense_are_refused(text: str, why: str) -> None:
    with pytest.raises(NotConfigured, match=re.escape(why)):
        label_names(text)


def test_openmetrics_says_the_same(ledger: Ledger) -> None:
    everything_happens(ledger)
    metrics = Metrics(ledger)
    text, content_type = metrics.written(
        metrics.read(), "application/openmetrics-text;version=1.0.0"
    )
    assert content_type.startswith("application/openmetrics-text")
    found = said(openmetrics_families(text.decode()))
    assert found == said(text_string_to_metric_families(exposition(ledger)))


def said(families: Iterable[Metric]) -> set[tuple[Any, ...]]:
    varying = "supervisor_scrape_duration_seconds"
    samples = (sample for family in families for sample in family.samples)
    return {(s.name, *sorted(s.labels.items()), s.value) for s in samples if s.name != varying}


def test_a_counter_that_redis_lost_a_write_of_does_not_go_down(ledger: Ledger) -> None:
    spec, metrics = job(ledger), Metrics(ledger)

    def started() -> str:
        [line] = re.findall(r"^supervisor_runs_started_total\{.*\} (.*)$", text_of(metrics), re.M)
        return str(line)

    job_has(ledger, spec.name, **{"n:started": 100, "created": 1})
    assert started() == "100.0"
    job_has(ledger, spec.name, **{"n:started": 99})
    assert started() == "100.0"
    job_has(ledger, spec.name, **{"n:started": 101})
    assert started() == "101.0"
    job_has(ledger, spec.name, **{"n:started": 3, "created": 2})
    assert started() == "3.0", "another ledger began to count"


def test_what_is_queued_is_as_old_as_the_time_it_is_for(ledger: Ledger) -> None:
    spec = admitted(ledger, 0, 1, overlap="queue_one")
    assert samples(ledger)["supervisor_oldest_queued_timestamp_seconds",] == MIDNIGHT.timestamp()
    begin(ledger, run_id(spec, 0))
    values = samples(ledger)
    assert values["supervisor_oldest_queued_timestamp_seconds",] == MIDNIGHT.timestamp() + 1
    now = ledger.now().timestamp()
    assert abs(values["supervisor_oldest_running_timestamp_seconds",] - now) < scaled(10)
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    assert ("supervisor_oldest_running_timestamp_seconds",) not in samples(ledger)


def test_a_backfill_is_not_late_for_the_time_that_it_is_for(ledger: Ledger) -> None:
    spec = job(ledger)
    ledger.trigger(spec, RunRequest(nominal_at=MIDNIGHT))
    oldest = samples(ledger)["supervisor_oldest_queued_timestamp_seconds",]
    assert abs(oldest - ledger.now().timestamp()) < scaled(10)


@pytest.mark.parametrize("how", ["rescued", "retried"])
def test_a_further_attempt_is_due_when_it_is_queued(ledger: Ledger, how: str) -> None:
    spec = admitted(ledger, 0, max_retries=1)
    begin(ledger, run_id(spec, 0))
    assert ("supervisor_oldest_queued_timestamp_seconds",) not in samples(ledger)
    if how == "rescued":
        ledger.report_dead(run_id(spec, 0), "token", "its process died")
    else:
        ledger.retry(run_id(spec, 0), "token", timedelta())
        assert ("supervisor_oldest_queued_timestamp_seconds",) not in samples(ledger)
        ledger.rescue()
    run = ledger.run(run_id(spec, 0))
    assert (run.state, run.attempt) == (RunState.QUEUED, 1)
    due = samples(ledger)["supervisor_oldest_queued_timestamp_seconds",]
    assert due == run.queued_at.timestamp()


def test_queues_have_lengths_and_consumers(ledger: Ledger) -> None:
    job(ledger, serial=True)
    job(ledger, "hourly")
    worker_is_there(ledger, "a@host", queues=("celery", "mail"))
    worker_is_there(ledger, "b@host", queues=("celery",))
    ledger.drains.drain("mail")
    put(ledger.client, "message", "message")
    put(ledger.client, "one of another priority", queue="celery\x06\x163")
    values = samples(ledger)
    assert values["supervisor_queue_consumers", "celery"] == 2
    assert values["supervisor_queue_consumers", "serial.nightly"] == 0
    assert values["supervisor_queue_consumers", "mail"] == 1
    assert values["supervisor_queue_length", "celery"] == 3
    assert values["supervisor_queue_length", "serial.nightly"] == 0
    assert values["supervisor_queue_is_serial", "celery"] == 0
    assert values["supervisor_queue_drained", "celery"] == 0
    assert values["supervisor_queue_drained", "mail"] == 1
    assert values["supervisor_queue_is_serial", "serial.nightly"] == 1


def test_a_worker_that_says_why_it_takes_no_messages_is_not_healthy(ledger: Ledger) -> None:
    worker_is_there(ledger, "fine@host")
    stuck = worker_is_there(ledger, "stuck@host")
    stuck.say(
        WorkerProcess("stuck@host", ("celery",), 2, ""), fault="its main loop is in proj.wait"
    )
    values = samples(ledger)
    assert values["supervisor_worker_healthy", "fine@host"] == 1
    assert values["supervisor_worker_healthy", "stuck@host"] == 0


def test_lengths_are_left_out_where_the_broker_is_another(ledger: Ledger) -> None:
    job(ledger)
    worker_is_there(ledger, "a@host", queues=("celery",), is_ledger=False)
    values = samples(ledger)
    assert values["supervisor_queue_consumers", "celery"] == 1
    assert ("supervisor_queue_length", "celery") not in values


def test_an_app_knows_its_routes_and_its_broker(ledger: Ledger, redis_url: str) -> None:
    job(ledger, task="proj.mail")
    app = Celery("proj", broker=redis_url)
    app.conf.task_routes = {"proj.mail": "mail"}
    app.conf.broker_transport_options = {"global_keyprefix": "team:"}
    put(ledger.client, "message", queue="team:mail")
    found = {
        (s.name, *s.labels.values()): s.value
        for family in text_string_to_metric_families(text_of(Metrics(ledger, AppQueues(app))))
        for s in family.samples
    }
    assert found["supervisor_queue_length", "mail"] == 1
    assert found["supervisor_queue_consumers", "mail"] == 0
    away = Celery("away", broker="redis://127.0.0.1:1/0")
    assert AppQueues(away).lengths(["mail"]) == {}
    app.close()
    away.close()


def jobs_named(command: Sequence[Any]) -> int:
    return sum("job-" in str(argument) for argument in command)


class Counting(redis.Connection):
    """Counts what all connections of its kind send, and the jobs that one command names."""

    round_trips = 0
    most_named = 0

    def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        Counting.round_trips += 1
        super().send_packed_command(*args, **kwargs)

    def send_command(self, *command: Any, **kwargs: Any) -> None:
        Counting.most_named = max(Counting.most_named, jobs_named(command))
        super().send_command(*command, **kwargs)


@pytest.fixture
def counted(ledger: Ledger, redis_url: str) -> Iterator[Metrics]:
    pool = redis.ConnectionPool.from_url(
        redis_url, connection_class=Counting, decode_responses=True
    )
    yield Metrics(Ledger(redis.Redis(connection_pool=pool), ledger.keys))
    pool.disconnect()


def load(ledger: Ledger, jobs: int) -> None:
    names = [f"job-{number}" for number in range(jobs)]
    specs = [JobSpec(name=name, task="proj.nightly", cron="* * * * *") for name in names]
    ledger.load([JobChange(spec.name, spec, has_new_times=True) for spec in specs], ENTRIES, FILES)


def test_a_scrape_reads_in_few_round_trips(ledger: Ledger, counted: Metrics) -> None:
    load(ledger, 1)
    counted.read()  # connects

    def round_trips(jobs: int) -> int:
        load(ledger, jobs)
        before = Counting.round_trips
        counted.read()
        return Counting.round_trips - before

    few = round_trips(10)
    assert few <= 11
    # Four for each fifty or so jobs; their specs and origins come a thousand at a time.
    assert round_trips(3_000) - few <= 4 * 51 + 2 * 3


def test_no_command_of_a_scrape_names_many_jobs(ledger: Ledger, counted: Metrics) -> None:
    load(ledger, 1_000)
    counted.read()
    Counting.most_named = 0
    counted.read()
    assert Counting.most_named == OPEN_AT_ONCE


def test_promtool_finds_nothing_to_complain_about(ledger: Ledger) -> None:
    promtool = needed("promtool")
    everything_happens(ledger)
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=exposition(ledger),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_a_run_that_moves_on_is_seen_where_nothing_is_counted_of_its_job(ledger: Ledger) -> None:
    first = begun(ledger, name="first", key="'both'")
    second = admitted(ledger, 0, name="second", key="'both'", overlap="queue_all")
    metrics, of_second = Metrics(ledger), ledger.keys.job(second.name)
    waiting, counted = 'supervisor_runs_waiting{job="second"}', ledger.client.hgetall(of_second)
    assert f"{waiting} 1.0" in text_of(metrics)
    ledger.finish(run_id(first, 0), "token", RunState.SUCCEEDED)
    assert ledger.client.hgetall(of_second) == counted
    assert f"{waiting} 0.0" in text_of(metrics)
