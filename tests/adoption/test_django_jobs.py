"""Jobs as rows of Django's admin: on SQLite and PostgreSQL, with a real Redis."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from supervisor.catalog.entries import Entries
from supervisor.catalog.reconcile import Reconciled, reconcile_changed
from supervisor.deploy.embedded import EmbeddedServer
from supervisor.ledger.actions import ActionQuery, Actor
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from supervisor.testing import empty
from tests.adoption.postgres import postgres
from tests.conftest import DATABASES, database, emptied
from tests.logged import capture_logs
from tests.ports import free_port
from tests.programs import needs
from tests.proxy import Proxy, proxy_to
from tests.tools.web.browser import chromium
from tests.waiting import scaled, wait_until

ROOT = Path(__file__).parents[2]
PROJECT = "tests.adoption.desk"

EVERY_DATABASE = pytest.mark.parametrize("alias", ["default", "postgres"], indirect=True)


@pytest.fixture(scope="module")
def link(server: EmbeddedServer) -> Iterator[Proxy]:
    """The project's way to Redis."""
    with proxy_to(database(server.url, DATABASES + 2)) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def django(link: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The project, set up in this process, with tables in both databases."""
    pytest.importorskip("psycopg")
    with postgres("desk") as socket:
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": f"{PROJECT}.settings",
            "DESK_SQLITE": str(tmp_path_factory.mktemp("desk") / "desk.sqlite3"),
            "DESK_POSTGRES": str(socket),
            "DESK_REDIS": link.url,
        }
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        for alias in ("default", "postgres"):
            with on(alias):
                call_command("migrate", database=alias, verbosity=0)
        yield
        connections.close_all()
        for name in ("DJANGO_SETTINGS_MODULE", "DESK_SQLITE", "DESK_POSTGRES", "DESK_REDIS"):
            del os.environ[name]


@contextmanager
def on(alias: str) -> Iterator[None]:
    """All queries go to this database."""
    from tests.adoption.desk import router

    before, router.current = router.current, alias
    try:
        yield
    finally:
        router.current = before


@pytest.fixture
def alias(django: None, request: pytest.FixtureRequest) -> Iterator[str]:
    """Empty tables in a database, by default SQLite."""
    name = getattr(request, "param", "default")
    with on(name):
        from django.contrib.auth.models import User
        from django_celery_beat.models import PeriodicTask

        from supervisor.features.django.models import Job

        yield name
        Job.objects.all()._raw_delete(Job.objects.db)  # without a signal
        User.objects.all().delete()
        PeriodicTask.objects.all().delete()


@pytest.fixture
def ledger(alias: str, link: Proxy, server: EmbeddedServer) -> Iterator[Ledger]:
    url = database(server.url, DATABASES + 2)
    emptied(url)
    opened = Ledger.open(Settings(redis_url=url))
    yield opened
    opened.client.close()


def job(name: str = "nightly", **values: Any) -> Any:
    from supervisor.features.django.models import Job

    return Job(name=name, **{"task": "desk.report", "cron": "0 3 * * *", **values})


def source_of(ledger: Ledger, name: str) -> str:
    return ledger.loaded([name]).origins[name].source


def beat_reconciles(ledger: Ledger) -> Reconciled:
    """What a child of the leading beat does twice a minute."""
    from supervisor.features.django.loading import Rows
    from supervisor.features.django.project import celery_app

    entries = Entries(celery_app(), ledger)
    return reconcile_changed(ledger, entries, Rows())


# What is loaded, and when.


@EVERY_DATABASE
def test_a_saved_row_is_loaded_after_the_commit(alias: str, ledger: Ledger) -> None:
    from django.db import transaction

    with transaction.atomic(using=alias):
        job(kwargs={"tenant": "ümlaut"}, more={"max_retries": 3}).save()
        assert ledger.scheduled() == {}
    spec = ledger.scheduled()["nightly"]
    assert (spec.task, spec.cron, spec.kwargs) == (
        "desk.report",
        "0 3 * * *",
        {"tenant": "ümlaut"},
    )
    assert spec.max_retries == 3
    assert source_of(ledger, "nightly") == "django"


@EVERY_DATABASE
def test_what_is_rolled_back_is_not_loaded(alias: str, ledger: Ledger) -> None:
    from django.db import transaction

    job("kept").save()
    with transaction.atomic(using=alias):
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias):
            job("lost").save()
            job("kept", cron="0 4 * * *").save()
            raise ZeroDivisionError
        job("other").save()
    assert ledger.scheduled().keys() == {"kept", "other"}
    assert ledger.scheduled()["kept"].cron == "0 3 * * *"


@EVERY_DATABASE
def test_rows_that_are_deleted_together_are_removed(alias: str, ledger: Ledger) -> None:
    from supervisor.features.django.models import Job

    for name in ("one", "two", "three"):
        job(name).save()
    Job.objects.exclude(name="two").delete()
    assert ledger.scheduled().keys() == {"two"}


@EVERY_DATABASE
def test_beat_loads_rows_that_gave_no_signal(alias: str, ledger: Ledger) -> None:
    from supervisor.features.django.models import Job

    Job.objects.bulk_create([job("one"), job("two")])
    assert ledger.scheduled() == {}
    beat_reconciles(ledger)
    Job.objects.filter(name="one").update(cron="0 5 * * *")
    assert ledger.scheduled()["one"].cron == "0 3 * * *"
    beat_reconciles(ledger)
    assert ledger.scheduled()["one"].cron == "0 5 * * *"
    changed = beat_reconciles(ledger).changes
    assert changed is None  # nothing was read


@EVERY_DATABASE
def test_jobs_come_back_when_redis_has_lost_its_data(alias: str, ledger: Ledger) -> None:
    job("one").save()
    job("two").save()
    empty(ledger)
    beat_reconciles(ledger)
    assert ledger.scheduled().keys() == {"one", "two"}


def test_an_edit_while_redis_is_unavailable_is_loaded_later(ledger: Ledger, link: Proxy) -> None:
    job("edited").save()
    job("deleted").save()
    link.freeze()
    try:
        with capture_logs() as logs:
            job("edited", cron="0 4 * * *").save()
    finally:
        link.thaw()
    assert [entry["event"] for entry in logs] == ["row not loaded"]
    assert ledger.scheduled()["edited"].cron == "0 3 * * *"
    beat_reconciles(ledger)
    assert ledger.scheduled()["edited"].cron == "0 4 * * *"


def test_a_database_that_is_unavailable_changes_nothing(ledger: Ledger) -> None:
    job().save()
    with on("nowhere"):
        outcome = beat_reconciles(ledger)
    assert "nowhere" in outcome.problems[0]
    assert ledger.scheduled().keys() == {"nightly"}


def test_a_row_that_no_longer_is_a_job_leaves_the_loaded_one(ledger: Ledger) -> None:
    from supervisor.features.django.models import Job

    job().save()
    Job.objects.update(cron="never")
    assert "'cron'" in beat_reconciles(ledger).problems[0]
    assert ledger.scheduled()["nightly"].cron == "0 3 * * *"


def test_most_jobs_are_removed_only_by_a_person(ledger: Ledger) -> None:
    from supervisor.features.django.models import Job

    for number in range(6):
        job(f"job-{number}").save()
    Job.objects.exclude(name="job-1")._raw_delete("default")
    assert "5 of the 6 jobs" in beat_reconciles(ledger).problems[0]
    refused = manage("sync")
    assert (refused.returncode, len(ledger.scheduled())) == (1, 6)
    done = manage("sync", "--yes", "--json", "--reason", "sold")
    assert (done.returncode, ledger.scheduled().keys()) == (0, {"job-1"}), done.stderr
    action = ledger.actions.search(ActionQuery(limit=1))[0].action
    assert (action.verb, action.target, action.reason) == ("sync", "django", "sold")
    assert len(action.jobs) == 5
    record = json.loads(done.stdout)
    assert (record["verb"], record["done"]) == ("sync", True)
    assert [result["state"] for result in record["results"]] == ["removed"] * 5


def test_an_edit_meanwhile_wins_over_what_beat_has_read(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from supervisor.features.django.loading import Rows

    job().save()
    read = Rows.read

    def read_and_be_late(self: Rows) -> Any:
        found = read(self)
        job(cron="0 4 * * *").save()
        return found

    from supervisor.features.django.models import Job

    Job.objects.update(cron="0 5 * * *")
    monkeypatch.setattr(Rows, "read", read_and_be_late)
    beat_reconciles(ledger)
    assert ledger.scheduled()["nightly"].cron == "0 4 * * *"


# The admin.


@pytest.fixture
def browse(alias: str, ledger: Ledger) -> Callable[..., Any]:
    """A client of a new user: `browse("trigger_job")` has these permissions, `browse()` all."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    def browse(*permissions: str) -> Client:
        name = permissions[0] if permissions else "ann"
        user = User.objects.create_user(name, is_staff=True, is_superuser=not permissions)
        found = Permission.objects.filter(codename__in=permissions)
        user.user_permissions.set(found)
        client = Client()
        client.force_login(user)
        return client

    return browse


JOBS = "/admin/supervisor/job/"

#: What a browser sends of an empty form.
EMPTY = {
    **dict.fromkeys(("name", "task", "cron", "every", "timezone"), ""),
    **dict.fromkeys(("args", "kwargs", "labels", "more"), ""),
    **dict.fromkeys(("overlap", "queue", "description"), ""),
}


def errors_in(answer: Any) -> dict[str, list[str]]:
    return dict(answer.context_data["adminform"].form.errors)


def text_of(answer: Any) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", answer.content.decode()))


@EVERY_DATABASE
def test_the_form_has_all_problems_at_their_fields(alias: str, browse: Any) -> None:
    wrong = {
        "name": "a b",
        "task": "desk.reprt",
        "cron": "0 3 * * moon",
        "kwargs": "[1]",
        "more": '{"tim_limit": "5m"}',
    }
    errors = errors_in(browse().post(f"{JOBS}add/", EMPTY | wrong))
    assert errors.keys() == wrong.keys()
    assert "did you mean 'desk.report'?" in errors["task"][0]
    assert "did you mean 'time_limit'?" in errors["more"][0]


@pytest.mark.parametrize(
    ("field", "text", "why"),
    [
        ("kwargs", '{"a": "\\u0000"}', "NUL"),
        ("kwargs", '{"a": "\\ud800"}', "half a character"),
        ("kwargs", '{"a": NaN}', "not JSON"),
        ("kwargs", '{"a": "%s"}' % ("x" * 17_000), "16,384 are allowed"),
        ("args", "[" * 100_000, "nested too deeply"),
        ("args", '{"a": 1}', "not a list"),
        ("more", "[1]", "not a mapping"),
        ("more", '{"task": "other"}', "a field of its own"),
        ("more", '{"exclude": [{"file": "/etc/passwd"}]}', "does not name holidays"),
        ("labels", '{"a": {"b": 1}}', "not text"),
        ("timezone", "Mars/Phobos", "unknown time zone"),
        ("every", "0s", "every"),
    ],
)
def test_hostile_values_are_refused_in_words(field: str, text: str, why: str, browse: Any) -> None:
    given = {"name": "hostile", "task": "desk.report", field: text}
    errors = errors_in(browse().post(f"{JOBS}add/", EMPTY | given))
    assert why in errors[field][0]
    assert errors.keys() == {field}


@EVERY_DATABASE
def test_the_form_saves_what_a_person_wrote(alias: str, browse: Any, ledger: Ledger) -> None:
    from supervisor.features.django.models import Job

    written = {"name": "nightly", "task": "desk.report", "cron": "0 3 * * *\r\n0 9 * * sat"}
    answer = browse().post(f"{JOBS}add/", EMPTY | written)
    assert answer.status_code == 302, errors_in(answer)
    row = Job.objects.get()
    assert (row.cron.split("\r\n"), row.args, row.kwargs, row.changed_by) == (
        ["0 3 * * *", "0 9 * * sat"],
        [],
        {},
        "ann",
    )
    assert ledger.loaded().origins["nightly"].place.endswith("by ann")


def test_a_name_of_another_source_is_refused_with_both_places(browse: Any) -> None:
    from supervisor import jobs
    from supervisor.features.django.project import celery_app

    jobs.put("taken", task="desk.report", every="5m", app=celery_app(), by="bob")
    given = {"name": "taken", "task": "desk.report", "every": "5m"}
    [error] = errors_in(browse().post(f"{JOBS}add/", EMPTY | given))["name"]
    assert "by bob" in error
    assert "a row of Django's" in error


def test_a_name_cannot_be_changed(browse: Any, ledger: Ledger) -> None:
    job().save()
    given = {"name": "other", "task": "desk.report", "every": "5m"}
    assert browse().post(f"{JOBS}nightly/change/", EMPTY | given).status_code == 302
    assert ledger.scheduled().keys() == {"nightly"}


@EVERY_DATABASE
def test_the_list_shows_ticks_and_runs(alias: str, browse: Any, ledger: Ledger) -> None:
    job("soon", cron="", every="1h", timezone="Europe/Berlin").save()
    job("wrong", cron="never").save()
    client = browse()
    client.post(JOBS, {"action": "trigger", "_selected_action": ["soon"]})
    text = text_of(client.get(JOBS))
    assert re.search(r"every 1h Europe/Berlin\s+\d{4}-\d\d-\d\d \d\d:00 CES?T\s+queued", text)
    assert re.search(r"has problems\s+-\s+-\s+not yet", text)


def test_the_list_takes_as_many_queries_whatever_its_length(
    browse: Any, django_queries: Callable[[Callable[[], Any]], int]
) -> None:
    client = browse()
    job("one").save()
    few = django_queries(lambda: client.get(JOBS))
    for number in range(20):
        job(f"job-{number}").save()
    assert django_queries(lambda: client.get(JOBS)) == few


@pytest.fixture
def django_queries(alias: str) -> Callable[[Callable[[], Any]], int]:
    from django.db import connections
    from django.test.utils import CaptureQueriesContext

    def count(act: Callable[[], Any]) -> int:
        with CaptureQueriesContext(connections[alias]) as queries:
            act()
        return len(queries)

    return count


def test_the_page_of_a_job_shows_its_next_five_ticks(browse: Any) -> None:
    job(timezone="Europe/Berlin").save()
    text = text_of(browse().get(f"{JOBS}nightly/change/"))
    assert len(re.findall(r"\d{4}-\d\d-\d\d 03:00 CES?T", text)) == 5
    assert "https://jobs.example.org/jobs/nightly" in text


@EVERY_DATABASE
def test_actions_do_what_they_say_and_stand_in_the_history(
    alias: str, browse: Any, ledger: Ledger
) -> None:
    from supervisor.features.django.models import Job

    job().save()
    client = browse()

    def act(action: str) -> None:
        client.post(JOBS, {"action": action, "_selected_action": ["nightly"]})

    act("trigger")
    [run] = ledger.history("nightly")
    act("cancel")
    assert ledger.run(run.id).state == "cancelled"
    act("pause")
    assert ledger.paused(["nightly"]) == {"nightly"}
    assert Job.objects.get().paused
    act("resume")
    assert ledger.paused(["nightly"]) == set()
    assert not Job.objects.get().paused
    history = text_of(client.get(f"{JOBS}nightly/history/"))
    for done in (f"Triggered as {run.id}", "Cancelled 1 run", "Paused", "Resumed"):
        assert done in history


#: What each action of the admin is entered as, in the record of actions.
ENTERED = {name: name for name in ("trigger", "cancel", "pause", "resume")} | {
    "delete_selected": "remove"
}


def test_what_the_admin_does_is_entered_in_its_users_name(browse: Any, ledger: Ledger) -> None:
    from django.contrib import admin

    from supervisor.features.django.management.commands.supervisor import OWN
    from supervisor.features.django.models import Job

    assert OWN.keys() == {"sync", "import"}  # an import saves rows, each of which is entered
    assert {*admin.site._registry[Job].actions, "delete_selected"} == ENTERED.keys()
    client = browse()
    written = {"name": "nightly", "task": "desk.report", "cron": "0 3 * * *"}
    client.post(f"{JOBS}add/", EMPTY | written)

    def newest() -> tuple[str, Actor]:
        [entry] = ledger.actions.search(ActionQuery(limit=1))
        return entry.action.verb, entry.action.by

    ann = Actor("ann", "django", "127.0.0.1")
    assert newest() == ("put", ann)
    for action, verb in ENTERED.items():
        given = {"action": action, "_selected_action": ["nightly"], "post": "yes"}
        client.post(JOBS, given)
        assert newest() == (verb, ann)
    job().save()
    assert newest()[1].origin == "django"


@pytest.mark.parametrize("action", ["trigger", "pause", "resume", "cancel", "delete_selected"])
def test_an_action_needs_its_permission(action: str, browse: Any, ledger: Ledger) -> None:
    job().save()
    client = browse("view_job")
    given = {"action": action, "_selected_action": ["nightly"], "post": "yes"}
    client.post(JOBS, given)
    assert ledger.history("nightly") == []
    assert ledger.paused(["nightly"]) == set()
    assert ledger.scheduled().keys() == {"nightly"}


def test_an_action_is_open_to_those_who_may(browse: Any, ledger: Ledger) -> None:
    job().save()
    client = browse("view_job", "trigger_job")
    client.post(JOBS, {"action": "trigger", "_selected_action": ["nightly"]})
    client.post(JOBS, {"action": "pause", "_selected_action": ["nightly"]})
    assert len(ledger.history("nightly")) == 1
    assert ledger.paused(["nightly"]) == set()


def test_the_admin_works_while_redis_is_unavailable(
    browse: Any, ledger: Ledger, link: Proxy
) -> None:
    client = browse()
    given = {"name": "nightly", "task": "desk.report", "every": "5m"}
    link.freeze()
    try:
        answer = client.post(f"{JOBS}add/", EMPTY | given, follow=True)
    finally:
        link.thaw()
    text = text_of(answer)
    assert "was added successfully" in text
    assert "Saved, and not loaded yet: nightly" in text
    assert "Nothing is known of the jobs' runs" in text
    done = manage("sync")
    assert (done.returncode, done.stdout) == (0, "added nightly\n"), done.stderr
    assert ledger.scheduled().keys() == {"nightly"}


# manage.py.


@pytest.mark.usefixtures("django")
def test_every_verb_of_its_own_answers_in_json() -> None:
    from supervisor.features.django.management.commands.supervisor import IMPORT, OWN

    verbs = {**OWN, **IMPORT.commands}
    verbs.pop("import")
    without = {
        name
        for name, verb in verbs.items()
        if not any("--json" in parameter.opts for parameter in verb.params)
    }
    assert without == set()


def answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=scaled(5)).is_success
    except httpx.TransportError:
        return False


