"""Loading a set of jobs: what the ledger and RedBeat have then, also after two at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, KeysView
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from supervisor.beat import reload as reloading
from supervisor.beat import watching
from supervisor.beat.reload import Reloading
from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load, put_jobs
from supervisor.catalog.schedule_files import ScheduleSet
from supervisor.catalog.schedule_files import load as read_files
from supervisor.errors import Conflict
from supervisor.features.audit.step import audit
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import ActionQuery
from supervisor.ledger.admission import Placement
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.specs import job_spec
from supervisor.schedule import schedule_of
from supervisor.schedule.emission import emission
from supervisor.schedule.ticks import PausePeriod, Tick
from supervisor.times import ms_of, parse_duration
from tests.damage import dealt_with_until
from tests.waiting import scaled, wait_until

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def spec(name: str, **keys: Any) -> JobSpec:
    return JobSpec.model_validate({"name": name, "task": "t", "every": "5m", **keys})


def jobs(*specs: JobSpec) -> dict[str, JobSpec]:
    return {each.name: each for each in specs}


class Interrupted(dict[str, JobSpec]):
    """A set of jobs; another edit happens in the middle of its loading."""

    def __init__(self, specs: dict[str, JobSpec], act: Callable[[], object]) -> None:
        super().__init__(specs)
        self.act: Callable[[], object] | None = act

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        if act := self.act:
            self.act = None
            act()
        return super().keys()


def read_and_load(reloading: Reloading, loaded: str | None) -> None:
    """As beat's ticks do it, until what has changed is loaded or refused."""
    reloading._watching.mark_changed()
    reloading.reload(NOW, loaded)
    wait_until(lambda: (reloading.reload(NOW, loaded), not reloading.is_busy)[1])


def due(ledger: Ledger) -> dict[str, float]:
    """RedBeat's sorted set, without what is not a job's."""
    found = ledger.client.zrange("redbeat::schedule", 0, -1, withscores=True)
    return {key.removeprefix("redbeat:"): score for key, score in found}


def test_what_is_loaded_is_due_in_redbeat_and_known_to_the_ledger(
    ledger: Ledger, entries: Entries
) -> None:
    specs = jobs(spec("a"), spec("b", every="1h"))
    assert load(ledger, entries, specs, "one", NOW).added == ("a", "b")
    assert ledger.scheduled() == specs
    assert due(ledger) == {
        "a": (NOW + timedelta(minutes=5)).timestamp(),
        "b": (NOW + timedelta(hours=1)).timestamp(),
    }
    changes = load(ledger, entries, jobs(spec("b", every="2h")), "two", NOW)
    assert (changes.changed, changes.removed) == (("b",), ("a",))
    assert due(ledger) == {"b": (NOW + timedelta(hours=2)).timestamp()}


def test_each_job_is_read_without_being_remembered(ledger: Ledger, entries: Entries) -> None:
    names = {f"job-{number}" for number in range(1_200)}
    load(ledger, entries, jobs(*map(spec, names)), "digest", NOW)
    remembered = job_spec.cache_info()
    assert {found.name for found in ledger.each_spec()} == names
    assert job_spec.cache_info() == remembered


def test_two_that_load_at_once_leave_one_set_and_no_mixture(
    ledger: Ledger, entries: Entries
) -> None:
    load(ledger, entries, jobs(spec("a"), spec("b")), "before", NOW)
    theirs, ours = jobs(spec("c"), spec("b", every="1h")), jobs(spec("a"), spec("d"))
    changes = load(
        ledger,
        entries,
        Interrupted(ours, lambda: load(ledger, entries, theirs, "theirs", NOW)),
        "ours",
        NOW,
    )
    assert ledger.scheduled() == ours
    assert set(due(ledger)) == set(ours)
    assert ledger.client.hget(ledger.keys.beat, "config") == "ours"
    assert (changes.added, changes.removed) == (("a", "d"), ("b", "c"))


def test_a_plan_that_was_agreed_to_is_not_applied_to_something_else(
    ledger: Ledger, entries: Entries
) -> None:
    load(ledger, entries, jobs(spec("a")), "before", NOW)
    seen = ledger.scheduled()
    load(ledger, entries, jobs(spec("a", every="1h")), "theirs", NOW)
    with pytest.raises(Conflict, match="since this plan was made"):
        load(ledger, entries, jobs(spec("b")), "ours", NOW, planned_on=seen)
    assert ledger.scheduled() == jobs(spec("a", every="1h"))


