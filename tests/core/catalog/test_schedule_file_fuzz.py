"""Whatever a schedule file says: it is loaded, or refused with problems that name its lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.catalog.job_checks import KEYS
from supervisor.catalog.schedule_files import LONGEST_PROBLEM, UNJUDGED, load
from supervisor.errors import Problem, ScheduleFilesInvalid
from supervisor.job.step_spec import StepSpec

fuzzed = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

#: Each is a scalar of YAML, as it stands in the file.
HUGE = ["0x" + "f" * 5000, "0o" + "7" * 5000, "9" * 4301, "-" + "9" * 4300, "1" * 400 + ".5"]
WORDS = [
    *HUGE,
    *("1e999", ".nan", "-.inf", "null", "true", "1.5", "-1", "0", "x" * 300, '"\\0"', '"\\uD800"'),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "0001-01-01..9999-12-31"),
    *("5m", "1000000h", "FREQ=YEARLY;BYDAY=53MO;INTERVAL=9999", "* * 31 2 *", "Europe/Berlin"),
    *('"${a}"', '"${file:/"', '"{0}"', '"{a!r:{b}}"', "100%", "run", "first", "queue_all"),
]
NAMES = [*KEYS, *StepSpec.model_fields, "jobs", "defaults", "holidays", "file", "gap", "fold", "x"]


class Written(str):
    """A scalar in the words of the file."""


scalars = st.sampled_from(WORDS).map(Written) | st.text(max_size=20) | st.integers() | st.booleans()
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)
own = st.dictionaries(st.sampled_from(KEYS), trees, max_size=6)
jobs = st.dictionaries(
    st.sampled_from(["a", "b.c", "x" * 120, "9" * 4301, "${a}"]),
    own.map(lambda keys: {"task": "t", "every": "5m", **keys}) | own | trees,
    max_size=3,
)
files = st.fixed_dictionaries({"jobs": jobs}, optional={"defaults": own | trees, "x": trees})


def flow(value: Any) -> str:
    if isinstance(value, Written):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(str(key))}: {flow(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return (
        yaml.safe_dump(value, default_style='"' if isinstance(value, str) else None)
        .split("\n...")[0]
        .strip()
    )


def problems_of(directory: Path, content: bytes) -> Sequence[Problem]:
    """Of a directory with this file alone; it holds to what every refusal promises."""
    file = directory / "jobs.yaml"
    file.write_bytes(content)
    try:
        load(directory)
    except ScheduleFilesInvalid as refused:
        # YAML has more kinds of line breaks, and a fault at the end may be on the line after it.
        lines = 2 + sum(map(content.count, (b"\n", b"\r", b"\x85", b"\xa8", b"\xa9")))
        for problem in refused.problems:
            assert UNJUDGED not in problem.what
            assert len(problem.what) <= LONGEST_PROBLEM
            assert 1 <= problem.line <= lines
        return refused.problems
    return ()


@fuzzed
@given(content=files)
def test_any_tree_is_loaded_or_refused(tmp_path: Path, content: Any) -> None:
    problems_of(tmp_path, flow(content).encode("utf-8", "surrogatepass"))


@fuzzed
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode("utf-16")))
def test_any_bytes_are_refused_or_loaded(tmp_path: Path, content: bytes) -> None:
    problems_of(tmp_path, content)
    problems_of(tmp_path, b"jobs: {j: {task: t, every: 5m, kwargs: " + content + b"}}")


@pytest.mark.parametrize("where", ["    {}: {}\n", "    {}: [{}]\n", "    {}: {{a: {}}}\n"])
def test_a_number_of_thousands_of_digits_is_refused_for_any_key(tmp_path: Path, where: str) -> None:
    for key in KEYS:
        for number in HUGE:
            text = "jobs:\n  j:\n" + where.format(key, number)
            problems = problems_of(tmp_path, text.encode())
            assert (3, "j") in {(p.line, p.job) for p in problems if "digits" in p.what}, key
