from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from supervisor.catalog.job_checks import KEYS, NOT_IN_DEFAULTS
from supervisor.cli import main
from supervisor.job.spec import JobSpec

GOOD = "jobs:\n  a: {task: mail.poll, every: 1m}\n  b: {task: mail.poll, every: 1m}\n"
BAD = """\
jobs:
  a:
    task: mail.poll
    every: soon
  b: {task: mail.pol, every: 1m, overlp: skip}
"""
APP = """\
from celery import Celery

app = Celery("proj", include=["mailing_of_the_check_test"])
"""
TASKS = """\
from app_of_the_check_test import app

@app.task(name="mail.poll", shared=False)
def poll():
    pass
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project as the current directory, with a Celery app that includes its tasks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module, text in (("app_of_the_check_test", APP), ("mailing_of_the_check_test", TASKS)):
        monkeypatch.delitem(sys.modules, module, raising=False)
        (tmp_path / f"{module}.py").write_text(text)
    (tmp_path / "schedules").mkdir()
    return tmp_path


def supervisor(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def test_files_without_problems_are_counted_and_none_is_fine(here: Path) -> None:
    assert supervisor("check").stdout == "schedules: 0 jobs in 0 files, no problems\n"
    (here / "schedules" / "jobs.yaml").write_text(GOOD)
    result = supervisor("check")
    assert (result.exit_code, result.stdout) == (0, "schedules: 2 jobs in 1 file, no problems\n")


def test_every_problem_is_a_line_with_its_place(here: Path) -> None:
    (here / "schedules" / "jobs.yaml").write_text(BAD)
    result = supervisor("check")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "schedules/jobs.yaml:4: job 'a': "
        "'every': 'soon' is not a duration such as 90s, 5m or 1h30m",
        "schedules/jobs.yaml:5: job 'b': unknown key 'overlp' (did you mean 'overlap'?)",
    ]
    assert result.stderr == ""


def test_a_path_that_is_not_there_is_a_problem() -> None:
    result = supervisor("check", "absent")
    assert result.exit_code == 1
    assert result.stdout == (
        "absent:1: cannot be read: No such file or directory "
        "(`supervisor init` writes a first schedule file)\n"
    )


def test_with_an_app_its_included_tasks_are_the_known_ones(here: Path) -> None:
    misspelt = GOOD.replace("task: mail.poll", "\n    task: mail.pol", 1)
    (here / "schedules" / "jobs.yaml").write_text(misspelt)
    assert supervisor("check").exit_code == 0
    result = supervisor("-A", "app_of_the_check_test", "check")
    assert result.exit_code == 1, result.output
    assert result.stdout == (
        "schedules/jobs.yaml:3: job 'a': unknown task 'mail.pol' (did you mean 'mail.poll'?)\n"
    )


ARGUMENTS = """\
from celery import Task
from app_of_the_check_test import app

class Tenant(Task):
    def apply_async(self, args=None, kwargs=None, **options):
        return super().apply_async(args, {"tenant": "acme", **(kwargs or {})}, **options)

@app.task(name="stock.count", shared=False)
def count_stock(hall, seconds=3): ...

@app.task(name="stock.nothing", shared=False)
def nothing(): ...

@app.task(name="stock.bound", shared=False, bind=True)
def bound(self, hall): ...

@app.task(name="stock.untyped", shared=False, typing=False)
def untyped(hall): ...

@app.task(name="stock.open", shared=False)
def open_(*halls, **more): ...

@app.task(name="stock.tenant", shared=False, base=Tenant)
def of_tenant(tenant): ...
"""


def test_a_chain_is_no_task_of_a_job(here: Path) -> None:
    (here / "schedules" / "jobs.yaml").write_text("jobs: {a: {task: celery.chain}}")
    result = supervisor("-A", "app_of_the_check_test", "check")
    assert (result.exit_code, "celery.chain is no task of a worker" in result.stdout) == (1, True)


def test_a_task_that_may_send_nothing_is_warned_of(here: Path) -> None:
    (here / "mailing_of_the_check_test.py").write_text(ARGUMENTS)
    jobs = "a: {task: stock.tenant}, b: {task: stock.nothing}"
    (here / "schedules" / "jobs.yaml").write_text(f"jobs: {{{jobs}}}")
    result = supervisor("-A", "app_of_the_check_test", "check")
    [warning] = result.stderr.splitlines()
    assert (
        result.exit_code,
        "task stock.tenant: mailing_of_the_check_test.Tenant has" in warning,
    ) == (0, True)


GUARDS = """\
from app_of_the_check_test import app