def test_a_plan_is_refused_also_when_another_loads_in_the_same_moment(
    ledger: Ledger, entries: Entries
) -> None:
    theirs = jobs(spec("c"))
    ours = Interrupted(jobs(spec("a")), lambda: load(ledger, entries, theirs, "theirs", NOW))
    with pytest.raises(Conflict, match="since this plan was made"):
        load(ledger, entries, ours, "ours", NOW, planned_on={})
    assert ledger.scheduled() == theirs


def test_a_tick_admitted_while_an_edit_is_loaded_is_counted_once(
    ledger: Ledger, entries: Entries
) -> None:
    old, new = spec("a"), spec("a", every="1m")
    load(ledger, entries, jobs(old), "before", NOW)
    tick = Tick(old, NOW + timedelta(minutes=5))
    edited = Interrupted(jobs(new), lambda: ledger.admit([tick]))
    load(ledger, entries, edited, "after", NOW + timedelta(seconds=299))
    assert ledger.marks(["a"])["a"].watermark == tick.nominal_at
    assert audit(ledger, [new], NOW) == []
    [again] = ledger.admit([Tick(new, tick.nominal_at)])
    assert again.placement is Placement.DUPLICATE
    assert ledger.job("a").counters["ticks"] == 1
    assert audit(ledger, [new], NOW) == []


def test_an_edit_of_files_closes_the_accounts_of_the_old_times(
    ledger: Ledger, entries: Entries
) -> None:
    """What beat was about to emit is admitted; what is older is missed, and none is forgotten."""
    load(ledger, entries, jobs(spec("a")), "before", NOW)
    edited_at = NOW + timedelta(hours=1, seconds=3)
    load(ledger, entries, jobs(spec("a", every="7m")), "after", edited_at)
    newest, *_ = ledger.history("a")
    assert (newest.nominal_at, newest.state) == (NOW + timedelta(hours=1), RunState.QUEUED)
    assert ledger.job("a").counters["missed:edited"] == 11
    assert ledger.marks(["a"])["a"].watermark == edited_at


def test_a_watermark_beyond_the_servers_clock_is_not_kept_by_an_edit(
    ledger: Ledger, entries: Entries
) -> None:
    load(ledger, entries, jobs(spec("a")), "before", NOW)
    ledger.admit([Tick(ledger.spec("a"), ledger.now() + timedelta(days=1))])
    load(ledger, entries, jobs(spec("a", every="1m")), "after", NOW)
    assert ledger.marks(["a"])["a"].watermark == NOW


def test_ticks_of_a_pause_that_a_file_ended_stay_excluded(ledger: Ledger, entries: Entries) -> None:
    load(ledger, entries, jobs(spec("a")), "one", NOW - timedelta(hours=1))
    load(ledger, entries, jobs(spec("a", paused=True)), "two", NOW)
    awake = spec("a", catchup="all")
    load(ledger, entries, jobs(awake), "three", NOW + timedelta(hours=1))
    assert ledger.job("a").state == "idle"
    assert ledger.client.hget(ledger.keys.job("a"), "pause_to") == str(
        ms_of(NOW + timedelta(hours=1))
    )
    mark = ledger.marks(["a"])["a"]
    assert mark.pause == PausePeriod(NOW, NOW + timedelta(hours=1))
    beat_is_back = NOW + timedelta(hours=1, minutes=1)
    result = emission(awake, schedule_of(awake), NOW, beat_is_back, mark.pause)
    assert [(over.state, over.ticks) for over in result.passed] == [(RunState.EXCLUDED, 11)]
    [admission] = ledger.admit([Tick(awake, NOW + timedelta(minutes=30))])
    assert admission.placement is Placement.EXCLUDED


def test_a_file_that_pauses_a_paused_job_does_not_shorten_its_pause(
    ledger: Ledger, entries: Entries
) -> None:
    load(ledger, entries, jobs(spec("a")), "one", NOW)
    ledger.pause("a", "by hand", ledger.now() + timedelta(days=1))
    since = ledger.marks(["a"])["a"].pause
    load(ledger, entries, jobs(spec("a", paused=True)), "two", ledger.now())
    record, mark = ledger.job("a"), ledger.marks(["a"])["a"]
    assert (record.paused, record.paused_note, record.paused_until) == (True, None, None)
    assert since and mark.pause == PausePeriod(since.start, None)
    assert ledger.client.zcard(ledger.keys.pauses) == 0


