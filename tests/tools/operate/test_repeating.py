"""What has ended is run again: with its own arguments, or from the step on that failed."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from supervisor.catalog.entries import Entries
from supervisor.errors import Conflict, InvalidRequest, UnknownJob
from supervisor.job.run import Run, RunState
from supervisor.ledger.actions import ActionQuery, Actor
from supervisor.ledger.attempt import Grant
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import FORMER_KEPT, LARGEST_KEPT_PARAM, RUNS_WITH_PARAMS
from supervisor.ledger.run_request import CallArguments, RunRequest
from supervisor.operate import repeating
from supervisor.sending.content import content_of
from tests.commands import Supervisor, as_json
from tests.core.ledger.test_stages import fail, open_steps, pipeline, succeed
from tests.features.following.test_after import loaded
from tests.jobs import MIDNIGHT, begin, failed, fails, job, run_id, ticks, with_messages

ANN = Actor("ann", "cli")


def again(ledger: Ledger, run: str, **how: Any) -> Run:
    repeated = repeating.retry(ledger, run, by=ANN, **how).run
    assert repeated
    return repeated


def test_a_repeat_names_its_run_and_is_for_the_same_time(ledger: Ledger) -> None:
    run = failed(ledger, job(ledger), 0)
    repeat = again(ledger, run, reason="the disk is back")
    assert (repeat.repeats, ledger.run(run).repeated_by) == (run, [repeat.id])
    assert repeat.id.startswith(f"{run}+")
    assert (repeat.state, repeat.nominal_at) == (RunState.QUEUED, MIDNIGHT)
    [entry] = ledger.actions.search(ActionQuery(verb="retry"))
    assert (entry.action.by, entry.action.target, entry.result) == (ANN, run, "start")
    assert (entry.action.reason, entry.action.jobs) == ("the disk is back", ("nightly",))
    assert repeat.id in entry.action.changes[0].text


def test_the_ledger_sends_it_as_it_sends_all_others(
    ledger: Ledger, app: Any, redis_url: str
) -> None:
    run = failed(ledger, job(ledger), 0)
    with_messages(ledger, app)
    before = ledger.client.llen("celery")
    repeat = again(ledger, run)
    assert (repeat.sends, ledger.client.llen("celery")) == (1, before + 1)


def test_a_repeat_is_not_late_for_the_time_that_it_is_for(ledger: Ledger) -> None:
    repeat = again(ledger, failed(ledger, job(ledger), 0))
    sum_before = ledger.client.hget(ledger.keys.job("nightly"), "h:start_delay:sum")
    begin(ledger, repeat.id, "again")
    sum_after = ledger.client.hget(ledger.keys.job("nightly"), "h:start_delay:sum")
    assert int(sum_after or 0) - int(sum_before or 0) < 60_000
    assert ledger.open_runs_of(["nightly"])["nightly"].running == 1


def test_a_repeat_has_the_arguments_of_the_run_not_of_the_edited_job(
    ledger: Ledger, entries: Entries
) -> None:
    """And references to secrets in these are still resolved."""
    own = {"every": "1s", "overlap": "allow", "args": [1], "kwargs": {"token": "${TOKEN}"}}
    spec = loaded(ledger, entries, nightly=own)["nightly"]
    run = failed(ledger, spec, 0)
    assert again(ledger, run).args is None
    loaded(ledger, entries, nightly={**own, "args": [2], "kwargs": {"token": "none"}})
    repeated = repeating.repeat_of(ledger, ledger.run(run))
    assert (repeated.is_edited, repeated.request.args) == (True, [1])
    fails(ledger, ledger.run(run).repeated_by[0])
    repeat = again(ledger, run)
    assert (repeat.args, repeat.kwargs) == ([1], {"token": "${TOKEN}"})
    content = content_of(repeat.id, "proj.nightly", [1], {"token": "${TOKEN}"})
    grant = ledger.begin(repeat.id, "token", "worker", content=content)
    assert list(grant.references) == [["kwargs", "token"]]  # type: ignore[union-attr]


def test_a_repeat_has_the_arguments_of_a_message_from_before_an_edit(
    ledger: Ledger, entries: Entries
) -> None:
    for number in (1, 2):
        loaded(ledger, entries, nightly={"every": "1s", "args": [number]})
    spec = loaded(ledger, entries, nightly={"every": "1s", "args": [3]})["nightly"]
    ledger.admit(ticks(spec, 0))
    run = run_id(spec, 0)
    ledger.begin(run, run, "worker", content=content_of(run, "proj.nightly", [2], {}))
    ledger.finish(run, run, RunState.FAILED, "no")
    assert again(ledger, run).args == [2]


def test_a_repeat_has_the_arguments_of_the_last_attempt(ledger: Ledger, entries: Entries) -> None:
    """The message of its first was made before an edit."""
    for number in (1, 2):
        spec = loaded(ledger, entries, nightly={"every": "1s", "args": [number]})["nightly"]
    ledger.admit(ticks(spec, 0))
    run = run_id(spec, 0)
    for number, token in ((1, "first"), (2, "second")):
        content = content_of(run, "proj.nightly", [number], {})
        assert isinstance(ledger.begin(run, token, "worker", content=content), Grant)
        if token == "first":
            ledger.retry(run, token, timedelta())
            ledger.rescue()
    ledger.finish(run, "second", RunState.FAILED, "no")
    assert again(ledger, run).args is None, "the job's own"


def test_a_run_whose_arguments_are_gone_is_not_repeated(ledger: Ledger, entries: Entries) -> None:
    keys: dict[str, Any] = {"every": "1s", "args": [0]}
    run = failed(ledger, loaded(ledger, entries, nightly=keys)["nightly"], 0)
    for number in range(1, FORMER_KEPT + 1):
        loaded(ledger, entries, nightly={"every": "1s", "args": [number]})
    with pytest.raises(Conflict, match="edited so often"):
        again(ledger, run)
    loaded(ledger, entries)
    with pytest.raises(UnknownJob):
        again(ledger, run)
    refused = ledger.actions.search(ActionQuery(verb="retry"))
    assert [entry.outcome for entry in refused] == ["refused", "refused"]


def test_arguments_that_its_caller_or_a_retry_gave_are_its_own(ledger: Ledger) -> None:
    spec = job(ledger, args=[1], overlap="allow", max_retries=1)
    request = RunRequest(kwargs={"day": 1}, key="other", options={"priority": 3, "chord": {}})
    run = fails(ledger, ledger.trigger(spec, request).id)
    repeat = again(ledger, run)
    assert (repeat.args, repeat.kwargs, repeat.rules.lock) == (None, {"day": 1}, "other")
    assert repeat.options == {"priority": 3}
    ledger.admit(ticks(spec, 0))
    begin(ledger, run_id(spec, 0))
    ledger.retry(run_id(spec, 0), "token", timedelta(), arguments=CallArguments(args=[7]))
    ledger.rescue()
    assert again(ledger, fails(ledger, run_id(spec, 0))).args == [7]


def test_its_lock_is_the_jobs_for_its_arguments(ledger: Ledger, entries: Entries) -> None:
    keys = {"every": "1s", "kwargs": {"day": 1}, "key": "by {day}"}
    spec = loaded(ledger, entries, nightly=keys)["nightly"]
    run = failed(ledger, spec, 0)
    assert again(ledger, run).rules.lock == ledger.run(run).rules.lock == "by 1"
    loaded(ledger, entries, nightly={**keys, "key": "now by {day}"})
    fails(ledger, ledger.run(run).repeated_by[0])
    assert again(ledger, run).rules.lock == "now by 1"


def test_a_run_is_not_repeated_twice_at_a_time(ledger: Ledger) -> None:
    run = failed(ledger, job(ledger, overlap="queue_all"), 0)
    repeat = again(ledger, run)
    with pytest.raises(Conflict, match=f"is being run again: {repeat.id}".replace("+", r"\+")):
        again(ledger, run)
    assert (ledger.run(run).repeated_by, len(ledger.history("nightly"))) == ([repeat.id], 2)
    [refused, _] = ledger.actions.search(ActionQuery(verb="retry"))
    assert refused.outcome == "refused"
    fails(ledger, repeat.id)
    assert len(ledger.run(again(ledger, run).repeats or "").repeated_by) == 2


def test_a_second_call_for_a_lost_reply_changes_nothing(ledger: Ledger) -> None:
    spec = job(ledger)
    request = RunRequest(run_id="nightly@manual-1", repeats=failed(ledger, spec, 0))
    first = ledger.admit_requests(spec, [request])
    assert ledger.admit_requests(spec, [request])[0].placement == "duplicate"
    assert ledger.run(request.repeats).repeated_by == [first[0].run_id]


def test_the_overlap_policy_decides(ledger: Ledger) -> None:
    spec = job(ledger, overlap="skip")
    run = failed(ledger, spec, 0)
    ledger.admit(ticks(spec, 1))
    assert again(ledger, run).state is RunState.SKIPPED
    assert repeating.failures_to_repeat(ledger, "nightly") == [run]


def test_only_what_has_ended_as_a_run_is_run_again(ledger: Ledger) -> None:
    spec = pipeline(ledger)
    ledger.admit(ticks(spec, 0))
    with pytest.raises(Conflict, match="has not ended: it is queued"):
        again(ledger, run_id(spec, 0))
    with pytest.raises(InvalidRequest, match="is a part of a run"):
        again(ledger, f"{run_id(spec, 0)}~extract")


def test_failures_are_those_that_nothing_has_repeated(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all")
    runs = [failed(ledger, spec, second) for second in range(4)]
    fine = again(ledger, runs[0])
    begin(ledger, fine.id)
    ledger.finish(fine.id, "token", RunState.SUCCEEDED)
    failed_again = fails(ledger, again(ledger, runs[1]).id)
    ledger.cancel(again(ledger, runs[2]).id, "")
    left = repeating.failures_to_repeat(ledger, "nightly")
    assert left == [runs[2], runs[3], failed_again]
    repeated = repeating.retry_each(ledger, [*left, runs[0], "none"], by=ANN)
    assert [one.run.state.value if one.run else one.error for one in repeated] == [
        *("queued", "waiting", "waiting", "waiting"),
        "unknown run 'none'",
    ]


STEPS = (
    {"task": "proj.extract", "priority": 3},
    {"task": "proj.scan", "priority": 2},
    {"task": "proj.convert", "priority": 2},
    {"task": "proj.index", "priority": 1},
)


def failed_steps(ledger: Ledger, second: int = 1, **returned: Any) -> str:
    """A run of which one step of the second stage has failed."""
    spec = pipeline(ledger, STEPS, params={"tree": "docs"}, overlap="allow")
    ledger.admit(ticks(spec, second))
    run = run_id(spec, second)
    succeed(ledger, run, "extract", **(returned or {"files": ["a", "b"], "tree": "found"}))
    succeed(ledger, run, "scan", viruses=0)
    fail(ledger, run, "convert")
    assert ledger.run(run).state is RunState.FAILED
    return run


def test_a_run_of_steps_goes_on_from_the_step_that_failed(ledger: Ledger) -> None:
    run = failed_steps(ledger)
    repeat = again(ledger, run).id
    assert open_steps(ledger, repeat) == ["convert"]
    params = {name: json.loads(text) for name, text in ledger.steps.params(repeat).items()}
    assert params == {"files": ["a", "b"], "tree": "found", "viruses": 0}
    records = {record.name: record for record in ledger.steps.records(repeat)}
    assert (records["extract"].done, records["scan"].done) == (f"{run}~extract", f"{run}~scan")
    assert records["extract"].run and records["extract"].run.state is RunState.SUCCEEDED
    succeed(ledger, repeat, "convert")
    assert open_steps(ledger, repeat) == ["index"]
    succeed(ledger, repeat, "index")
    assert ledger.run(repeat).state is RunState.SUCCEEDED


def test_all_steps_are_run_again_with_what_the_first_began_with(ledger: Ledger) -> None:
    run = failed_steps(ledger)
    for repeated in (run, fails_at(ledger, again(ledger, run).id)):
        repeat = again(ledger, repeated, whole=True).id
        assert open_steps(ledger, repeat) == ["extract"]
        assert ledger.steps.params(repeat) == {"tree": '"docs"'}
        fails_at(ledger, repeat, "extract")


def fails_at(ledger: Ledger, run: str, step: str = "convert") -> str:
    fail(ledger, run, step)
    return run


def test_a_repeat_goes_on_with_the_plan_of_its_run(ledger: Ledger) -> None:
    run = failed_steps(ledger)
    first = fails_at(ledger, again(ledger, run).id)
    pipeline(ledger, [{"task": "proj.other", "priority": 1}])
    repeat = again(ledger, first)
    assert open_steps(ledger, repeat.id) == ["convert"]
    assert [record.done for record in ledger.steps.records(repeat.id)] == [
        *(f"{run}~extract", f"{run}~scan", None, None)
    ]
    job(ledger, task="proj.one")
    with pytest.raises(Conflict, match="has become a job of one task"):
        again(ledger, first)


def test_steps_after_the_failed_one_run_again_in_any_case(
    ledger: Ledger,
) -> None:
    spec = pipeline(ledger, STEPS, on_step_failure="continue")
    ledger.admit(ticks(spec, 1))
    run = run_id(spec, 1)
    succeed(ledger, run, "extract")
    succeed(ledger, run, "scan")
    fail(ledger, run, "convert")
    succeed(ledger, run, "index")
    repeat = again(ledger, run).id
    assert open_steps(ledger, repeat) == ["convert"]
    succeed(ledger, repeat, "convert")
    assert open_steps(ledger, repeat) == ["index"]


def test_a_batch_runs_again_with_all_of_its_items(ledger: Ledger) -> None:
    steps = [
        {"task": "proj.extract", "priority": 2},
        {"task": "proj.words", "priority": 1, "foreach": "files"},
    ]
    spec = pipeline(ledger, steps)
    ledger.admit(ticks(spec, 1))
    run = run_id(spec, 1)
    succeed(ledger, run, "extract", files=["a", "b"])
    first, second = ledger.steps.expand(f"{run}~words", ["a", "b"])
    begin(ledger, first, "good")
    ledger.finish(first, "good", RunState.SUCCEEDED)
    fails(ledger, second)
    repeat = again(ledger, run).id
    assert open_steps(ledger, repeat) == ["words"]
    assert ledger.steps.param(repeat, "files") == ["a", "b"]
    for item in ledger.steps.expand(f"{repeat}~words", ["a", "b"]):
        begin(ledger, item, "again")
        ledger.finish(item, "again", RunState.SUCCEEDED)
    assert ledger.run(repeat).state is RunState.SUCCEEDED


def test_a_repeat_that_waits_begins_with_the_same_step(ledger: Ledger) -> None:
    run = failed_steps(ledger)
    spec = pipeline(ledger, STEPS, overlap="queue_one")
    ledger.admit(ticks(spec, 2))
    repeat = again(ledger, run)
    assert repeat.state is RunState.WAITING
    ledger.cancel(run_id(spec, 2), "")
    assert open_steps(ledger, repeat.id) == ["convert"]


def test_large_params_are_kept_for_the_last_runs_that_failed(ledger: Ledger) -> None:
    large = "x" * (LARGEST_KEPT_PARAM + 1)
    runs = [failed_steps(ledger, n, text=large) for n in range(RUNS_WITH_PARAMS + 1)]
    with pytest.raises(Conflict, match=r"the params text of .* were too large to be kept"):
        again(ledger, runs[0])
    repeat = again(ledger, runs[1])
    assert ledger.steps.param(repeat.id, "text") == large
    assert open_steps(ledger, again(ledger, runs[0], whole=True).id) == ["extract"]


def test_the_verb_runs_one_or_all_that_failed(ledger: Ledger, supervisor: Supervisor) -> None:
    spec = job(ledger, overlap="queue_all")
    runs = [failed(ledger, spec, second) for second in range(3)]
    one = supervisor("retry", runs[0], "--reason", "why")
    assert (one.exit_code, f"repeats {runs[0]}" in one.output) == (0, True)
    rest = as_json(supervisor("retry", "--failed", "--job", "nightly", "--json"))
    assert [found["repeats"] for found in rest["results"]] == runs[1:]
    none = supervisor("retry", "--failed", "--job", "nightly", "--since", "1h")
    assert none.output == "no failed run of nightly is left to run again\n"
    shown = supervisor("show", runs[0]).output
    assert f"repeated_by       {ledger.run(runs[0]).repeated_by[0]}" in shown
    refused = supervisor("retry", runs[0], "nightly@none")
    assert (refused.exit_code, "is not run again" in refused.output) == (1, True)
    assert supervisor("retry", runs[0]).exit_code == 4
    for words in ((), ("--failed",), (runs[0], "--failed", "--job", "nightly"), ("--job", "a")):
        assert supervisor("retry", *words).exit_code == 2
