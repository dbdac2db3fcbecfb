from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.times import parse_duration, render_duration, to_ms


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1d", 86400),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("0s", 0),
        (90, 90),
        (0.25, 0.25),
    ],
)
def test_a_duration_is_text_with_units_or_a_number_of_seconds(text: Any, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "5",
        "5 minutes",
        "1:30",
        "1 0m",
        "5m\n",
        "-5m",
        "5M",
        "m",
        "1e3s",
        "\u0665m",
        -1,
        True,
        None,
        float("nan"),
        ["5m"],
    ],
)
def test_anything_else_is_refused_with_examples(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 90s, 5m or 1h30m"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["20000d", "9" * 20 + "h", 1e10, float("inf")])
def test_a_duration_that_no_date_survives_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="too long"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**12))
def test_what_is_rendered_reads_back_exactly(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(render_duration(duration)) == duration
    assert to_ms(duration) == milliseconds


@given(st.from_regex(r"\A[0-9]{1,4}(\.[0-9]{1,9})?(ms|[dhms])\Z"))
def test_nothing_finer_than_a_millisecond_is_kept(text: str) -> None:
    assert parse_duration(render_duration(parse_duration(text))) == parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (90, "1m30s"), (5400, "1h30m"), (1.5, "1s500ms"), (86400, "1d")],
)
def test_the_largest_units_come_first(seconds: float, text: str) -> None:
    assert render_duration(timedelta(seconds=seconds)) == text