def test_a_beat_that_loads_files_is_in_the_record(
    ledger: Ledger, entries: Entries, tmp_path: Path
) -> None:
    (tmp_path / "jobs.yaml").write_text("jobs: {a: {task: t, every: 5m}}")
    read_and_load(Reloading(tmp_path, ledger, entries), None)
    (tmp_path / "jobs.yaml").write_text("jobs: {a: {task: t, every: 9m}}")
    read_and_load(Reloading(tmp_path, ledger, entries), None)
    (tmp_path / "jobs.yaml").write_text("# the same\njobs: {a: {task: t, every: 9m}}")
    read_and_load(Reloading(tmp_path, ledger, entries), None)
    edited, added = (entry.action for entry in ledger.actions.search(ActionQuery()))
    assert (added.verb, added.target, added.jobs) == ("load", str(tmp_path), ("a",))
    assert [(change.key, change.text) for change in edited.changes] == [("every", "5m -> 9m")]
    assert {edited.by.name, edited.by.origin} == {"beat"}


class Unjudged(type(Path())):  # type: ignore[misc]
    """A directory that a fault, and not the system, keeps from being read."""

    def iterdir(self) -> Iterator[Path]:
        raise RuntimeError("a fault of ours")


def test_a_fault_in_judging_the_files_keeps_what_is_loaded_and_is_told(
    ledger: Ledger, entries: Entries, tmp_path: Path
) -> None:
    (tmp_path / "jobs.yaml").write_text("jobs: {nightly: {task: t, every: 5m}}")
    read_and_load(Reloading(tmp_path, ledger, entries), None)
    reloading = Reloading(Unjudged(tmp_path), ledger, entries)
    reloading.begin(NOW)
    read_and_load(reloading, "another")
    assert list(ledger.specs()) == ["nightly"]
    state = ledger.beat()
    assert state.last_reload_successful is False
    [problem] = state.problems
    assert problem == "the schedule files cannot be judged: RuntimeError('a fault of ours')"


def test_files_that_cannot_be_loaded_remove_nothing(
    ledger: Ledger, entries: Entries, tmp_path: Path
) -> None:
    load(ledger, entries, jobs(spec("a")), "one", NOW)
    (tmp_path / "jobs.yaml").write_text("jobs: {b: {task: t, evry: 5m}}")
    Reloading(tmp_path, ledger, entries).begin(NOW)
    assert list(ledger.specs()) == ["a"]


def test_a_beat_that_begins_to_lead_has_loaded_its_files_before_it_emits(
    ledger: Ledger, entries: Entries, tmp_path: Path
) -> None:
    before = jobs(spec("changed"), spec("gone"), spec("held"), spec("kept"))
    load(ledger, entries, before, "one", NOW - timedelta(hours=1))
    lines = ["held: {task: t, every: 5m, paused: true}", "changed: {task: t, every: 7m}"]
    lines += ["kept: {task: t, every: 5m}", "new: {task: t, every: 5m}"]
    (tmp_path / "jobs.yaml").write_text("\n  ".join(["jobs:", *lines]))
    reloading = Reloading(tmp_path, ledger, entries)
    reloading.begin(NOW)
    changed, held = spec("changed", every="7m"), spec("held", paused=True)
    assert ledger.specs() == jobs(changed, held, before["kept"], spec("new"))
    assert ledger.loaded_digest() == reloading.digest == read_files(tmp_path).digest
    assert reloading.has_read_files
    assert ledger.job("changed").counters["missed:edited"] > 10


@pytest.mark.parametrize("ends", [None, 30])
def test_ticks_of_a_pause_are_excluded_when_the_times_change_while_no_beat_runs(
    ledger: Ledger, entries: Entries, tmp_path: Path, ends: int | None
) -> None:
    """Beat was away for an hour; the job was paused all the time, or half of it."""
    away_at = NOW - timedelta(hours=1)
    load(ledger, entries, jobs(spec("a")), "one", away_at - timedelta(hours=1))
    load(ledger, entries, jobs(spec("a", paused=True)), "two", away_at - timedelta(minutes=3))
    dealt_with_until(ledger, ledger.spec("a"), away_at)
    if ends:
        load(
            ledger, entries, jobs(spec("a")), "three", away_at + timedelta(minutes=ends, seconds=1)
        )
    line = f"{{task: t, every: 7m, paused: {'false' if ends else 'true'}}}"
    (tmp_path / "jobs.yaml").write_text(f"jobs: {{a: {line}}}")
    Reloading(tmp_path, ledger, entries).begin(NOW)
    counters = ledger.job("a").counters
    excluded, missed = counters["excluded:paused"], counters.get("missed:edited", 0)
    assert (excluded, missed) == ((6, 5) if ends else (12, 0))
    assert ledger.spec("a").every == timedelta(minutes=7)


