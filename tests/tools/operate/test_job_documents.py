"""Jobs as people write them: the text loads the same job, and what is hidden stays hidden."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from supervisor.catalog.put_checks import judged
from supervisor.catalog.schedule_files import load
from supervisor.features.holidays.dates import as_written
from supervisor.job.spec import JobSpec
from supervisor.operate.job_documents import (
    document_of,
    mask_faults,
    revealed,
    schedule_text,
    shown_document,
)

STEPS = [{"task": "proj.a", "priority": 1, "kwargs": {"password": "geheim", "day": 1}}]


def spec(**keys: Any) -> JobSpec:
    return JobSpec(**{"name": "job", "task": "proj.a", "every": "1h", **keys})


@pytest.mark.parametrize("prefix", ["supervisor", "team:b"])
@pytest.mark.parametrize(
    "keys",
    [
        {"serial": True},
        {"serial": "reports"},
        {"serial": "job.more"},
        {"args": ["${TOKEN}", "$${x}", "1", "null", "a\nb", 1e300, None, "\u202e", "# no"]},
        {"every": None, "cron": ["0 6 * * *", "@daily"], "timezone": "Europe/Berlin"},
        {"every": None, "at": ["2030-01-01T00:00:00Z", "2030-01-01T00:00:00+02:00"]},
        {"every": "1d", "exclude": ["SAT", "2026-12-24..2027-01-02"], "jitter": "90s"},
        {"every": None, "cron": "30 2 * * *", "dst": {"gap": "skip", "fold": "both"}},
        {"task": None, "steps": STEPS, "params": {"x": [{}]}, "mask": True},
        {"description": "on: - 'x' \"y\" \u00e9 #", "ping_url": "https://hc-ping.com/0b1c"},
        {
            "notify": [
                "${SLACK_URL}",
                {"url": "https://h/x?y=1", "events": ["late"], "secret": "${S}"},
            ]
        },
    ],
)
def test_an_exported_job_loads_as_the_same_job(
    tmp_path: Path, prefix: str, keys: dict[str, Any]
) -> None:
    before = spec(**keys).kept_apart(prefix)
    file = tmp_path / "jobs.yaml"
    file.write_text(schedule_text([before], prefix))
    assert load(file, prefix=prefix).specs == {"job": before}


def test_holidays_are_exported_by_their_name_and_load_as_the_same_days() -> None:
    dates = ["2026-11-02", "2026-12-24..2027-01-02"]
    given = {"task": "t", "every": "1d", "exclude": ["SAT", *dates, {"holidays": "DE-BY"}]}
    before, faults = judged("job", given)
    document = document_of(before)
    assert (faults, document["exclude"][0], document["exclude"][-1]) == (
        [],
        "SAT",
        {"holidays": "DE-BY"},
    )
    assert len(document["exclude"]) == 4  # 1 November is a holiday, and the 2nd goes on with it
    assert judged("job", document) == (before, [])
    # Of another year, or of another version of the library, the dates are those that are loaded.
    year = datetime.now(UTC).year
    for texts, at in (
        (before.exclude, year + 1),
        (before.exclude[:-9] + before.exclude[-1:], year),
    ):
        assert as_written(texts, at) == list(texts)


def test_no_job_is_a_file_without_jobs(tmp_path: Path) -> None:
    (tmp_path / "none.yaml").write_text(schedule_text([]))
    assert load(tmp_path).specs == {}


def test_what_is_shown_keeps_what_it_hides_when_it_comes_back() -> None:
    for loaded in (
        spec(kwargs={"a": {"password": "geheim"}, "b": 1}, mask=["password"]),
        spec(task=None, steps=STEPS, params={"password": "geheim"}, mask=["password"]),
        spec(args=["geheim"], kwargs={"x": "geheim"}, mask=True),
        spec(ping_url="https://hc-ping.com/geheim"),
        spec(notify=["slack://geheim/b/c", {"url": "https://h/geheim", "secret": "geheim"}]),
    ):
        shown = shown_document(loaded)
        assert "geheim" not in str(shown)
        assert revealed(shown, loaded) == document_of(loaded)
        assert list(mask_faults(document_of(loaded), loaded)) == []


@pytest.mark.parametrize(
    "change",
    [{"mask": []}, {"mask": ["other"]}, {"task": "proj.log"}, {"kwargs": {"other": "***"}}],
)
def test_what_is_hidden_is_given_to_no_other_task_and_never_unmasked(
    change: dict[str, Any],
) -> None:
    loaded = spec(kwargs={"password": "geheim"}, mask=["password"])
    given = revealed({**shown_document(loaded), **change}, loaded)
    assert "geheim" not in str(given)
    assert list(mask_faults(given, loaded))


def test_a_step_that_is_added_is_not_given_what_another_hides() -> None:
    loaded = spec(task=None, steps=STEPS, mask=["password"])
    shown = shown_document(loaded)
    shown["steps"] = [{**shown["steps"][0], "task": "proj.log"}]
    assert "geheim" not in str(revealed(shown, loaded))


def test_three_stars_that_a_job_has_are_its_own() -> None:
    loaded = spec(args=["***"])
    assert list(mask_faults(document_of(loaded), loaded)) == []
    assert list(mask_faults({"args": ["***"]}, None))


def test_a_destination_keeps_its_hidden_address_beside_others() -> None:
    pager, hook = "pagerduty://geheim@k", {"url": "https://hooks.test/geheim", "secret": "geheim"}
    loaded = spec(notify=[pager, hook, "slack://one/a/b", "slack://two/a/b"])
    shown = shown_document(loaded)["notify"]
    given = {**shown_document(loaded), "notify": ["${NEW}", shown[1], shown[0], shown[2]]}
    assert revealed(given, loaded)["notify"] == ["${NEW}", hook, pager, "slack://***"]
    assert [fault.path for fault in mask_faults(revealed(given, loaded), loaded)] == [(3,)]


def test_destinations_that_are_shown_alike_keep_their_addresses_unless_one_was_edited() -> None:
    loaded = spec(notify=["slack://one/a/b", "slack://two/a/b"])
    shown = shown_document(loaded)
    kept = revealed({**shown, "notify": ["${NEW}", *shown["notify"]]}, loaded)
    assert kept["notify"] == ["${NEW}", "slack://one/a/b", "slack://two/a/b"]
    edited = revealed({**shown, "notify": ["${NEW}", shown["notify"][1]]}, loaded)
    [fault] = mask_faults(edited, loaded)
    assert "came back as it was shown" in str(fault.hint)


@pytest.mark.parametrize("url", ["https://evil.test/***", "slack://***"])
def test_a_secret_goes_to_no_address_but_its_own(url: str) -> None:
    loaded = spec(notify=[{"url": "https://hooks.test/x", "secret": "geheim"}])
    shown = shown_document(loaded)
    given = revealed({**shown, "notify": [{"url": url, "secret": "***"}]}, loaded)
    assert "geheim" not in str(given)
    assert len(list(mask_faults(given, loaded))) == 2
