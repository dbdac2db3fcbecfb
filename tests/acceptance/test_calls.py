"""Tasks that no schedule names, called by code: the same guard."""

from __future__ import annotations

import json
import re

from supervisor.testing import comes_due
from tests.acceptance.project import Project, overlapping
from tests.waiting import wait_until
from tools.matrix import since

JOBS = "jobs: {}"
PROCESSES = 4

#: A caller's program: calls, and prints what the guard decided on each.
CALL = """
def told(result):
    return [result.id, result.admission.placement.value, result.admission.blocked_by]
"""


def test_calls_with_the_same_key_wait_or_are_skipped(team: Project) -> None:
    first, second, third, other = team.code(
        CALL
        + """
print(json.dumps([told(call) for call in (
    team.import_feed.delay("a", held=True),
    team.import_feed.delay(feed="a"),
    team.import_feed.delay("a"),
    team.import_feed.delay("b"),
)]))"""
    )
    assert [call[1] for call in (first, second, third, other)] == ["start", "wait", "skip", "start"]
    assert third[2] == first[0]
    team.run_when(other[0], "succeeded")
    assert team.ledger.run(second[0]).state == "waiting"  # while workers are idle
    team.let_end(first[0])
    team.run_when(second[0], "succeeded")
    assert team.ledger.run(first[0]).state == "succeeded"
    assert (first[0], second[0]) not in overlapping(team.witness("team.import_feed"))


def test_a_skipped_call_is_revoked_in_the_result_backend(team: Project) -> None:
    first, *states = team.code(
        """
team.app.conf.result_backend = team.app.conf.broker_url
skip = {"guard": {"overlap": "skip"}}
calls = [team.import_feed.apply_async(("r", True), headers=skip) for _ in "ab"]
print(json.dumps([calls[0].id, *[[call.was_skipped, call.state] for call in calls]]))"""
    )
    team.let_end(first)
    assert states == [[False, "PENDING"], [True, "REVOKED"]]


def test_a_call_for_later_is_no_message_before(team: Project) -> None:
    [delayed] = team.code(
        CALL + 'print(json.dumps([told(team.import_feed.apply_async(("c",), countdown=3600))]))'
    )
    assert delayed[1] == "delay"
    ledger = team.ledger
    assert ledger.run(delayed[0]).state == "waiting"
    assert not ledger.client.llen("celery")
    assert not ledger.client.hlen("unacked")
    # An hour passes for this run.
    comes_due(ledger, delayed[0])
    team.run_when(delayed[0], "succeeded")


def test_a_guarded_task_is_a_job_once_a_worker_has_started(team: Project) -> None:
    wait_until(lambda: "team.import_feed" in team.ledger.specs(), 20)
    record = team.ledger.job("team.import_feed")
    assert record.spec.schedule == "when called"
    assert record.next_run_at is None


def test_a_chain_of_guarded_tasks_goes_on_by_its_own_ids(team: Project) -> None:
    last = team.code(
        """
from celery import chain
print(json.dumps(chain(team.import_feed.si("e"), team.import_feed.si("f")).apply_async().id))"""
    )
    wait_until(lambda: [s for s in team.witness() if (s.run, s.event) == (last, "end")], 15)
    assert team.ledger.run(last).job == "team.import_feed"


def test_times_and_decimals_reach_the_task_as_they_were(team: Project) -> None:
    run = team.code(
        """
from datetime import UTC, datetime
from decimal import Decimal
moment = datetime(2026, 3, 1, tzinfo=UTC)
print(json.dumps(team.echo.delay(moment, amount=Decimal("1.5")).id))"""
    )
    team.run_when(run, "succeeded")
    assert "echoed datetime Decimal" in team.logs()


def test_a_call_that_is_revoked_gives_its_key_back(team: Project) -> None:
    revoked = team.code(
        """
result = team.import_feed.apply_async(("y",), queue="nobody")
result.revoke()
print(json.dumps(result.id))"""
    )
    worker = team.worker(queues="nobody", processes=1, mingles=True)
    team.run_when(revoked, "cancelled")
    worker.terminate()
    again = team.code(CALL + 'print(json.dumps(told(team.import_feed.delay("y"))))')
    assert again[1] == "start"


def test_a_caller_goes_on_after_the_ledger_lost_its_data(team: Project) -> None:
    calls = team.code(
        CALL
        + """
from supervisor.sending.publisher import publisher_of
before = told(team.import_feed.delay("z"))
ledger = publisher_of(team.app).ledger
ledger.client.delete(ledger.keys.guarded)
print(json.dumps([before, told(team.import_feed.delay("zz"))]))"""
    )
    team.run_when(calls[1][0], "succeeded")