def test_ticks_are_caught_up_when_other_keys_than_the_times_change_while_no_beat_runs(
    ledger: Ledger, entries: Entries, tmp_path: Path
) -> None:
    away_at = NOW - timedelta(hours=1)
    load(ledger, entries, jobs(spec("a")), "one", away_at)
    line = "{task: t, every: 5m, catchup: all, args: [1]}"
    (tmp_path / "jobs.yaml").write_text(f"jobs: {{a: {line}}}")
    Reloading(tmp_path, ledger, entries).begin(NOW)
    edited, mark = ledger.spec("a"), ledger.marks(["a"])["a"]
    assert (edited.args, mark.watermark) == ((1,), away_at)
    assert "ticks" not in ledger.job("a").counters
    due_now = emission(edited, schedule_of(edited), mark.watermark or NOW, NOW, mark.pause)
    assert (len(due_now.ticks), due_now.passed) == (12, ())


def test_files_that_take_long_are_loaded_beside_the_turns_of_a_beat_that_begins_to_lead(
    ledger: Ledger, entries: Entries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "BEGIN_SECONDS", 0)
    written(tmp_path, "a")
    reloading_ = Reloading(tmp_path, ledger, entries)
    reloading_.begin(NOW)
    assert not reloading_.has_read_files
    wait_until(lambda: (reloading_.reload(NOW, None), reloading_.has_read_files)[1])
    assert list(ledger.specs()) == ["a"]


def test_an_edit_of_files_is_loaded_and_what_it_moved_is_found(
    ledger: Ledger, entries: Entries, tmp_path: Path
) -> None:
    (tmp_path / "others.yaml").write_text("jobs: {other: {task: t, every: 5m}}")
    written(tmp_path, "a", "b")
    reloading_ = Reloading(tmp_path, ledger, entries)
    reloading_.begin(NOW)
    read_and_load(reloading_, None)
    written(tmp_path, "b", "c", every="1h")
    read_and_load(reloading_, ledger.loaded_digest())
    assert ledger.scheduled() == jobs(spec("b", every="1h"), spec("c", every="1h"), spec("other"))
    assert ledger.loaded_digest() == read_files(tmp_path).digest == reloading_.digest
    assert due(ledger).keys() == {"b", "c", "other"}
    (tmp_path / "jobs.yaml").write_text("\n" + (tmp_path / "jobs.yaml").read_text())
    read_and_load(reloading_, ledger.loaded_digest())
    assert ledger.origins()["c"].place == f"{tmp_path}/jobs.yaml:4"