@pytest.fixture
def admin(alias: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the admin, as Django serves it, with a user "ann"."""
    from django.contrib.auth.models import User

    # The browser's library runs a loop in this thread.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    User.objects.create_superuser("ann", password="of the tests")
    address = f"127.0.0.1:{free_port()}"
    words = ("-m", f"{PROJECT}.manage", "runserver", "--noreload", "--insecure", address)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, *words], cwd=ROOT, **quiet) as server:  # type: ignore[call-overload]
        try:
            wait_until(lambda: answers(f"http://{address}/admin/login/"), 30)
            yield f"http://{address}/admin/"
        finally:
            server.terminate()


@needs("chromium")
def test_a_person_makes_edits_and_runs_a_job_in_a_browser(admin: str, ledger: Ledger) -> None:
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{admin}supervisor/job/add/")
        page.get_by_label("Username").fill("ann")
        page.get_by_label("Password").fill("of the tests")
        page.get_by_role("button", name="Log in").click()
        page.locator("#id_name").fill("nightly")
        page.locator("#id_task").fill("desk.reprt")
        page.locator("#id_cron").fill("0 3 * * *")
        page.locator("[name=_save]").click()
        expect(page.locator(".errorlist").last).to_contain_text("did you mean 'desk.report'?")
        assert ledger.scheduled_names() == []
        page.locator("#id_task").fill("desk.report")
        page.locator("[name=_continue]").click()
        expect(page.locator(".messagelist")).to_contain_text("was added successfully")
        assert ledger.scheduled_names() == ["nightly"]
        page.locator("#id_cron").fill("")
        page.locator("#id_every").fill("90s")
        page.locator("[name=_save]").click()
        expect(page.locator("#result_list")).to_contain_text("nightly")
        assert ledger.spec("nightly").every == timedelta(seconds=90)
        page.locator(".action-select").check()
        page.locator("select[name=action]").select_option("trigger")
        page.get_by_role("button", name="Go").or_(page.locator("button[name=index]")).first.click()
        expect(page.locator(".messagelist")).to_be_visible()
    assert len(ledger.history("nightly")) == 1


def manage(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"{PROJECT}.manage", "supervisor", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_manage_has_the_verbs_of_the_command_line(ledger: Ledger) -> None:
    job().save()
    done = manage("jobs", f"--settings={PROJECT}.settings")
    assert done.returncode == 0, done.stderr
    assert "nightly" in done.stdout
    assert manage("why", "unknown").returncode == 3


def test_no_migration_is_missing(alias: str) -> None:
    from django.core.management import call_command

    call_command("makemigrations", "supervisor", check=True, dry_run=True, verbosity=0)


@EVERY_DATABASE
def test_rows_of_django_celery_beat_are_copied_once(alias: str, ledger: Ledger) -> None:
    from click.testing import CliRunner
    from django_celery_beat.models import IntervalSchedule, PeriodicTask, SolarSchedule

    from supervisor.features.django.management.commands.supervisor import rows
    from supervisor.features.django.models import Job

    every, _ = IntervalSchedule.objects.get_or_create(every=5, period="minutes")
    sun, _ = SolarSchedule.objects.get_or_create(event="sunset", latitude=1, longitude=2)
    fields = {"args": '["all"]', "queue": "mails", "description": "Mails."}
    PeriodicTask.objects.create(name="mail all", task="desk.report", interval=every, **fields)
    PeriodicTask.objects.create(name="evening", task="desk.report", solar=sun)
    for name in ("日报", "周报"):
        PeriodicTask.objects.create(name=name, task="desk.report", interval=every)
    planned = json.loads(CliRunner().invoke(rows, ["--dry-run", "--json"]).stdout)
    names = [result["name"] for result in planned["results"]]
    assert sorted(names) == ["job", "job-2", "mail-all"]
    assert "'evening': not translated" in planned["reports"][0]
    done = CliRunner().invoke(rows, [])
    assert "added mail-all" in done.output
    assert "'evening': not translated" in done.output
    row = Job.objects.get(name="mail-all")
    assert (row.every, row.args, row.queue, row.description) == ("5m", ["all"], "mails", "Mails.")
    assert row.more["entry"] == "mail all"
    assert ledger.scheduled().keys() == {*names}
    assert CliRunner().invoke(rows, []).output.count("the table has it already") == 3


# Beat itself.


@EVERY_DATABASE
def test_a_beat_loads_the_rows_and_emits_them(alias: str, ledger: Ledger, tmp_path: Path) -> None:
    from supervisor.features.django.models import Job

    Job.objects.bulk_create([job("often", cron="", every="1s")])
    command = [sys.executable, "-m", "celery", "-A", f"{PROJECT}.celery", "beat", "-l", "info"]
    with (tmp_path / "log").open("w") as log:
        schedule = ["--schedule", str(tmp_path / "beat")]
        environ = os.environ | {"DESK_DATABASE": alias}
        beat = subprocess.Popen(
            [*command, *schedule], cwd=ROOT, env=environ, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: ledger.knows("often") and ledger.history("often"), 40)
        wait_until(lambda: "source loaded" in (tmp_path / "log").read_text(), 20)
    finally:
        beat.terminate()
        beat.wait()
