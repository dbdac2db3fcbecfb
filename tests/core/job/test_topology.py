from __future__ import annotations

import pytest
from celery.concurrency import solo
from celery.concurrency.base import BasePool

from supervisor.job.spec import JobSpec
from supervisor.job.topology import POOLS, Needs, Topology, pool_name


def spec(name: str, **keys: object) -> JobSpec:
    return JobSpec.model_validate({"name": name, "task": "t", "every": "1m", **keys})


def test_each_serial_queue_has_a_worker_of_its_own() -> None:
    topology = Topology.of(
        [
            spec("plain"),
            spec("mail", queue="mail"),
            spec("own", serial=True),
            spec("first", serial="reports"),
            spec("second", serial="reports"),
        ]
    )
    default, own, reports = topology.workers
    assert (default.queues, default.jobs) == (("celery", "mail"), ("mail", "plain"))
    assert (own.queues, own.jobs) == (("serial.own",), ("own",))
    assert (reports.queues, reports.jobs) == (("serial.reports",), ("first", "second"))


def test_a_serial_worker_has_one_process_whatever_the_others_have() -> None:
    default, serial = Topology.of([spec("own", serial=True)]).workers
    assert "-c 8" in " ".join(default.command("proj", 8))
    command = " ".join(serial.command("proj", 8))
    assert "-Q serial.own -c 1 --prefetch-multiplier 1" in command


@pytest.mark.parametrize(
    ("prefix", "own", "shared"),
    [
        ("supervisor", "serial.own", "serial.reports"),
        ("shop", "serial.shop.own", "serial.shop.reports"),
        (":shop:eu_", "serial.shop-eu.own", "serial.shop-eu.reports"),
    ],
)
def test_a_prefix_is_in_the_names_of_serial_queues(prefix: str, own: str, shared: str) -> None:
    specs = [spec("mail", queue="mail"), spec("own", serial=True), spec("shared", serial="reports")]
    queues = [each.kept_apart(prefix).routed_queue for each in specs]
    assert queues == ["mail", own, shared]


def test_the_longest_prefix_and_name_make_a_queue_that_is_read_again() -> None:
    found = spec("n" * 100, serial=True).kept_apart("p" * 100)
    assert JobSpec.model_validate_json(found.model_dump_json()) == found


def test_a_job_of_several_tasks_needs_the_queues_of_its_steps() -> None:
    steps = [
        {"task": "a", "priority": 2, "queue": "quick"},
        {"task": "b", "priority": 1},
        {"task": "c", "priority": 0},
    ]
    plain = spec("plain", task=None, steps=steps)
    own = spec("own", task=None, steps=steps, serial=True)
    default, dedicated = Topology.of([plain, own]).workers
    assert (default.queues, default.jobs) == (("celery", "quick"), ("own", "plain"))
    assert (dedicated.queues, dedicated.jobs) == (("serial.own",), ("own",))


@pytest.mark.parametrize(
    ("needs", "pools"),
    [
        ({}, {"prefork", "threads", "solo", "gevent"}),
        ({"time_limit": "5m"}, {"prefork", "gevent"}),
        ({"soft_time_limit": "5m"}, {"prefork"}),
        ({"overlap": "replace"}, {"prefork"}),
    ],
)
def test_what_a_job_needs_decides_which_pools_may_run_it(
    needs: dict[str, str], pools: set[str]
) -> None:
    found = Needs.of(spec("job", **needs))
    assert {pool for pool in (*POOLS.values(), "odd:Pool") if not found.unmet_by(pool)} == pools


def test_a_step_needs_what_its_own_message_says() -> None:
    steps = [{"task": "t", "priority": 1}, {"task": "u", "priority": 0, "time_limit": "1m"}]
    job = spec("job", task=None, steps=steps, soft_time_limit="30s", overlap="replace")
    assert [Needs.of(job, [step]) for step in job.steps] == [
        Needs(soft_time_limit=True),
        Needs(time_limit=True, soft_time_limit=True),
    ]


def test_a_pool_made_of_celerys_is_known_by_its_name() -> None:
    class Own(solo.TaskPool):
        pass

    assert pool_name(Own) == "solo"
    assert pool_name(BasePool) == "celery.concurrency.base:BasePool"