def test_files_that_go_on_changing_are_loaded_all_the_same(
    ledger: Ledger, entries: Entries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that is busy with them is not ended by each change."""
    monkeypatch.setattr(watching, "LONGEST_BURST_SECONDS", 0.0)
    written(tmp_path, *(f"job-{number}" for number in range(300)))
    reloading = Reloading(tmp_path, ledger, entries)
    reloading.reload(NOW, None)
    child = reloading._child
    os.utime(tmp_path / "jobs.yaml", ns=(0, 1))
    reloading.reload(NOW, None)
    assert child and reloading._child in (child, None)
    wait_until(lambda: (reloading.reload(NOW, ledger.loaded_digest()), not reloading.is_busy)[1])
    assert len(ledger.job_names()) == 300


def test_an_edit_of_a_thousand_jobs_takes_a_second_of_a_processor(
    ledger: Ledger, entries: Entries, tmp_path: Path
) -> None:
    """Of this process and its child; twice that and more where others slow the processors down."""
    names = [f"job-{number}" for number in range(1_000)]
    reloading_ = Reloading(tmp_path, ledger, entries)
    for every in ("5m", "1h"):
        written(tmp_path, *names, every=every)
        before = sum(os.times()[:4])
        read_and_load(reloading_, ledger.loaded_digest())
        assert sum(os.times()[:4]) - before < scaled(0.5)
        assert {each.every for each in ledger.specs().values()} == {parse_duration(every)}
        assert len(ledger.specs()) == len(names)


@pytest.mark.parametrize("is_edited", [True, False])
def test_no_turn_waits_for_a_child_that_hangs(
    ledger: Ledger,
    entries: Entries,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_edited: bool,
) -> None:
    monkeypatch.setattr(reloading, "LONGEST_READ_SECONDS", 300 if is_edited else 0.2)
    written(tmp_path, "a")
    (tmp_path / "more.yaml").write_text("jobs: {b: {task: t, every: 5m}}")

    def read_or_hang(path: Path, **keys: Any) -> ScheduleSet:
        while (path / "more.yaml").exists():
            time.sleep(0.1)
        return read_files(path, **keys)

    monkeypatch.setattr(reloading, "read_files", read_or_hang)
    reloading_ = Reloading(tmp_path, ledger, entries)
    longest = 0.0

    def turn() -> bool:
        nonlocal longest
        began = time.monotonic()
        reloading_.reload(NOW, ledger.loaded_digest())
        longest = max(longest, time.monotonic() - began)
        return bool(ledger.specs() or ledger.beat().problems)

    wait_until(lambda: (turn(), reloading_.is_busy)[1])
    if is_edited:
        (tmp_path / "more.yaml").unlink()
    wait_until(turn)
    assert longest < scaled(1)
    assert list(ledger.specs()) == (["a"] if is_edited else [])
    assert [("more than 0.2 seconds" in each) for each in ledger.beat().problems] == (
        [] if is_edited else [True]
    )
    reloading_.stop()


def test_all_files_are_compared_where_another_set_is_loaded(
    ledger: Ledger, entries: Entries, tmp_path: Path
) -> None:
    (tmp_path / "others.yaml").write_text("jobs: {other: {task: t, every: 5m}}")
    written(tmp_path, "a", "b")
    reloading_ = Reloading(tmp_path, ledger, entries)
    reloading_.begin(NOW)
    read_and_load(reloading_, None)
    load(ledger, entries, jobs(spec("a"), spec("other", every="9h")), "applied", NOW)
    written(tmp_path, "a", "b", "c")
    read_and_load(reloading_, "applied")
    assert ledger.scheduled() == read_files(tmp_path).specs


def test_many_changes_of_files_are_loaded_some_at_a_time(
    ledger: Ledger, entries: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.catalog.load.JOBS_PER_LOAD", 2)
    names = [f"job-{number}" for number in range(7)]
    places = {name: f"a.yaml:{number}" for number, name in enumerate(names)}
    changes = load(ledger, entries, jobs(*map(spec, names)), "one", NOW, places=places)
    assert (list(changes.added), ledger.loaded_digest()) == (names, "one")
    assert due(ledger).keys() == set(names)
    origins = ledger.origins()
    assert {name: origin.place for name, origin in origins.items()} == places
    assert len({origin.version for origin in origins.values()}) == 4
    left = {name: f"b.yaml:{number}" for number, name in enumerate(names[:6])}
    edited = jobs(*(spec(name, every="1h") for name in names[:3]), *map(spec, names[3:6]))
    load(ledger, entries, edited, "two", NOW, places=left)
    assert (ledger.scheduled(), ledger.loaded_digest()) == (edited, "two")
    assert {name: origin.place for name, origin in ledger.origins().items()} == left


def test_a_beat_computes_holidays_again_when_a_year_begins(
    ledger: Ledger, entries: Entries, tmp_path: Path
) -> None:
    job = "{task: t, cron: '0 3 * * *', exclude: [{holidays: DE-BY}]}"
    (tmp_path / "jobs.yaml").write_text(f"jobs: {{nightly: {job}}}")
    reloading = Reloading(tmp_path, ledger, entries)
    reloading.begin(NOW)
    read_and_load(reloading, None)
    assert ledger.spec("nightly").exclude[-1] == "holidays DE-BY until 2031"
    new_year = datetime(2027, 1, 1, tzinfo=UTC)

    def turn() -> bool:
        reloading.reload(new_year, ledger.loaded_digest())
        return "2032-01-06" in ledger.spec("nightly").exclude

    wait_until(turn)
    assert ledger.spec("nightly").exclude[-1] == "holidays DE-BY until 2032"


def test_a_beat_that_begins_to_lead_while_files_are_written_waits_for_them(
    ledger: Ledger, entries: Entries, tmp_path: Path
) -> None:
    load(ledger, entries, jobs(spec("kept"), spec("gone")), "one", NOW)
    reloading, has_begun = Reloading(tmp_path, ledger, entries), Event()

    def write() -> None:
        while not has_begun.is_set():
            unfinished = tmp_path / "jobs.new"
            unfinished.write_text("jobs: {kept: {task: t, every: 5m}}")
            unfinished.replace(tmp_path / "jobs.yaml")

    writer = Thread(target=write)
    writer.start()
    try:
        wait_until(lambda: (tmp_path / "jobs.yaml").exists())
        reloading.begin(NOW)
    finally:
        has_begun.set()
        writer.join()
    assert list(ledger.specs()) == ["kept"]


def written(directory: Path, *names: str, every: str = "5m") -> None:
    lines = [f"  {name}: {{task: t, every: {every}}}" for name in names]
    (directory / "jobs.yaml").write_text("\n".join(["jobs:" if names else "jobs: {}", *lines]))


def test_a_file_that_names_a_job_of_another_source_is_a_problem(
    ledger: Ledger, entries: Entries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "REFUSED_SECONDS", 0)
    put_jobs(ledger, entries, {"report": spec("report")}, "runtime", "put by ann")
    written(tmp_path, "report", "nightly")
    reloading_ = Reloading(tmp_path, ledger, entries)
    reloading_.begin(NOW)
    read_and_load(reloading_, None)
    [problem] = ledger.beat().problems
    assert f"{tmp_path}/jobs.yaml:2: job 'report': a job of this name is loaded" in problem
    assert "put by ann" in problem
    assert set(ledger.specs()) == {"report"}
    put_jobs(ledger, entries, {"report": None}, "runtime", "")
    read_and_load(reloading_, None)
    assert ledger.beat().problems == ()
    assert set(ledger.specs()) == {"report", "nightly"}


def test_files_that_remove_most_jobs_are_loaded_only_by_a_person(
    ledger: Ledger, entries: Entries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "REFUSED_SECONDS", 0)
    names = [f"job-{number}" for number in range(9)]
    written(tmp_path, *names)
    files = read_files(tmp_path)
    load(ledger, entries, files.specs, files.digest, NOW)
    put_jobs(ledger, entries, {"put": spec("put")}, "runtime", "put by ann")
    written(tmp_path, *names[:4])
    for loaded in (files.digest, None):  # by its first turn, or by a later one
        reloading_ = Reloading(tmp_path, ledger, entries)
        reloading_.begin(NOW)
        read_and_load(reloading_, loaded)
        [problem] = ledger.beat().problems
        assert "5 of the 9 jobs of schedule files would be removed" in problem
        assert set(ledger.specs()) == {*names, "put"}
    left = read_files(tmp_path)
    load(ledger, entries, left.specs, left.digest, NOW)

    def has_no_problem() -> bool:  # although no file changes
        reloading_.reload(NOW, left.digest)
        return not ledger.beat().problems

    wait_until(has_no_problem)
    assert set(ledger.specs()) == {*names[:4], "put"}


@pytest.mark.parametrize("is_first_turn", [True, False])
def test_a_directory_that_has_become_empty_removes_no_job(
    ledger: Ledger, entries: Entries, tmp_path: Path, is_first_turn: bool
) -> None:
    """Its mount may be gone; a file without jobs says that none are wanted."""
    written(tmp_path, "a", "b")
    reloading_ = Reloading(tmp_path, ledger, entries)
    reloading_.begin(NOW)
    read_and_load(reloading_, None)
    (tmp_path / "jobs.yaml").unlink()
    if is_first_turn:
        reloading_ = Reloading(tmp_path, ledger, entries)
        reloading_.begin(NOW)

    def is_reported() -> bool:
        reloading_.reload(NOW, ledger.loaded_digest())
        return bool(ledger.beat().problems)

    wait_until(is_reported)
    [problem] = ledger.beat().problems
    assert f"{tmp_path}: there are no schedule files, and the jobs of earlier ones (2)" in problem
    assert set(ledger.specs()) == {"a", "b"}
    written(tmp_path)

    def are_removed() -> bool:
        reloading_.reload(NOW, ledger.loaded_digest())
        return not ledger.specs() and not ledger.beat().problems

    wait_until(are_removed)


def test_a_job_that_only_moved_is_found_at_its_new_line(
    ledger: Ledger, entries: Entries, tmp_path: Path
) -> None:
    written(tmp_path, "a", "b")
    reloading_ = Reloading(tmp_path, ledger, entries)
    reloading_.begin(NOW)
    read_and_load(reloading_, None)
    before = ledger.origins()
    written(tmp_path, "b", "a")
    read_and_load(reloading_, ledger.loaded_digest())

    def is_found() -> bool:
        reloading_.reload(NOW, ledger.loaded_digest())
        return ledger.origins()["a"].place == f"{tmp_path}/jobs.yaml:3"

    wait_until(is_found)
    assert ledger.origins()["a"].version == before["a"].version
