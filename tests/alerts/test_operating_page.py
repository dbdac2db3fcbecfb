"""The page for those who are woken: a section for each alert, and each alert's link leads to it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.alerts.files import OPERATING, alerts

PAGE = OPERATING.read_text()
ALERTS = alerts()

#: Title of a section -> its text.
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.S | re.M))


def anchors() -> set[str]:
    """As the usual renderers of Markdown make them of titles."""
    titles = re.findall(r"^#+ (.+)$", PAGE, re.M)
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-").lower() for title in titles}


def test_every_alert_has_its_section_and_no_section_is_left_over() -> None:
    assert SECTIONS.keys() == ALERTS.keys()


@pytest.mark.parametrize("rule", ALERTS.values(), ids=ALERTS.keys())
def test_an_alerts_link_leads_to_a_section(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "docs/operating.md"
    assert anchor in anchors()


@pytest.mark.parametrize("text", SECTIONS.values(), ids=SECTIONS.keys())
def test_a_section_says_what_to_look_at_what_to_do_and_when_it_is_over(text: str) -> None:
    assert re.findall(r"^- \*\*(\w+):?\*\*", text, re.M) == ["Look", "Do", "Clears"]


def test_the_overview_has_each_alert_with_its_severity() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(#(\w+)\) \| (\w+) \|", PAGE, re.M)
    assert {(name, link, severity) for name, link, severity in rows} == {
        (name, name.lower(), rule["labels"]["severity"]) for name, rule in ALERTS.items()
    }


def test_links_within_the_page_lead_somewhere() -> None:
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= anchors()
