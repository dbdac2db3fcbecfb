from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.catalog.job_checks import KEYS, check_job
from supervisor.catalog.job_text import ORDER
from supervisor.catalog.yaml_source import read
from supervisor.features.adoption.imported import ImportedJob, LeftOut, job_name, write
from supervisor.job.secrets import resolved
from supervisor.job.spec import JobSpec
from tests.waiting import scaled

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["yes", "1e3", "0o17", "12:30", "010", "2026-03-01", "null", "*a", "a: b"])
    | st.sampled_from(["${HOME}", "$${", "${"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def job(name: str = "job", **values: Any) -> ImportedJob:
    return ImportedJob(f"tab {name!r}", name, {"task": "t", "every": "1m", **values})


@given(st.lists(JSON, max_size=3), st.dictionaries(st.text(), JSON, max_size=3))
def test_arguments_are_read_back_as_they_were(args: list[Any], kwargs: dict[str, Any]) -> None:
    document = read(write([], [job(args=args, kwargs=kwargs)]).text)
    assert document.faults == []
    spec, faults = check_job("job", document.data["jobs"]["job"], {}, None)
    assert faults == []
    assert resolved(spec.args, {}) == args
    assert repr(resolved(spec.kwargs, {})) == repr(kwargs)


@given(st.text(), st.text(), st.text())
def test_no_text_of_the_source_gets_out_of_its_comment(name: str, why: str, remark: str) -> None:
    items = [
        ImportedJob("a", name, {"task": "t", "every": "1m"}, lost=[why]),
        LeftOut("b", why, [remark]),
    ]
    written = write([remark], items)
    assert len(written.jobs) == 1
    [job] = read(written.text).data["jobs"].values()
    assert job.get("entry", written.jobs[0]) == (name or written.jobs[0])
    assert list(read(written.text).data["jobs"]) == written.jobs
    assert len(written.reports) == 2


def test_a_job_is_in_block_style_with_keys_in_the_documented_order() -> None:
    values = {
        "timezone": "Europe/Berlin",
        "cron": "30 2 * * *",
        "kwargs": {"folder": "orders", "days": [1, 2]},
        "args": [],
        "description": "",
        "task": "mail.poll",
        "paused": True,
    }
    written = write(["Imported."], [ImportedJob("x", "poll/mail", values)])
    assert written.text == (
        "# Imported.\n"
        "\n"
        "jobs:\n"
        "  poll-mail:\n"
        "    entry: poll/mail\n"
        "    task: mail.poll\n"
        "    kwargs:\n"
        "      folder: orders\n"
        "      days:\n"
        "        - 1\n"
        "        - 2\n"
        '    cron: "30 2 * * *"\n'
        "    timezone: Europe/Berlin\n"
        "    paused: true\n"
    )


def test_the_order_has_each_key_once() -> None:
    assert sorted(ORDER) == sorted(KEYS)


def test_a_job_that_would_not_load_is_a_comment_in_its_place() -> None:
    written = write([], [job("a"), job("b", queue="no such/name"), job("c")])
    assert written.jobs == ["a", "c"]
    (report,) = written.reports
    assert report.startswith("tab 'b': not translated: 'queue': 'no such/name' is not a name")
    lines = written.text.splitlines()
    assert lines.index("  #   queue: no such/name") < lines.index("  c:")


def test_what_is_lost_of_a_job_stands_above_it_and_is_reported() -> None:
    written = write([], [ImportedJob("x", "a", {"task": "t", "every": "1m"}, lost=["no priority"])])
    assert written.reports == ["x: no priority"]
    assert "  # x: no priority\n  a:\n" in written.text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("proj.tasks.add", "proj.tasks.add"),
        ("proj.add(2, 2)", "proj.add-2-2"),
        ("every 5 minutes!", "every-5-minutes"),
        ("-x", "x"),
        ("Ürgent", "rgent"),
        ("日本", "job"),
        ("a" * 120, "a" * 100),
    ],
)
def test_any_text_gives_a_name(text: str, name: str) -> None:
    assert job_name(text) == name


def test_thousands_of_one_name_are_written_in_seconds() -> None:
    began = time.process_time()
    written = write([], [job() for _ in range(3_000)])
    assert written.jobs[-1] == "job-3000"
    assert time.process_time() - began < scaled(10)


@given(st.lists(st.text(max_size=120) | st.sampled_from(["a", "a-2", "a!", "a" * 100])))
def test_names_are_valid_and_unique(texts: list[str]) -> None:
    names: list[str] = []
    for text in texts:
        names.append(job_name(text, names))
    assert len(set(names)) == len(texts)
    for name in names:
        JobSpec(name=name, task="t", cron="@daily")