def test_a_task_with_a_guard_keeps_its_class_and_others_have_no_more(team: Project) -> None:
    made = team.code(
        """
from celery import Celery, Task
from supervisor.app import supervise
from supervisor.sending.guarded_calls import GuardedCalls
class Contextual(Task):
    abstract = True
    def __call__(self, *args, **kwargs):
        return "in context", super().__call__(*args, **kwargs)
app = supervise(Celery("other", broker=team.app.conf.broker_url, task_cls=Contextual))
@app.task
def first(): return 1
@app.task(base=Task, guard=True)
def second(): return 2
app.finalize()
print(json.dumps([first(), second(), [
    isinstance(task, GuardedCalls) for task in (first, second)
], second.delay().admission.placement.value]))"""
    )
    assert made == [["in context", 1], 2, [False, True], "start"]


def test_a_task_is_guarded_in_a_program_that_only_calls_it(team: Project) -> None:
    """Nothing finalizes the app of such a program."""
    made = team.code(
        """
from celery import Celery, Task, shared_task
from supervisor.app import supervise
app = supervise(Celery("calls", broker=team.app.conf.broker_url))
class Contextual(Task):
    guard = True
    def run(self): pass
@app.task(base=Contextual)
def first(): pass
placed = [app.finalized, first.delay().admission.placement.value]
class Second(Contextual):
    name = "calls.second"
placed.append(app.register_task(Second()).delay().admission.placement.value)
late = Celery("late", broker=team.app.conf.broker_url)
class Flask(late.Task):
    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)
late.Task = Flask
supervise(late)
@late.task(guard=True)
def third(): pass
placed += [late.finalized, third.delay().admission.placement.value]
@shared_task(base=Contextual)
def fourth(): pass
late.set_current()
print(json.dumps([*placed, fourth.delay().admission.placement.value]))"""
    )
    assert made == [False, "start", "start", False, "start", "start"]


@since("celery", "5.7", "a model among the arguments is no JSON")
def test_a_call_takes_and_gives_what_celerys_own_does(team: Project) -> None:
    texts = team.code(
        """
import copy, pickle
from datetime import UTC, datetime, timedelta
from celery import Celery
from pydantic import BaseModel
from supervisor.app import supervise
class Order(BaseModel):
    n: int
app = supervise(Celery("own", broker=team.app.conf.broker_url))
@app.task(pydantic=True, guard=True, ignore_result=True)
def pack(order: Order): pass
app.finalize()
result = pack.apply_async((Order(n=3),), queue="nobody")
later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
delayed = pack.apply_async((Order(n=4),), eta=later, expires=later)
copies = [copy.copy(result), pickle.loads(pickle.dumps(result))]
print(json.dumps([result.get(), result.id, delayed.admission.placement.value,
    [copied.id for copied in copies]]))"""
    )
    run = texts[1]
    assert texts == [None, run, "delay", [run, run]]
    assert team.ledger.run(run).args == [{"n": 3}]


def test_a_task_whose_own_hook_skips_the_guards_has_a_lease(team: Project) -> None:
    first, second = team.code(
        CALL
        + """
print(json.dumps([told(call) for call in (team.forgetful.delay(), team.forgetful.delay())]))"""
    )
    team.run_when(first[0], "running")
    assert second[1:] == ["skip", first[0]]
    team.let_end(first[0])
    assert team.run_when(first[0], "succeeded").attempt == 1


def test_a_call_has_the_parent_that_made_it(team: Project) -> None:
    team.code("print(json.dumps(team.have_children.delay().id))")
    children = team.directory / "children.json"
    wait_until(lambda: children.exists() and children.read_text())
    parent, first, second = json.loads(children.read_text())
    foreign = team.code("print(json.dumps(team.ask_parent.delay().id))")
    for run in (first, second, foreign):
        team.run_when(run, "running")
        team.let_end(run)
        team.run_when(run, "succeeded")
    for run, root in ((first, parent), (second, parent), (foreign, foreign)):
        its_parent = None if root == run else root
        wait_until(lambda line=f"{run} of {its_parent} {root}": line in team.logs())  # type: ignore[misc]


def test_a_run_is_not_replaced_by_a_guarded_call(team: Project) -> None:
    """It would be a second run under the first one's id, which no worker would take."""
    run = team.run_when(team.code("print(json.dumps(team.hand_over.delay().id))"), "failed")
    assert "cannot be replaced" in str(run.reason)


def test_celerys_own_retries_of_an_unguarded_call_come_to_an_end(team: Project) -> None:
    team.code('print(json.dumps(team.app.send_task("team.insist").id))')
    wait_until(lambda: "raised unexpected: ValueError('not yet')" in team.logs(), 30)
    assert sorted(re.findall(r"insists (\d)", team.logs())) == ["0", "1", "2"]
