"""A part of the metrics: a shard of the jobs, or sums by a label."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Event

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.errors import InvalidRequest
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from supervisor.web import metrics as job_lines
from supervisor.web.metrics import MOST_SUMS, Metrics, view_of
from supervisor.web.metrics_table import JOBS_GAUGES
from tests.ledger.jobs import job
from tests.ledger.test_metrics import PAGE, everything_happens
from tests.waiting import patience, wait_until


def found_in(metrics: Metrics, **query: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """Values by name and values of labels."""
    parts, _ = metrics.exposed(view=view_of(query))
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families("".join(parts))
        for sample in family.samples
        if "duration" not in sample.name
    }


def test_shards_have_each_job_once_and_the_first_all_else(ledger: Ledger) -> None:
    everything_happens(ledger)
    for number in range(20):
        job(ledger, f"job-{number}")
    metrics = Metrics(ledger)
    shards = [found_in(metrics, shard=str(n), total_shards="3") for n in range(3)]
    up = ("supervisor_up", ())
    assert all(shard.pop(up) == 1 for shard in shards)
    assert sum(map(len, shards)) == len(shards[0] | shards[1] | shards[2])
    assert shards[0] | shards[1] | shards[2] | {up: 1.0} == found_in(Metrics(ledger))
    assert [("supervisor_beat_leader_changes_total", ()) in shard for shard in shards] == [
        True,
        False,
        False,
    ]

    per_shard = [sum(name == "supervisor_ticks_total" for name, _ in shard) for shard in shards]
    assert min(per_shard) > 0 and sum(per_shard) == 21


def test_a_shard_sees_jobs_that_come_change_and_go(ledger: Ledger) -> None:
    job(ledger, "a")
    metrics = Metrics(ledger)

    def shown() -> set[tuple[str, ...]]:
        found = found_in(metrics, shard="0", total_shards="1")
        return {labels for name, labels in found if name == "supervisor_job_info"}

    assert {labels[0] for labels in shown()} == {"a"}
    job(ledger, "b", every="1h")
    assert {labels[0] for labels in shown()} == {"a", "b"}
    job(ledger, "b", every="2h")
    assert "every 2h" in next(labels for labels in shown() if labels[0] == "b")


def test_sums_by_a_label_count_on_whatever_jobs_come_and_go(ledger: Ledger) -> None:
    acme = {"labels": {"tenant": "acme"}}
    for name, keys in (("a", acme), ("b", acme), ("c", {})):
        job(ledger, name, **keys)
        ledger.client.hset(ledger.keys.job(name), mapping={"created": 1, "n:ticks": 100})
    metrics = Metrics(ledger)

    def ticks_of(value: str) -> float:
        return found_in(metrics, by="tenant")["supervisor_ticks_total", (value,)]

    assert (ticks_of("acme"), ticks_of("")) == (0, 0), "those before it began to count"
    ledger.client.hset(ledger.keys.job("a"), "n:ticks", 103)
    ledger.client.hset(ledger.keys.job("c"), "n:ticks", 101)
    assert (ticks_of("acme"), ticks_of("")) == (3, 1)
    ledger.client.hdel(ledger.keys.jobs, "b")
    assert ticks_of("acme") == 3
    job(ledger, "new", **acme)
    later = round(ledger.now().timestamp() * 1000) + 1
    ledger.client.hset(ledger.keys.job("new"), mapping={"created": later, "n:ticks": 2})
    assert ticks_of("acme") == 5, "all ticks of a job that is new"
    assert not [labels for _, labels in found_in(metrics, by="tenant") if "new" in labels]


def test_sums_are_kept_of_a_few_labels_and_of_those_that_are_scraped(ledger: Ledger) -> None:
    job(ledger, "a")
    ledger.client.hset(ledger.keys.job("a"), mapping={"created": 1, "n:ticks": 1})
    metrics = Metrics(ledger)

    def ticks_by(label: str) -> float:
        return found_in(metrics, by=label)["supervisor_ticks_total", ("",)]

    assert (ticks_by("tenant"), ticks_by("once")) == (0, 0)
    ledger.client.hset(ledger.keys.job("a"), "n:ticks", 4)
    for number in range(2 * MOST_SUMS):
        assert (ticks_by(f"label_{number}"), ticks_by("tenant")) == (0, 3)
    assert ticks_by("once") == 0, "forgotten, which Prometheus takes for a restart"


def test_sums_that_take_long_are_those_of_the_scrape_before(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(ledger, "a")
    ledger.client.hset(ledger.keys.job("a"), mapping={"created": 1, "n:ticks": 1})
    metrics, may_go_on = Metrics(ledger), Event()

    def ticks() -> float:
        return found_in(metrics, by="tenant")["supervisor_ticks_total", ("",)]

    assert ticks() == 0
    scrape = metrics._scraper.scrape
    monkeypatch.setattr(job_lines, "SUMS_SECONDS", 0.1)
    monkeypatch.setattr(
        metrics._scraper, "scrape", lambda: (may_go_on.wait(patience(30)), scrape())[1]
    )
    ledger.client.hset(ledger.keys.job("a"), "n:ticks", 4)
    assert ticks() == 0
    may_go_on.set()
    wait_until(lambda: ticks() == 3)


def test_sums_are_not_those_of_before_an_outage(ledger: Ledger, tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "valkey") as server:
        metrics = Metrics(Ledger.open(Settings(server.url)))
        up = ("supervisor_up", ())
        assert found_in(metrics, by="tenant")[up] == 1
        server.stop()
        assert found_in(metrics, by="tenant") == {up: 0}
        server.start()
        wait_until(lambda: found_in(metrics, by="tenant")[up] == 1)


def test_sums_by_a_label_say_how_many_jobs_are_in_trouble(ledger: Ledger) -> None:
    everything_happens(ledger)
    past = {"paused": 0, "last_failure": 2_000, "last_success": 1_000, "loaded": 1}
    ledger.client.hset(ledger.keys.job("nightly"), mapping={**past, "last_success_start": 1_000})
    job(ledger, "other", paused=True)
    ledger.client.hset(ledger.keys.job("other"), "paused", 1)
    found = found_in(Metrics(ledger), by="tenant")
    assert (found["supervisor_jobs", ("acme",)], found["supervisor_jobs", ("",)]) == (1, 1)
    assert found["supervisor_jobs_failing", ("acme",)] == 1
    assert found["supervisor_jobs_overdue", ("acme",)] == 1
    assert found["supervisor_jobs_paused", ("",)] == 1
    assert found["supervisor_runs_running", ("acme",)] == 1


def test_the_page_has_every_metric_of_sums(ledger: Ledger) -> None:
    told = set(
        re.findall(r"^\| `(supervisor_\w+)` .* \| (?:sum|least) \|$", PAGE.read_text(), re.M)
    )
    assert told == {f"supervisor_{row.name}" for row in JOBS_GAUGES}


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text;version=1.0.0"])
def test_parts_of_the_metrics_are_whole_texts(ledger: Ledger, accept: str) -> None:
    everything_happens(ledger)
    read = openmetrics_families if accept else text_string_to_metric_families
    for query in ({"by": "tenant"}, {"shard": "1", "total_shards": "2"}):
        parts, _ = Metrics(ledger).exposed(accept, view_of(query))
        names = [family.name for family in read("".join(parts))]
        assert "supervisor_up" in names
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "query",
    [
        {"shard": "8", "total_shards": "8"},
        {"shard": "1"},
        {"total_shards": "2"},
        {"shard": "-1", "total_shards": "2"},
        {"shard": "0", "total_shards": "9999999"},
        {"shard": "0", "total_shards": "9" * 5_000},
        {"by": 'a"b'},
        {"by": "tenant", "shard": "0", "total_shards": "2"},
    ],
)
def test_a_part_that_makes_no_sense_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        view_of(query)
