"""The command line and the API do the same to jobs and runs, and refuse the same."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.operate.question import nominal_time
from tests.commands import supervisor_at
from tests.damage import lose_run
from tests.jobs import admitted, begun, job, run_id
from tests.waiting import wait_until

API = "/api/v1"

STEPS = [{"task": "proj.a", "name": "a", "priority": 1}]

#: Clocks in Berlin go from 02:00 to 03:00 in that night.
IN_THE_GAP, ITS_END = "2027-03-28T02:30", datetime(2027, 3, 28, 1, tzinfo=UTC)


TRIGGERS: list[tuple[str, str, Any]] = [
    ("task", "params", {"day": 1}),
    ("steps", "args", [1]),
    ("steps", "kwargs", {"day": 1}),
    ("task", "args", [float("nan")]),
    ("task", "kwargs", {"a": float("inf")}),
    ("task", "args", ["\ud800"]),
]


@pytest.mark.parametrize(("name", "what", "value"), TRIGGERS, ids=str)
def test_arguments_that_a_job_has_no_use_for_are_refused_alike(
    ledger: Ledger, bearer: httpx.Client, redis_url: str, name: str, what: str, value: Any
) -> None:
    job(ledger, "task")
    job(ledger, "steps", task=None, steps=STEPS)
    text = json.dumps(value)
    body, headers = f'{{"{what}": {text}}}', {"content-type": "application/json"}
    answer = bearer.post(f"{API}/jobs/{name}/trigger", content=body, headers=headers)
    assert (answer.status_code, bool(answer.json()["error"])) == (400, True)
    refused = supervisor_at(redis_url)("trigger", name, f"--{what}", text)
    assert refused.exit_code == 2, refused.output
    assert ledger.history(name) == []


TIMES = {
    "past": ("2020-01-01T00:00:00Z", "{key} is in the past"),
    "far": ("2200-01-01T00:00", "is more than 100 years from now"),
    "beyond the calendar": ("9999-12-31T23:59:59-23:59", "is beyond the calendar"),
}


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize(("verb", "key"), [("pause", "until"), ("trigger", "at")])
def test_times_that_make_no_sense_are_refused_alike(
    ledger: Ledger, bearer: httpx.Client, redis_url: str, name: str, verb: str, key: str
) -> None:
    job(ledger)
    time, words = TIMES[name][0], TIMES[name][1].format(key=key)
    answer = bearer.post(f"{API}/jobs/nightly/{verb}", json={key: time})
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    refused = supervisor_at(redis_url)(verb, "nightly", f"--{key}", time)
    assert (refused.exit_code, words in refused.output) == (2, True)
    assert (ledger.job("nightly").paused, ledger.history("nightly")) == (False, [])


def test_a_local_time_is_the_same_instant_everywhere(
    ledger: Ledger, bearer: httpx.Client, redis_url: str
) -> None:
    spec = job(ledger, timezone="Europe/Berlin", every="1h")
    answer = bearer.post(f"{API}/jobs/nightly/pause", json={"until": IN_THE_GAP})
    assert datetime.fromisoformat(answer.json()["until"]) == ITS_END
    assert ledger.job("nightly").paused_until == ITS_END
    output = supervisor_at(redis_url)("pause", "nightly", "--until", IN_THE_GAP).stdout
    assert output == "nightly paused until 2027-03-28T03:00:00+02:00\n"
    assert ledger.job("nightly").paused_until == ITS_END
    listed = supervisor_at(redis_url)("next", "nightly", "-n", "1", "--after", IN_THE_GAP).stdout
    assert "2027-03-28T02:00:00.000Z" in listed
    assert nominal_time(IN_THE_GAP, spec, ITS_END) == ITS_END


def test_a_run_for_a_time_to_come_waits_for_it_alike(
    ledger: Ledger, bearer: httpx.Client, redis_url: str
) -> None:
    job(ledger, timezone="Europe/Berlin", every="1h", overlap="skip")
    answer = bearer.post(f"{API}/jobs/nightly/trigger", json={"at": IN_THE_GAP})
    by_api = ledger.run(answer.json()["run"])
    supervisor_at(redis_url)("trigger", "nightly", "--at", IN_THE_GAP)
    for run in ledger.history("nightly"):  # neither is in the way of the other yet
        assert (run.state, run.nominal_at) == (RunState.WAITING, ITS_END)
        assert run.due_at is not None
        assert timedelta() <= run.due_at - ITS_END < timedelta(seconds=30)
    shown = supervisor_at(redis_url)("why", by_api.id).stdout
    assert "is not to start until 2027-03-28 03:00" in shown
    assert supervisor_at(redis_url)("cancel", by_api.id).exit_code == 0
    assert ledger.run(by_api.id).state is RunState.CANCELLED


def test_a_run_for_a_time_to_come_starts_then_whichever_beat_is_there(
    ledger: Ledger, redis_url: str
) -> None:
    job(ledger)
    record = json.loads(
        supervisor_at(redis_url)("trigger", "nightly", "--at", "500ms", "--json").stdout
    )
    [asked] = record["results"]
    assert asked["state"] == "waiting"
    wait_until(lambda: (ledger.rescue(), ledger.run(asked["run"]).state is RunState.QUEUED)[1])
    run = ledger.run(asked["run"])
    assert run.queued_at >= run.nominal_at


def test_a_step_is_cancelled_alike_and_fails_its_run(
    ledger: Ledger, bearer: httpx.Client, redis_url: str
) -> None:
    spec = admitted(ledger, 0, 1, task=None, steps=STEPS, overlap="allow")
    by_api, by_command = (f"{run_id(spec, second)}~a" for second in (0, 1))
    answer = bearer.post(f"{API}/runs/{by_api}/cancel")
    assert (answer.status_code, answer.json()["cancellation"]) == (202, "cancelled")
    assert supervisor_at(redis_url)("cancel", by_command).stdout == f"{by_command} cancelled\n"
    for second in (0, 1):
        assert ledger.run(run_id(spec, second)).state is RunState.FAILED


def test_an_item_that_is_gone_has_ended(
    ledger: Ledger, bearer: httpx.Client, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = begun(ledger)
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    run = ledger.run(run_id(spec, 0))
    assert bearer.post(f"{API}/runs/{run.id}/cancel").status_code == 409
    # Between the two calls its record goes, as that of an item that ends well.
    monkeypatch.setattr(Ledger, "run", once(run, Ledger.run))
    lose_run(ledger, run.id)
    refused = supervisor_at(redis_url)("cancel", run.id)
    assert refused.exit_code == 4
    assert f"{run.id} has ended: unknown by now" in refused.output


def once(first: Any, then: Any) -> Any:
    """A method that gives `first`, and from then on what the real one does."""
    given: list[Any] = [first]
    return lambda ledger, run: given.pop() if given else then(ledger, run)
