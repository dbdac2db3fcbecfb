"""Jobs that code puts, edits and removes at run time: what the ledger and RedBeat have then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from typing import Any, cast

import pytest
from celery import Celery

from supervisor import jobs
from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load, put_jobs
from supervisor.catalog.put_checks import judged
from supervisor.errors import Conflict, InvalidJob, InvalidRequest, JobConflict, UnknownJob
from supervisor.features.audit.spans import AuditSpans
from supervisor.features.audit.step import audit
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.admission import Placement
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.loading import LoadReply
from supervisor.schedule import schedule_of, ticks_between
from supervisor.schedule.ticks import Tick
from tests.commands import Supervisor
from tests.core.catalog.test_loading import due
from tests.damage import dealt_with_until, lose, lose_field, miscount
from tests.waiting import wait_until

HOURLY: dict[str, Any] = {"task": "proj.report", "every": "1h"}


def put(app: Celery, name: str = "report", **keys: Any) -> jobs.Job:
    return jobs.put(name, app=app, **{**HOURLY, **keys})


def test_a_job_that_was_put_is_loaded_as_any_other(app: Celery, ledger: Ledger) -> None:
    made = put(app, every=timedelta(hours=1), kwargs={"tenant": "acme"}, by="ann")
    assert made.spec == JobSpec(name="report", kwargs={"tenant": "acme"}, **HOURLY)
    assert ledger.scheduled() == {"report": made.spec}
    assert (made.source, made.paused) == ("runtime", False)
    assert made.place.endswith("Z by ann")
    [next_at, *_] = jobs.next_ticks("report", app=app)
    assert due(ledger) == {"report": next_at.timestamp()}
    assert jobs.get("report", app=app) == made


def test_the_same_job_again_has_the_same_version(app: Celery) -> None:
    first = put(app, args=(1, [2]), at=None)
    assert put(app, args=[1, (2,)], by="bob") == first
    assert put(app, args=[1]).version > first.version


def test_all_that_is_wrong_is_said_at_once_and_nothing_is_changed(app: Celery) -> None:
    before = put(app)
    with pytest.raises(InvalidJob) as error:
        put(app, every="5x", overlpa="skip", kwargs={"at": object()}, exclude=[{"file": "x"}])
    assert len(error.value.problems) == 4
    assert jobs.get("report", app=app) == before


def test_a_put_gives_its_own_version_also_when_another_edits_at_once(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, (ledger, _) = put(app), jobs.ledger_of(app)
    loading = ledger.load

    def load_and_be_edited(*args: Any, **keys: Any) -> LoadReply:
        monkeypatch.setattr(ledger, "load", loading)
        reply = loading(*args, **keys)
        put(app, every="3h")
        return reply

    monkeypatch.setattr(ledger, "load", load_and_be_edited)
    mine = put(app, every="2h", if_version=before.version)
    assert before.version < mine.version < jobs.get("report", app=app).version
    assert mine.spec.every == timedelta(hours=2)
    with pytest.raises(JobConflict):
        put(app, every="4h", if_version=mine.version)
    assert jobs.get("report", app=app).spec.every == timedelta(hours=3)


NO_REQUESTS: dict[str, Callable[[Celery], object]] = {
    "until": lambda app: jobs.pause("report", until=cast("Any", "06:00"), app=app),
    "at": lambda app: jobs.trigger("report", at=cast("Any", "06:00"), app=app),
    "args": lambda app: jobs.trigger("report", args=cast("Any", "abc"), app=app),
    "kwargs": lambda app: jobs.trigger("report", kwargs=cast("Any", [1]), app=app),
    "params": lambda app: jobs.trigger("report", params=cast("Any", "a"), app=app),
    "kwargs: not JSON": lambda app: jobs.trigger("report", kwargs={"a": object()}, app=app),
    "key": lambda app: jobs.trigger("report", key=cast("Any", 7), app=app),
    "16,384 are allowed": lambda app: jobs.trigger("report", args=["x" * 17_000], app=app),
    "by": lambda app: put(app, "other", by=cast("Any", None)),
    "jobs": lambda app: jobs.put_many(cast("Any", ["report"]), app=app),
    "count: -1": lambda app: jobs.next_ticks("report", -1, app=app),
    "count: 'ten'": lambda app: jobs.next_ticks("report", cast("Any", "ten"), app=app),
}


@pytest.mark.parametrize("message", NO_REQUESTS)
def test_what_makes_no_sense_is_refused_by_name(app: Celery, ledger: Ledger, message: str) -> None:
    before = put(app)
    with pytest.raises(InvalidRequest, match=message):
        NO_REQUESTS[message](app)
    assert (jobs.list(app=app), ledger.history("report")) == ([before], [])


def test_keys_that_are_no_mapping_are_a_problem_of_their_job(app: Celery) -> None:
    with pytest.raises(InvalidJob, match="report: the keys of a job are a mapping"):
        jobs.put_many(cast("Any", {"report": ["every"], "fine": HOURLY}), app=app)
    assert jobs.list(app=app) == []


def test_a_job_whose_times_are_all_past_is_put_only_as_it_is_loaded(
    app: Celery, ledger: Ledger, entries: Entries
) -> None:
    late: dict[str, Any] = {"every": None, "at": ["2020-01-01T00:00:00"]}
    for keys in (late, {"end_at": "2020-01-01T00:00:00"}):
        with pytest.raises(InvalidJob, match="its times are all past"):
            put(app, **keys)
        with pytest.raises(InvalidJob, match="report: its times are all past"):
            jobs.put_many({"report": {**HOURLY, **keys}}, app=app)
    spec, _ = judged("report", {"task": "proj.report", "at": late["at"]})
    put_jobs(ledger, entries, {"report": spec}, "runtime", "as it was when its time had not come")
    first = put(app, **late)
    assert first.spec == spec
    assert put(app, **late, labels={"a": "b"}).version > first.version


@pytest.mark.parametrize("names", [["report"], None])
def test_a_job_that_is_put_while_it_is_read_has_its_origin(
    app: Celery, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, names: list[str] | None
) -> None:
    what = "_fields" if names is None else "_some_fields"
    read = getattr(ledger, what)

    def read_then_put(*of: Any) -> dict[str, str]:
        monkeypatch.setattr(ledger, what, read)
        found: dict[str, str] = read(*of)
        put(app)
        return found

    monkeypatch.setattr(ledger, what, read_then_put)
    assert ledger.loaded(names).origins["report"].source == "runtime"


def test_times_of_python_are_taken_without_fractions_of_a_second(app: Celery) -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    spec = put(app, every=None, at=[at], due_by=time(6, 30)).spec
    assert (spec.at, spec.due_by) == ((at.replace(microsecond=0),), time(6, 30))


def test_who_removes_a_job_is_told_who_follows_it(app: Celery) -> None:
    put(app)
    put(app, "mail", every=None, after=["report"])
    with pytest.raises(InvalidJob, match=r"mail: 'after': 'report' would be removed \(take it out"):
        jobs.remove("report", app=app)
    assert jobs.get("mail", app=app).spec.after == ("report",)


@pytest.mark.parametrize(
    "theirs",
    [lambda app: jobs.remove("b", app=app), lambda app: put(app, "b", every=None, after=["a"])],
    ids=["removed", "circle"],
)
def test_a_job_does_not_begin_to_follow_what_another_edits_at_once(
    app: Celery, monkeypatch: pytest.MonkeyPatch, theirs: Callable[[Celery], object]
) -> None:
    before = jobs.put_many({"a": HOURLY, "b": HOURLY}, app=app)
    assert len(before.added) == 2
    ledger, _ = jobs.ledger_of(app)
    monkeypatch.setattr(ledger, "load", Meanwhile(ledger, lambda: theirs(app)))
    with pytest.raises(InvalidJob, match=r"no job 'b'|circle"):
        put(app, "a", every=None, after=["b"])
    assert jobs.get("a", app=app).spec.after == ()


def test_a_job_that_another_begins_to_follow_is_not_removed(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(app)
    ledger, _ = jobs.ledger_of(app)
    follow = lambda: put(app, "mail", every=None, after=["report"])  # noqa: E731
    monkeypatch.setattr(ledger, "load", Meanwhile(ledger, follow))
    with pytest.raises(InvalidJob, match="mail: 'after': 'report' would be removed"):
        jobs.remove("report", app=app)
    assert jobs.get("report", app=app)


def test_problems_of_several_jobs_name_each(app: Celery) -> None:
    with pytest.raises(InvalidJob) as error:
        jobs.put_many({"good": HOURLY, "bad": {}, "worse": {}}, app=app)
    nothing = "give either 'task' or 'steps' (it has none of them)"
    assert str(error.value) == f"bad: {nothing}; worse: {nothing}"


def test_a_version_outlives_the_job(app: Celery) -> None:
    seen = put(app)
    assert jobs.remove("report", if_version=seen.version, app=app)
    assert not jobs.remove("report", app=app)
    with pytest.raises(UnknownJob):
        jobs.get("report", app=app)
    with pytest.raises(JobConflict):
        put(app, if_version=seen.version)
    assert put(app, if_version=0).version > seen.version


def test_a_job_that_comes_back_is_no_removed_one(app: Celery, ledger: Ledger) -> None:
    put(app)
    jobs.remove("report", app=app)
    assert list(ledger.removed()) == ["report"]
    put(app)
    assert ledger.removed() == {}
    assert not ledger.client.exists(ledger.keys.removed)


def test_a_job_of_which_the_ledger_has_lost_all_but_the_entry_is_put_again(
    app: Celery, ledger: Ledger
) -> None:
    put(app)
    lose(ledger, ledger.keys.jobs, ledger.keys.sources)
    assert put(app).spec.name == "report"


def test_many_are_put_at_once_or_none(app: Celery) -> None:
    keys = {f"job-{number}": HOURLY for number in range(3)}
    assert jobs.put_many(keys, app=app).added == tuple(keys)
    with pytest.raises(InvalidJob):
        jobs.put_many({**keys, "job-1": {**HOURLY, "every": "2h"}, "bad": {}}, app=app)
    assert [job.spec.every for job in jobs.list(app=app)] == [timedelta(hours=1)] * 3


def test_jobs_are_listed_by_label_and_source(app: Celery) -> None:
    put(app, "a-1", labels={"tenant": "acme", "kind": "report"})
    put(app, "a-2", labels={"tenant": "other"})
    put(app, "b-1", labels={"kind": "report"}, source="django")

    def names(**chosen: str) -> list[str]:
        return [job.name for job in jobs.list(app=app, **chosen)]

    assert names() == ["a-1", "a-2", "b-1"]
    assert names(label="tenant") == names(source="runtime") == ["a-1", "a-2"]
    assert names(label="tenant=acme") == ["a-1"]
    assert names(label="kind=report", source="django") == ["b-1"]


def test_a_trigger_may_be_for_a_time_to_come_and_has_a_priority(
    app: Celery, ledger: Ledger
) -> None:
    put(app)
    at = ledger.now() + timedelta(hours=1)
    run = ledger.run(jobs.trigger("report", at=at, priority=9, app=app))
    assert (run.state, run.nominal_at) == (RunState.WAITING, at)
    assert run.options == {"priority": 9}
    for wrong in ({"at": ledger.now()}, {"priority": 10}, {"priority": "high"}):
        with pytest.raises(InvalidRequest):
            jobs.trigger("report", app=app, **wrong)
    assert len(ledger.history("report")) == 1


def test_a_trigger_may_bring_a_policy_and_a_time_to_wait(app: Celery, ledger: Ledger) -> None:
    put(app)
    jobs.trigger("report", app=app)
    run = jobs.trigger("report", overlap="queue_all", max_wait="5m", app=app)
    assert ledger.run(run).state is RunState.WAITING
    assert ledger.run(run).rules.max_wait_ms == 300_000
    for wrong, said in (
        ({"overlap": "queue"}, "overlap: 'queue' is no such word .did you mean 'requeue'"),
        ({"max_wait": "soon"}, "max_wait: 'soon' is not a duration"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            jobs.trigger("report", app=app, **wrong)  # type: ignore[arg-type]


class Meanwhile:
    """A ledger that another edits once, when a put has closed a schedule and is about to load."""

    def __init__(self, ledger: Ledger, act: Callable[[], object]) -> None:
        self._load = ledger.load
        self._act: Callable[[], object] | None = act

    def __call__(self, *args: Any, **keys: Any) -> LoadReply:
        if act := self._act:
            self._act = None
            act()
        return self._load(*args, **keys)


def watermark(ledger: Ledger, name: str = "report") -> datetime:
    found = ledger.marks([name])[name].watermark
    assert found
    return found


def begun(ledger: Ledger, at: datetime, name: str = "report") -> None:
    """As if the job's ticks up to then had been dealt with, and no later one."""
    dealt_with_until(ledger, ledger.spec(name), at)
    lose_field(ledger, ledger.keys.job(name), "audited_until")
    AuditSpans(ledger.functions).open([name])


