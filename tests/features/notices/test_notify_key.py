"""`notify` in schedule files: what is wrong has its line, and whose list holds for a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.catalog.schedule_files import load
from supervisor.catalog.schema import json_schema
from supervisor.errors import NotConfigured
from supervisor.features.notices.keys import DEFAULT_EVENTS, SERVICE_EVENTS, Event
from supervisor.features.notices.rules import service_destinations
from supervisor.job.spec import JobSpec
from tests.core.catalog.problems import problems_of

MISTAKES = """\
defaults:
  notify:
  - ${A B}
  - geheim
jobs:
  one: {task: t, every: 1h, notify: slack://geheim/b/c}
  two:
    task: t
    every: 1h
    notify:
    - slack://geheim/b/c
    - slack://geheim/b/c
    - url: ${URL}
      event: [failed]
    - url: ${OTHER}
      events: [faild, no_beat]
    - {url: "mailto://geheim@h", secret: x}
    - {url: "https://h", events: failed}
    - {url: "https://i", events: [recovered]}
    - {events: [failed]}
    - 4
"""

PROBLEMS = [
    (3, "'url' has a reference that is none", "write ${NAME}"),
    (4, "not an address such as", None),
    (6, "not a list of addresses", "such as [${SLACK_URL}]"),
    (12, "the same address as one before it", "give it once"),
    (14, "unknown key 'event'", "did you mean 'events'?"),
    (16, "'faild' is not one of failed, recovered, missed", "did you mean 'failed'?"),
    (16, "'no_beat' is no event of a job", "SUPERVISOR_NOTIFY"),
    (17, "'secret' signs http and https addresses alone", "leave it out"),
    (18, "'events' is not a list of events", "known are failed, recovered"),
    (19, "'recovered' alone is never sent", "such as [failed, recovered]"),
    (20, "neither an address nor a mapping with 'url'", "such as ${SLACK_URL}"),
    (21, "neither an address nor a mapping with 'url'", "such as ${SLACK_URL}"),
]


def problems(text: str, tmp_path: Path, **options: Any) -> list[tuple[int, str, str | None]]:
    file = tmp_path / "jobs.yaml"
    file.write_text(text)
    return [(found.line, found.what, found.hint) for found in problems_of(file, **options)]


def test_each_mistake_has_its_line_and_no_address_is_repeated(tmp_path: Path) -> None:
    found = problems(MISTAKES, tmp_path)
    assert "geheim" not in str(found)
    assert [line for line, *_ in found] == [line for line, *_ in PROBLEMS]
    for (_, what, hint), (_, expected, expected_hint) in zip(found, PROBLEMS, strict=True):
        assert expected in what
        assert (expected_hint or "") in (hint or "")


def test_a_list_of_a_job_takes_the_place_of_the_default_one(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("""\
defaults: {notify: ["${OURS}"]}
jobs:
  shared: {task: t, every: 1h}
  own: {task: t, every: 1h, notify: [{url: "${PAGER}", events: [late, lost]}]}
  none: {task: t, every: 1h, notify: []}
""")
    specs = load(tmp_path).specs
    told = {name: [(to.url, to.events) for to in spec.notify] for name, spec in specs.items()}
    assert told == {
        "shared": [("${OURS}", DEFAULT_EVENTS)],
        "own": [("${PAGER}", {Event.LATE, Event.LOST})],
        "none": [],
    }
    for spec in specs.values():
        assert JobSpec.model_validate_json(spec.model_dump_json(exclude_defaults=True)) == spec


def test_a_secret_that_a_default_lacks_is_one_problem(tmp_path: Path) -> None:
    text = """\
defaults:
  notify: [{url: "${A}", secret: "${B}"}]
jobs:
  one: {task: t, every: 1h}
  two: {task: t, every: 1h}
  three: {task: t, every: 1h, notify: ["https://h/${C}"]}
"""
    found = problems(text, tmp_path, environ={"A": "set"})
    assert [(line, what.partition(": ${")[2][0]) for line, what, _ in found] == [(2, "B"), (6, "C")]


@pytest.mark.parametrize(
    ("notify", "holds"),
    [
        (["${A}", {"url": "https://h", "events": ["late"], "secret": "${B}"}], True),
        ("${A}", False),
        ([{"events": ["late"]}], False),
        ([{"url": "${A}", "events": ["no_beat"]}], False),
    ],
)
def test_the_schema_for_editors_says_the_same(notify: Any, holds: bool) -> None:
    # Imported here, since it takes longer than all else that tests import.
    from jsonschema import Draft202012Validator

    file = {"jobs": {"j": {"task": "t", "every": "1h", "notify": notify}}}
    assert Draft202012Validator(json_schema()).is_valid(file) is holds


CONTROL, PARAMETER = "an encoded control character", "a parameter other than"


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("irc://n%0d%0aSET%20x%20y@host:6379/x", CONTROL),
        ("irc://n@host:6379/x", "not an address of https, http, mailto, mailtos, slack, pagerduty"),
        ("mailto://a%250d%250aRCPT@host", CONTROL),
        ("mailtos://a:b@host?to=c@d%E2%80%A8", CONTROL),
        ("https://host/a%00b", CONTROL),
        ("mailto://host?to=a@b&pgpprv=/etc/key", PARAMETER),
        ("slack://a/b/c?template=http://internal", PARAMETER),
        ("slack://a/b/c?blocks=yes;TEMPLATE=/x", PARAMETER),
        ("slack://a/b/c?%74emplate=/x", PARAMETER),
        ("https://hooks.slack.com/services/A/B/C?template=/x", PARAMETER),
        ("https://prod.logic.azure.com/workflows/a?sig=x&template=/file.json", PARAMETER),
        ("https://a.webhook.office.com/webhookb2/x?redirect=yes", PARAMETER),
    ],
)
def test_an_address_says_nothing_but_where_to_send(url: str, what: str, tmp_path: Path) -> None:
    text = f"jobs:\n  one:\n    task: t\n    every: 1h\n    notify:\n    - '{url}'\n"
    [(line, found, _)] = problems(text, tmp_path)
    assert line == 6
    assert what in found
    assert url not in found


@pytest.mark.parametrize(
    "url",
    [
        "https://host/hook?template=any",
        "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/${SLACK_TOKEN}",
        "slack://T1JJ3T3L2/A1BRTD4JD/${SLACK_TOKEN}/#jobs",
        "https://p.logic.azure.com:443/w/a?api-version=1&sp=%2Frun&sv=1.0&sig=${SIG}",
        "mailtos://beat:${PASSWORD}@mail.test?from=beat@a.test&to=ops@a.test,more@a.test",
        "pagerduty://${KEY}@${API}?region=eu",
    ],
)
def test_addresses_of_the_page_are_taken(url: str, tmp_path: Path) -> None:
    text = f"jobs: {{one: {{task: t, every: 1h, notify: ['{url}']}}}}\n"
    file = tmp_path / "jobs.yaml"
    file.write_text(text)
    load(file)


def test_the_setting_has_addresses_with_spaces_or_commas_between() -> None:
    urls = ["mailto://h?to=a@b,c@d", "${PAGER}", "https://h/x"]
    for written in (" ".join(urls), ", ".join(urls), ",".join(urls), " \n".join(urls) + ","):
        found = service_destinations({"SUPERVISOR_NOTIFY": written})
        assert [each.url for each in found] == urls
        assert all(each.events == {*SERVICE_EVENTS, Event.RECOVERED} for each in found)
    assert service_destinations({}) == ()


@pytest.mark.parametrize(
    "written", ["https://h/x geheim", "${geheim", "http:geheim", "irc://geheim@h/x"]
)
def test_an_address_of_the_setting_that_is_none_is_named_by_its_number(written: str) -> None:
    with pytest.raises(NotConfigured, match=r"SUPERVISOR_NOTIFY: address [12] ") as error:
        service_destinations({"SUPERVISOR_NOTIFY": written})
    assert "geheim" not in str(error.value)
