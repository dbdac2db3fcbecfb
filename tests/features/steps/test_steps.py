"""Steps in schedule files: what holds, and what is told of what does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.catalog.job_checks import Tasks
from supervisor.catalog.schedule_files import load
from supervisor.errors import UnusableReturn
from supervisor.job.spec import JobSpec
from supervisor.job.steps import Params, filled, handed_on, plan
from tests.core.catalog.problems import problems_of

STEPS = """jobs:
  documents:
    every: 1h
    queue: slow
    max_retries: 2
    time_limit: 1h
    params: {tree: docs}
    steps:
      - {task: docs.extract, priority: 3}
      - task: docs.words
        priority: 2
        foreach: files
        queue: quick
        max_retries: 0
        time_limit: 5m
      - {name: last, task: docs.index, priority: 1, args: [1], kwargs: {fast: true}}
"""


def loaded(path: Path, text: str) -> JobSpec:
    (path / "jobs.yaml").write_text(text)
    [spec] = load(path).specs.values()
    return spec


def problems(path: Path, steps: str) -> list[str]:
    (path / "jobs.yaml").write_text(f"jobs:\n  a:\n    every: 1h\n    steps:\n{steps}")
    return [f"{problem.line}: {problem.what}" for problem in problems_of(path)]


def test_a_step_has_what_its_job_says_where_it_says_nothing(tmp_path: Path) -> None:
    planned = plan(loaded(tmp_path, STEPS))
    assert planned is not None
    extract, words, last = planned["steps"]
    assert [step["name"] for step in planned["steps"]] == ["extract", "words", "last"]
    assert (extract["queue"], extract["max_retries"], extract["time_limit"]) == ("slow", 2, 3600)
    assert (words["queue"], words["max_retries"], words["time_limit"]) == ("quick", 0, 300)
    assert (last["args"], last["kwargs"]) == ([1], {"fast": True})


def test_steps_of_a_serial_job_share_its_queue_and_its_lock(tmp_path: Path) -> None:
    text = STEPS.replace("queue: slow", "serial: true").replace("        queue: quick\n", "")
    spec = loaded(tmp_path, text)
    planned = plan(spec)
    assert planned is not None
    assert {step["queue"] for step in planned["steps"]} == {"serial.documents"}
    assert {json.loads(step["rules"])["serial"] for step in planned["steps"]} == {
        "queue/serial.documents"
    }
    assert spec.rules().serial == ""


def test_the_work_of_a_job_is_named_stage_by_stage(tmp_path: Path) -> None:
    assert loaded(tmp_path, STEPS).work == "extract > words > last"


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ("      - {task: a.b}\n", ["5: step 1: 'priority' is missing"]),
        ("      - 17\n", ["5: step 1 is not a mapping"]),
        ("      - {task: a, priority: 1, tsk: 2}\n", ["5: step 1: unknown key 'tsk'"]),
        (
            "      - {task: a, priority: x}\n      - task: b\n        priority: -1\n",
            [
                "5: step 1: 'priority': 'x' is not a whole number",
                "7: step 2: 'priority': -1 is less than 0, the smallest allowed",
            ],
        ),
        (
            "      - {task: a.x, priority: 1}\n      - {task: b.x, priority: 1}\n",
            ["6: 'steps': a second step 'x'"],
        ),
        ("      - {task: 'a.', priority: 1}\n", ["5: 'steps': 'a.' makes no name"]),
        (
            "      - {task: a, priority: 1, max_parallel: 2}\n",
            ["5: step 1: 'max_parallel' needs 'foreach'"],
        ),
        (
            "      - {task: a, priority: 1, foreach: x, on_item_failure: threshold}\n",
            ["5: step 1: 'on_item_failure: threshold' and 'max_failed' need each other"],
        ),
        (
            "      - {task: a, priority: 1, foreach: x, on_item_failure: ignor}\n",
            ["5: step 1: 'on_item_failure': 'ignor' is not one of fail, ignore, threshold"],
        ),
    ],
)
def test_all_that_is_wrong_with_steps_is_told_at_its_line(
    tmp_path: Path, steps: str, told: list[str]
) -> None:
    assert problems(tmp_path, steps) == told


def test_an_unknown_task_of_a_step_is_told_when_the_app_is_known(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(STEPS)
    [problem] = problems_of(tmp_path, app_tasks=Tasks.fromkeys(["docs.extract", "docs.index"]))
    assert (problem.line, problem.what) == (10, "unknown task 'docs.words'")


def words(file: str, tree: str, /, depth: int = 1, *, fast: bool = False) -> None: ...


def extract(file: str, tree: str, depth: int = 1, *, fast: bool = False) -> None: ...


def test_parameters_without_an_argument_are_filled_by_name() -> None:
    params = {"file": "x", "tree": "docs", "fast": True, "other": 1}
    assert filled(extract, ("a",), {}, params) == {"tree": "docs", "fast": True}
    assert filled(extract, ("a",), {"tree": "b"}, params) == {"tree": "b", "fast": True}
    assert filled(words, ("a", "b"), {}, params) == {"fast": True}


def test_params_are_not_read_when_no_parameter_is_lacking() -> None:
    def nobody_asks() -> dict[str, str]:
        raise AssertionError("read")

    assert filled(extract, ("a", "b", 1), {"fast": True}, Params(nobody_asks)) == {"fast": True}


def test_a_param_that_is_changed_is_not_changed_for_others() -> None:
    params = Params(lambda: {"files": '["a"]'})
    params["files"].append("b")
    assert params["files"] == ["a"]


def test_what_a_step_returns_is_handed_on_when_it_is_a_mapping() -> None:
    def as_json(value: object) -> object:
        return json.loads(json.dumps(value))

    assert handed_on({"a": (1, 2)}, as_json) == {"a": [1, 2]}
    assert handed_on([1], as_json) is None
    with pytest.raises(UnusableReturn, match="is not JSON"):
        handed_on({"a": object()}, as_json)
    with pytest.raises(UnusableReturn, match="characters of JSON"):
        handed_on({"a": "x" * 5_000_000}, as_json)