def test_ticks_of_the_old_times_are_decided_and_counted_once(app: Celery, ledger: Ledger) -> None:
    old = put(app, every="1s").spec
    begun(ledger, ledger.now() - timedelta(seconds=60))
    before = watermark(ledger)
    put(app, every="2h")
    ticks = ledger.job("report").counters["ticks"]
    assert ticks == len(ticks_between(schedule_of(old), before, watermark(ledger), 100))
    runs = ledger.history("report")
    [missed] = [run for run in runs if run.state is RunState.MISSED]
    # What beat was about to emit is not lost: 15 s of it, and what came due while it was closed.
    assert missed.reason == "edited"
    assert len(runs) == 1 + ticks - missed.ticks >= 1 + 15
    assert ledger.job("report").unaccounted_ticks == 0


def test_the_audit_of_new_times_begins_with_them(app: Celery, ledger: Ledger) -> None:
    put(app, every="2h")
    begun(ledger, ledger.now() - timedelta(seconds=60))
    new = put(app, every="1s").spec
    assert audit(ledger, [new], ledger.now()) == []


def test_a_tick_that_beat_read_before_an_edit_is_not_admitted_after_it(
    app: Celery, ledger: Ledger
) -> None:
    old = put(app, every="1s").spec
    look = ledger.now()
    put(app, every="2h")
    assert watermark(ledger) >= look  # up to which beat would emit
    [admission] = ledger.admit([Tick(old, look)])
    assert admission.placement is Placement.DUPLICATE
    look = ledger.now()
    jobs.remove("report", app=app)
    [admission] = ledger.admit([Tick(old, look)])
    assert admission.placement is Placement.DUPLICATE