@app.task(name="stock.count", shared=False, guard={"overlp": "skip", "key": "{hall}"})
def count(hall): ...

@app.task(name="stock.move", shared=False, guard={"key": "{hal}"})
def move(hall): ...

@app.task(name="stock move", shared=False, guard=True)
def unnamed(hall): ...

@app.task(name="stock.fine", shared=False, guard={"key": "{hall}"})
def fine(hall): ...
"""


def test_an_invalid_guard_is_a_problem_where_its_task_is_defined(here: Path) -> None:
    (here / "mailing_of_the_check_test.py").write_text(GUARDS)
    result = supervisor("-A", "app_of_the_check_test", "check")
    assert result.exit_code == 1
    assert sorted(line.partition(": ")[::2] for line in result.stdout.splitlines()) == [
        (f"mailing_of_the_check_test.py:{line}", f"the guard of task {what}")
        for line, what in (
            (3, "'stock.count': unknown key 'overlp' (did you mean 'overlap'?)"),
            (6, "'stock.move': 'key': no argument 'hal' (did you mean 'hall'?)"),
            (
                9,
                "'stock move': 'stock move' is not a name for a job (letters, digits and _ . - only"
                ", at most 100, a letter or digit first)",
            ),
        )
    ]
    (here / "schedules" / "jobs.yaml").write_text(BAD)
    problems = json.loads(supervisor("-A", "app_of_the_check_test", "check", "--json").stdout)
    assert {problem["file"].rpartition("/")[2] for problem in problems} == {
        "mailing_of_the_check_test.py",
        "jobs.yaml",
    }


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "prefork"])
def test_a_limit_that_workers_of_the_apps_pool_refuse_is_warned_of(here: Path, pool: str) -> None:
    text = ARGUMENTS + f"\napp.conf.worker_pool = {pool!r}\n"
    (here / "mailing_of_the_check_test.py").write_text(text)
    step = "{task: stock.nothing, priority: 1, soft_time_limit: 1m}"
    jobs = f"a: {{task: stock.nothing, soft_time_limit: 1m}}, b: {{steps: [{step}]}}"
    (here / "schedules" / "jobs.yaml").write_text(f"jobs: {{{jobs}, c: {{task: stock.nothing}}}}")
    result = supervisor("-A", "app_of_the_check_test", "check")
    needed = f"worker_pool is {pool}, which lacks what it needs: soft_time_limit"
    named = [] if pool == "prefork" else ["a", "b"]
    assert result.exit_code == 0
    assert [line.split("'")[1] for line in result.stderr.splitlines() if needed in line] == named


def checked(here: Path, jobs: str) -> list[str]:
    """The problems, without the place of the file."""
    (here / "mailing_of_the_check_test.py").write_text(ARGUMENTS)
    (here / "schedules" / "jobs.yaml").write_text(f"jobs:\n{jobs}")
    result = supervisor("-A", "app_of_the_check_test", "check")
    lines = result.stdout.splitlines()
    assert (result.exit_code, lines[0].endswith("no problems")) in [(0, True), (1, False)]
    return [] if result.exit_code == 0 else [line.partition(".yaml:")[2] for line in lines]


def test_a_call_that_its_task_refuses_is_a_problem(here: Path) -> None:
    wrong = """\
  a:
    task: stock.count
    every: 1m
    kwargs: {hall: north, second: 3}
  b: {task: stock.count, every: 1m}
  c: {task: stock.count, every: 1m, args: [north, 3, 4]}
  d: {task: stock.count, every: 1m, args: [north], kwargs: {hall: south}}
  e: {task: stock.bound, every: 1m, kwargs: {hall: north, self: 1}}
  f: {task: stock.count, after: [a]}
"""
    assert [line.partition(" (its arguments: ")[0] for line in checked(here, wrong)] == [
        f"{place}: the task cannot be called like this: {why}"
        for place, why in [
            ("5: job 'a'", "got an unexpected keyword argument 'second'"),
            ("6: job 'b'", "missing a required argument: 'hall'"),
            ("7: job 'c'", "too many positional arguments"),
            ("8: job 'd'", "multiple values for argument 'hall'"),
            ("9: job 'e'", "got an unexpected keyword argument 'self'"),
            ("10: job 'f'", "missing a required argument: 'hall'"),
        ]
    ]


def test_a_call_of_a_step_is_a_problem_where_no_param_helps(here: Path) -> None:
    steps = """\
  a:
    every: 1m
    params: {halls: [1]}
    steps:
      - {task: stock.count, name: one, priority: 3}
      - {task: stock.count, name: two, priority: 2, foreach: halls}
      - {task: stock.count, name: three, priority: 2, foreach: halls, kwargs: {second: 3}}
      - {task: stock.nothing, priority: 1, foreach: halls}
