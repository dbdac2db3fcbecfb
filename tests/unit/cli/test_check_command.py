from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from supervisor.app import completed
from supervisor.cli import main
from supervisor.files.job_checks import KEYS, NOT_IN_DEFAULTS
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


def test_files_without_problems_are_counted(here: Path) -> None:
    (here / "schedules" / "jobs.yaml").write_text(GOOD)
    result = supervisor("check")
    assert (result.exit_code, result.stdout) == (0, "schedules: 2 jobs in 1 file, no problems\n")


def test_an_empty_directory_is_fine() -> None:
    assert supervisor("check").stdout == "schedules: 0 jobs in 0 files, no problems\n"


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


def test_one_file_can_be_checked_alone(here: Path) -> None:
    (here / "one.yaml").write_text(GOOD)
    assert supervisor("check", "one.yaml").stdout == "one.yaml: 2 jobs in 1 file, no problems\n"


def test_a_path_that_is_not_there_is_a_problem() -> None:
    result = supervisor("check", "absent")
    assert result.exit_code == 1
    assert result.stdout == "absent:1: cannot be read: No such file or directory\n"


def test_with_an_app_its_included_tasks_are_the_known_ones(here: Path) -> None:
    (here / "schedules" / "jobs.yaml").write_text(GOOD.replace("mail.poll", "mail.pol", 1))
    assert supervisor("check").exit_code == 0
    result = supervisor("-A", "app_of_the_check_test", "check")
    assert result.exit_code == 1, result.output
    assert result.stdout == (
        "schedules/jobs.yaml:2: job 'a': unknown task 'mail.pol' (did you mean 'mail.poll'?)\n"
    )


def test_the_tasks_of_an_app_are_those_its_worker_would_import() -> None:
    assert "mail.poll" in completed(import_module("app_of_the_check_test").app).tasks


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