def test_a_tick_that_comes_due_during_an_edit_is_decided_first(
    app: Celery, ledger: Ledger, entries: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = put(app, every="1s").spec
    since, due_at = watermark(ledger), ledger.now() + timedelta(seconds=1)
    meanwhile = Meanwhile(ledger, lambda: wait_until(lambda: ledger.now() > due_at))
    monkeypatch.setattr(ledger, "load", meanwhile)
    new = old.model_copy(update={"every": timedelta(hours=2)})
    put_jobs(ledger, entries, {"report": new}, "runtime", "")
    named = ticks_between(schedule_of(old), since, watermark(ledger), 100)
    assert ledger.job("report").counters["ticks"] == len(named) > 0


def test_an_edit_during_an_edit_is_seen(
    app: Celery, ledger: Ledger, entries: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = put(app)
    act = lambda: put(app, every="3h")  # noqa: E731
    monkeypatch.setattr(ledger, "load", Meanwhile(ledger, act))
    new = old.spec.model_copy(update={"every": timedelta(hours=2)})
    with pytest.raises(JobConflict):
        put_jobs(ledger, entries, {"report": new}, "runtime", "", {"report": old.version})
    assert jobs.get("report", app=app).spec.every == timedelta(hours=3)
    put_jobs(ledger, entries, {"report": new}, "runtime", "")
    assert jobs.get("report", app=app).spec == new


def test_a_removed_job_is_audited_as_long_as_its_records_are_kept(
    app: Celery, ledger: Ledger, supervisor: Supervisor
) -> None:
    put(app, every="1s")
    begun(ledger, ledger.now() - timedelta(seconds=60))
    jobs.remove("report", app=app)
    assert ledger.removed().keys() == {"report"}
    assert ledger.client.ttl(ledger.keys.job("report")) > 0
    assert supervisor("audit").stdout == "1 job audited, 0 with findings\n"
    miscount(ledger, ledger.removed()["report"], "n:ticks", -2)
    wrong = supervisor("audit", "report")
    assert (wrong.exit_code, wrong.stdout.splitlines()[1][:31]) == (
        1,
        "report: 4 ticks unaccounted for"[:31],
    )
    put(app)
    assert ledger.removed() == {}


def test_runs_of_a_removed_job_are_listed(
    app: Celery, ledger: Ledger, supervisor: Supervisor
) -> None:
    put(app)
    run = jobs.trigger("report", app=app)
    jobs.remove("report", app=app)
    assert run in supervisor("runs", "report").stdout
    assert supervisor("runs", "reports").exit_code == 3


def test_more_jobs_than_the_limit_are_refused(
    app: Celery, ledger: Ledger, entries: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.ledger.ledger.MOST_JOBS", 2)
    load(ledger, entries, {"file": JobSpec(name="file", **HOURLY)}, "one", ledger.now())
    put(app, "a")
    put(app, "b")
    with pytest.raises(Conflict, match="and 2 may be"):
        jobs.put_many({"a": {**HOURLY, "every": "2h"}, "c": HOURLY}, app=app)
    put(app, "a", every="2h")
    jobs.remove("a", app=app)
    put(app, "c")
    assert [job.name for job in jobs.list(app=app)] == ["b", "c", "file"]


@pytest.mark.parametrize("wrong", [{"source": "files"}, {"source": "a b"}, {"by": "a\nb"}])
def test_a_source_is_a_name_and_never_files(app: Celery, wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        put(app, **wrong)
    assert jobs.list(app=app) == []


HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("a b", HOURLY, "'a b' is not a name for a job"),
    ("a@b/../{c}", HOURLY, "is not a name for a job"),
    ("x" * 101, HOURLY, "is not a name for a job"),
    ("a", {**HOURLY, "kwargs": {"a": "x" * 17_000}}, "16,384 are allowed"),
    ("a", {**HOURLY, "args": [float("nan")]}, "not JSON"),
    ("a", {**HOURLY, "args": ["\ud800"]}, "not JSON"),
    ("a", {**HOURLY, "kwargs": {"key": {1, 2}}}, "'kwargs': not JSON"),
    ("a", {**HOURLY, "kwargs": {"token": "${nope"}}, "is not a reference to a secret"),
    ("a", {**HOURLY, "__class__": 1}, "unknown key '__class__'"),
    ("a", {**HOURLY, "name": "b"}, "unknown key 'name'"),
]


@pytest.mark.parametrize(("name", "keys", "what"), HOSTILE, ids=lambda value: str(value)[:20])
def test_hostile_keys_are_refused_with_a_word(
    app: Celery, name: str, keys: dict[str, Any], what: str
) -> None:
    with pytest.raises(InvalidJob) as error:
        jobs.put_many({name: keys}, app=app)
    assert what in str(error.value)
    assert jobs.list(app=app) == []