"""
    called = "the task cannot be called like this"
    assert [line.partition(" (its arguments: ")[0] for line in checked(here, steps)] == [
        f"8: job 'a': step 3: {called}: got an unexpected keyword argument 'second'",
        f"9: job 'a': step 4: {called}: too many positional arguments",
    ]


def test_arguments_of_which_only_a_call_can_say_are_no_problems(here: Path) -> None:
    right = """\
  a: {task: stock.count, every: 1m, kwargs: {hall: "${HALL}"}}
  b: {task: stock.bound, every: 1m, args: [north]}
  c: {task: stock.untyped, every: 1m, kwargs: {second: 3}}
  d: {task: stock.open, every: 1m, args: [1, 2], kwargs: {second: 3}}
  e: {task: stock.tenant, every: 1m}
  on-request: {task: stock.count}
  paused: {task: stock.count, every: 1m, paused: true}
"""
    assert checked(here, right) == []


def test_a_job_without_readable_arguments_is_not_said_to_lack_some(here: Path) -> None:
    assert len(checked(here, "  a: {task: stock.count, every: 1m, kwargs: [north]}\n")) == 1


def test_json_is_a_list_of_problems(here: Path) -> None:
    (here / "schedules" / "jobs.yaml").write_text(BAD)
    result = supervisor("check", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)[1] == {
        "file": "schedules/jobs.yaml",
        "line": 5,
        "job": "b",
        "what": "unknown key 'overlp'",
        "hint": "did you mean 'overlap'?",
    }
    (here / "schedules" / "jobs.yaml").write_text(GOOD)
    assert json.loads(supervisor("check", "--json").stdout) == []


def test_the_schema_describes_every_key_as_the_code_does() -> None:
    schema = json.loads(supervisor("schema").stdout)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    job, defaults = schema["$defs"]["Job"], schema["$defs"]["Defaults"]
    assert set(job["properties"]) == set(KEYS)
    assert set(defaults["properties"]) == set(KEYS) - set(NOT_IN_DEFAULTS)
    assert job["allOf"][0] == {"oneOf": [{"required": ["task"]}, {"required": ["steps"]}]}
    assert not job["additionalProperties"]
    assert not schema["additionalProperties"]
    for key in KEYS:
        assert job["properties"][key]["description"] == JobSpec.model_fields[key].description


def test_the_defaults_in_the_schema_are_what_one_would_write() -> None:
    properties = json.loads(supervisor("schema").stdout)["$defs"]["Job"]["properties"]
    stated = {key: value["default"] for key, value in properties.items() if "default" in value}
    fields = JobSpec.model_fields
    assert set(stated) == {
        key for key in KEYS if not fields[key].is_required() and fields[key].default is not None
    }
    assert stated["lease_ttl"] == "30s"
    written = JobSpec.model_validate({"name": "j", "task": "t", "every": 60, **stated})
    assert written == JobSpec.model_validate({"name": "j", "task": "t", "every": 60})


def test_the_schema_points_at_nothing_that_it_does_not_hold() -> None:
    text = supervisor("schema").stdout
    pointed_at = set(re.findall(r'"#/\$defs/(\w+)"', text))
    assert pointed_at == set(json.loads(text)["$defs"])


JOBS: list[tuple[dict[str, Any], bool]] = [
    ({"task": "t"}, True),
    ({"task": "t", "run_at_start": True, "priority": 0}, True),
    ({"task": "t", "every": 60, "exclude": [{"holidays": "DE-BY"}, "SAT"]}, True),
    ({"task": "t", "cron": ["0 9 * * 1-5", "0 12 * * 6"]}, True),
    ({"task": "t", "cron": []}, False),
    ({"task": "t", "cron": "@daily", "every": 60}, False),
    ({"task": "t", "priority": 10}, False),
    ({"task": "t", "run_at_start": "yes"}, False),
    ({"task": "t", "every": 60, "exclude": [{"holidays": 5}]}, False),
]


@pytest.mark.parametrize(("job", "is_right"), JOBS, ids=str)
def test_an_editor_that_knows_the_schema_judges_a_job_as_check_does(
    job: dict[str, Any], is_right: bool, tmp_path: Path
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    found = {"jobs": {"a": job}}
    judge = jsonschema.Draft202012Validator(json.loads(supervisor("schema").stdout))
    (tmp_path / "jobs.yaml").write_text(json.dumps(found))
    checked = supervisor("check", str(tmp_path))
    assert (judge.is_valid(found), checked.exit_code == 0) == (is_right, is_right)
