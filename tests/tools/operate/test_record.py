"""The record of actions: every way to change something is in it, with who, why, and what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from celery import Celery
from redis.exceptions import RedisError

from supervisor import jobs as at_run_time
from supervisor.catalog.entries import Entries
from supervisor.cli import main
from supervisor.errors import Conflict, InvalidJob, JobConflict
from supervisor.features.notices import silences
from supervisor.job.policies import OverlapPolicy
from supervisor.job.run import RunState
from supervisor.job.spec import MOST_JOBS, JobSpec
from supervisor.ledger.actions import Action, ActionQuery, Actor, Entry, Outcome, system_user
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.loading import JobChange, LoadVerdict
from supervisor.ledger.run_request import RunRequest
from supervisor.operate import control
from tests.commands import Supervisor, as_json
from tests.damage import spoil
from tests.jobs import MIDNIGHT, begun, failed, job, job_has, ticks
from tests.presence import beat_says

APP = "tests.tools.cli.planned_app:app"

ANN = Actor("ann", "api", "10.0.0.7")


def entries(ledger: Ledger, **wanted: object) -> list[Entry]:
    return ledger.actions.search(ActionQuery(**wanted))  # type: ignore[arg-type]


def told(entry: Entry) -> list[tuple[str, str]]:
    return [(change.key, change.text) for change in entry.action.changes]


# Every verb of the command line reads, or is entered.


#: They change nothing in the ledger; some write files here, or run processes.
READING = {
    *("adopt", "check", "doctor", "export", "health", "import", "init", "jobs", "log"),
    *("next", "notify", "plan", "queues", "render", "runs", "schema", "serve", "show"),
    *("silences", "token", "up", "why"),
}

#: Takes the record away, with all other keys.
RELEASE = {"release"}

FILE = "jobs: {put: {task: planned.poll, every: 1h}}"

#: Of each verb that changes something: what it needs, and its words.
ACTING: dict[str, tuple[Callable[[Ledger], object], str]] = {
    "trigger": (lambda ledger: job(ledger), "nightly"),
    "retry": (lambda ledger: failed(ledger, job(ledger), 0), "--failed --job nightly"),
    "cancel": (lambda ledger: ledger.admit(ticks(job(ledger), 0)), "nightly@2026-03-01T00:00:00Z"),
    "pause": (lambda ledger: job(ledger), "nightly"),
    "resume": (lambda ledger: job(ledger), "nightly"),
    "backfill": (
        lambda ledger: job(ledger, every="1h"),
        "nightly --from 2026-03-01 --to 2026-03-02",
    ),
    "audit": (
        lambda ledger: job_has(ledger, job(ledger).name, **{"n:unaccounted": 3}),
        "nightly --acknowledge",
    ),
    "drain": (lambda _: None, "reports --force"),
    "undrain": (lambda ledger: ledger.drains.drain("reports"), "reports"),
    "silence": (lambda ledger: job(ledger), "nightly --for 2h"),
    "unsilence": (
        lambda ledger: silences.silence(
            ledger, label="tenant", duration=timedelta(hours=1), by=ANN, reason="r"
        ),
        "tenant",
    ),
    "put": (lambda _: Path("jobs.yaml").write_text(FILE), "jobs.yaml"),
    "apply": (lambda _: Path("jobs.yaml").write_text(FILE), "jobs.yaml --yes"),
    "remove": (lambda _: None, "put"),
}

#: What is entered as something else than the verb.
ENTERED_AS = {"audit": "acknowledge"}


def test_each_verb_reads_or_is_known_to_act() -> None:
    verbs = set(main.list_commands(click.Context(main)))
    assert verbs == READING | RELEASE | ACTING.keys()


@pytest.mark.parametrize("verb", ACTING)
def test_a_verb_is_entered_with_its_reason(
    verb: str,
    supervisor: Supervisor,
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUPERVISOR_ACTOR", "ann")
    prepare, words = ACTING[verb]
    if verb == "remove":
        Path("jobs.yaml").write_text(FILE)
        supervisor("put", "jobs.yaml", app=APP)
    prepare(ledger)
    done = supervisor(verb, *words.split(), "--reason", "stocktaking", app=APP)
    assert done.exit_code == (1 if verb == "audit" else 0), done.output
    entry = entries(ledger)[0]
    assert (entry.action.verb, entry.outcome) == (ENTERED_AS.get(verb, verb), Outcome.DONE)
    assert entry.action.reason == "stocktaking"
    assert (entry.action.by.name, entry.action.by.via) == ("ann", system_user())
    assert entry.action.by.origin == "cli"


def test_what_only_shows_is_not_entered(
    supervisor: Supervisor, ledger: Ledger, tmp_path: Path
) -> None:
    (tmp_path / "jobs.yaml").write_text(FILE)
    job(ledger, every="1h")
    supervisor("put", str(tmp_path / "jobs.yaml"), "--dry-run", app=APP)
    supervisor("backfill", "nightly", "--from", "2h", "--to", "1h", "--dry-run")
    assert entries(ledger) == []


# So does every function of supervisor.jobs.


HOURLY = {"task": "planned.poll", "every": "1h"}

CALLS: dict[str, Callable[[Celery], object]] = {
    "put": lambda app: at_run_time.put("new", app=app, by="bob", reason="r", **HOURLY),
    "put_many": lambda app: at_run_time.put_many({"new": HOURLY}, app=app, by="bob", reason="r"),
    "remove": lambda app: at_run_time.remove("there", app=app, by="bob", reason="r"),
    "pause": lambda app: at_run_time.pause("there", app=app, by="bob", reason="r"),
    "resume": lambda app: at_run_time.resume("there", app=app, by="bob", reason="r"),
    "trigger": lambda app: at_run_time.trigger("there", app=app, by="bob", reason="r"),
}


def test_each_function_of_jobs_reads_or_is_known_to_act() -> None:
    assert set(at_run_time.__all__) == {"Job", "get", "list", "next_ticks"} | CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_a_function_of_jobs_is_entered(name: str, app: Celery, ledger: Ledger) -> None:
    at_run_time.put("there", app=app, **HOURLY)
    CALLS[name](app)
    entry = entries(ledger)[0]
    assert entry.action.verb == name.removesuffix("_many")
    by = entry.action.by
    assert (by.name, by.origin, by.via) == ("bob", "python", system_user())
    assert entry.action.reason == "r"


# What an entry says.


def test_an_edit_says_what_changed_and_no_secret(app: Celery, ledger: Ledger) -> None:
    secret = {"kwargs": {"password": "hunter2", "n": 1}, "mask": ["password"]}
    at_run_time.put("there", app=app, **HOURLY, **secret)
    secret["kwargs"] = {"password": "hunter3", "n": 2}
    at_run_time.put("there", app=app, **{**HOURLY, "every": "2h"}, **secret)
    at_run_time.remove("there", app=app)
    removed, edited, added = entries(ledger)
    assert told(added) == [("added", "planned.poll, every 1h UTC")]
    words = dict(told(edited))
    assert words["every"] == "1h -> 2h"
    assert words["kwargs"] == '{"password": "***", "n": 1} -> {"password": "***", "n": 2}'
    assert told(removed) == [("removed", "planned.poll, every 2h UTC")]
    assert "hunter" not in str(ledger.client.xrange(ledger.keys.actions))


def test_the_same_job_again_is_no_action(app: Celery, ledger: Ledger) -> None:
    at_run_time.put("there", app=app, **HOURLY)
    at_run_time.put("there", app=app, **HOURLY)
    assert len(entries(ledger)) == 1


def test_what_was_refused_is_entered_as_that(app: Celery, ledger: Ledger) -> None:
    at_run_time.put("there", app=app, **HOURLY)
    with pytest.raises(JobConflict):
        at_run_time.put("there", if_version=7, app=app, by="bob", **{**HOURLY, "every": "2h"})
    with pytest.raises(InvalidJob):
        at_run_time.put("there", app=app, task="t", cron="hunter2", every="x")
    invalid, conflict, _ = entries(ledger)
    assert (invalid.outcome, conflict.outcome) == (Outcome.REFUSED, Outcome.REFUSED)
    assert "version" in conflict.error
    assert "hunter2" not in invalid.error


def test_a_run_that_has_ended_is_refused_once(ledger: Ledger) -> None:
    spec = begun(ledger)
    [run] = ledger.history(spec.name)
    ledger.finish(run.id, "token", RunState.SUCCEEDED)
    with pytest.raises(Conflict, match="has ended"):
        control.cancel(ledger, run.id, by=ANN, reason="too late")
    [entry] = entries(ledger)
    assert (entry.action.verb, entry.outcome) == ("cancel", Outcome.REFUSED)
    assert entry.action.target == run.id


def test_an_action_and_its_entry_are_one_function(ledger: Ledger) -> None:
    """Which has one time for all that it does."""
    run = control.trigger(ledger, job(ledger).name, RunRequest(), by=ANN)
    [entry] = entries(ledger)
    assert ("run", run.id) in told(entry)
    assert (entry.result, entry.at) == ("start", run.queued_at)


def test_a_backfill_of_many_calls_is_entered_once(ledger: Ledger) -> None:
    spec = job(ledger, every="1h")
    times = [MIDNIGHT + timedelta(hours=hour) for hour in range(120)]
    control.backfill_ticks(ledger, spec, times, OverlapPolicy.QUEUE_ALL, by=ANN)
    [entry] = entries(ledger)
    span = "120 from 2026-03-01T00:00:00Z to 2026-03-05T23:00:00Z"
    assert told(entry) == [("ticks", span), ("overlap", "queue_all")]
    assert len(ledger.history(spec.name, 200)) == 120


def test_a_load_that_changes_nothing_is_no_action(app: Celery, ledger: Ledger) -> None:
    keys = Entries(app, ledger).keys
    spec, action = JobSpec(name="a", task="t", every="1h"), Action(ANN, "put", "a", "", ("a",))
    change = JobChange("a", spec, version=0, definition="{}", has_new_times=True)

    def load(change: JobChange, source: str = "runtime", **more: Any) -> LoadVerdict:
        return ledger.load([change], keys, source, action=action, **more).verdict

    assert load(change) is LoadVerdict.LOADED
    assert load(change) is LoadVerdict.CHANGED
    assert load(change, "files") is LoadVerdict.ELSEWHERE
    assert load(change, links="1") is LoadVerdict.OUTDATED
    assert load(replace(change, version=None, due_at=MIDNIGHT)) is LoadVerdict.DUE
    beat_says(ledger, at_run_time=MOST_JOBS)
    assert load(replace(change, job="b")) is LoadVerdict.FULL
    assert len(entries(ledger)) == 1


def test_a_run_that_is_known_or_cannot_be_placed_is_no_action(ledger: Ledger) -> None:
    spec, action = job(ledger), Action(ANN, "trigger", "nightly")
    for _ in range(2):
        ledger.admit_requests(spec, [RunRequest(run_id="nightly@1")], action)
    spoil(ledger, ledger.keys.run("nightly@2"))
    with pytest.raises(RedisError):
        ledger.admit_requests(spec, [RunRequest(run_id="nightly@2")], action)
    assert len(entries(ledger)) == 1


def test_what_has_no_answer_has_no_result(ledger: Ledger) -> None:
    ledger.actions.enter(Action(ANN, "login", "page"))
    ledger.drains.undrain("reports", Action(ANN, "undrain", "reports"))
    assert [entry.result for entry in entries(ledger)] == ["", ""]


# Bounds, and texts that mean harm.


def test_the_record_is_bounded_in_entries_and_in_size(ledger: Ledger) -> None:
    spec = job(ledger)
    long = Actor("x" * 9_000, "api", "y" * 9_000)
    control.pause(ledger, spec.name, by=long, reason="z" * 9_000)
    [(_, fields)] = ledger.client.xrange(ledger.keys.actions)
    assert len(fields["entry"]) < 2_000
    with ledger.client.pipeline() as pipe:
        for _ in range(11_000):
            pipe.xadd(ledger.keys.actions, fields)
        pipe.execute()
    control.resume(ledger, spec.name, by=ANN)
    assert 10_000 <= ledger.client.xlen(ledger.keys.actions) <= 10_200


HOSTILE = "\x1b[2J\x07\u202eevil\nsecond line\ud800"


def test_hostile_text_moves_no_cursor_and_breaks_no_json(
    supervisor: Supervisor, ledger: Ledger
) -> None:
    spec = job(ledger)
    hostile = Actor(HOSTILE, "api", HOSTILE)
    control.pause(ledger, spec.name, by=hostile, reason=HOSTILE)
    shown = supervisor("log").stdout
    assert len(shown.splitlines()) == 2
    assert not set(shown) & set("\x1b\x07\u202e")
    [result] = as_json(supervisor("log", "--json"))
    assert result["reason"].startswith("\x1b[2J")


# Reading.


def test_log_filters_by_job_name_verb_and_time(supervisor: Supervisor, ledger: Ledger) -> None:
    for name in ("report-a", "report-b", "other"):
        job(ledger, name)
        control.pause(ledger, name, by=ANN, reason="why not")
    control.resume(ledger, "other", by=Actor("bob", "page"))

    def found(*words: str) -> list[str]:
        shapes = as_json(supervisor("log", "--json", *words))
        return [f"{shape['verb']} {shape['target']}" for shape in shapes]

    assert found("--job", "report-*") == ["pause report-b", "pause report-a"]
    assert found("--by", "bob") == ["resume other"]
    assert found("--verb", "pause", "-n", "1") == ["pause other"]
    assert found("--since", "1h", "--job", "other") == ["resume other", "pause other"]
    assert found("--since", "2099-01-01") == []
    assert "paused since 20" in supervisor("log", "--by", "bob").stdout


def test_pages_of_the_record_go_on_where_the_last_ended(ledger: Ledger) -> None:
    spec = job(ledger)
    for number in range(5):
        control.pause(ledger, spec.name, by=ANN, reason=f"{number}")
    first = entries(ledger, limit=2)
    rest = entries(ledger, before=first[-1].id)
    assert [entry.action.reason for entry in (*first, *rest)] == ["4", "3", "2", "1", "0"]
    assert ledger.actions.after(rest[0].id)[0] == first[1]


def test_why_says_who_removed_a_job(supervisor: Supervisor, app: Celery, ledger: Ledger) -> None:
    at_run_time.put("there", app=app, **HOURLY)
    at_run_time.remove("there", app=app, by="ann", reason="no longer sold")
    result = supervisor("why", "there")
    assert result.exit_code == 3
    assert "there was removed at 20" in result.stderr
    assert "by ann via" in result.stderr
    assert result.stderr.rstrip().endswith("no longer sold")
