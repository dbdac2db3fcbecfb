"""docs/reference/schedule-file.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from supervisor.catalog.job_checks import KEYS, LARGEST_ARGUMENTS, NOT_IN_DEFAULTS
from supervisor.catalog.schedule_files import load
from supervisor.catalog.yaml_source import DEEPEST, LARGEST_FILE, read
from supervisor.errors import ScheduleFilesInvalid
from supervisor.job.spec import MOST_JOBS, JobSpec
from supervisor.job.when import KINDS

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "schedule-file.md").read_text()
FILE, *_ = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| `([^|]+)` \| (.+) \|$", re.MULTILINE)
ROWS = {key: (default.strip(), example) for key, _, default, example, _ in ROW.findall(PAGE)}


def job_with(key: str, value: Any) -> JobSpec:
    times: dict[str, Any] = {} if key in KINDS else {"every": 60}
    needs_steps = key in ("params", "on_step_failure")
    if needs_steps or key == "steps":
        values: dict[str, Any] = {"steps": [{"task": "task", "priority": 1}], key: value}
        no_steps = {"task": "task"} if key == "steps" and not value else {}
        return JobSpec.model_validate({"name": "job", **times, **values, **no_steps})
    needed: dict[str, Any] = {"max_consecutive_skips": 3} if key == "then" else {}
    if key in ("after_match", "after_policy"):
        needed = {"after": ["extract"]}
    return JobSpec.model_validate({"name": "job", "task": "task", **times, **needed, key: value})


def test_every_key_is_described_once() -> None:
    assert sorted(key for key, *_ in ROW.findall(PAGE)) == sorted(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_the_default_on_the_page_is_the_default(key: str) -> None:
    stated, _ = ROWS[key]
    field = JobSpec.model_fields[key]
    if stated == "required":
        assert field.is_required()
    elif stated == "-":
        assert field.default is None
    else:
        assert getattr(job_with(key, read(stated.strip("`")).data), key) == field.default


@pytest.mark.parametrize("key", KEYS)
def test_the_example_on_the_page_is_valid_and_not_the_default(key: str) -> None:
    _, example = ROWS[key]
    value = getattr(job_with(key, read(example).data), key)
    assert value != JobSpec.model_fields[key].default


def test_the_keys_that_cannot_be_defaults_are_named() -> None:
    sentence = re.search(r"every key of a job\s+except ([^.]+), which define", PAGE)
    assert sentence
    assert tuple(re.findall(r"`(\w+)`", sentence[1])) == NOT_IN_DEFAULTS


def test_the_limits_are_stated() -> None:
    assert f"at most {DEEPEST} levels deep" in PAGE
    assert f"at most {MOST_JOBS:,}\n  jobs" in PAGE
    assert (LARGEST_FILE, "at most 1 MiB" in PAGE) == (1024 * 1024, True)
    assert f"{LARGEST_ARGUMENTS // 1024} KiB" in PAGE


def test_the_file_on_the_page_loads(tmp_path: Path) -> None:
    (tmp_path / "page.yaml").write_text(FILE)
    assert set(load(tmp_path).specs) == {"nightly-report", "poll-inbox"}


def test_the_problems_on_the_page_are_what_its_mistakes_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("schedules").mkdir()
    mistakes = FILE.replace("20m", "20 min").replace("30 2 *", "30 25 *").replace("kwargs", "kwarg")
    Path("schedules/reports.yaml").write_text(mistakes)
    with pytest.raises(ScheduleFilesInvalid) as invalid:
        load(Path("schedules"))
    assert f"$ supervisor check\n{invalid.value}\n```" in PAGE
