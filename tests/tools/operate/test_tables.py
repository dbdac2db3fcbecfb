"""Tables on screens of any width: what people copy from them is whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from supervisor.job.changes import Edit, edit_text
from supervisor.operate import tables
from supervisor.operate.tables import Columns, lines

TABLES = {
    "jobs": tables.JOB_COLUMNS,
    "runs": tables.RUN_COLUMNS,
    "steps": tables.STEP_COLUMNS,
}

RUN = "flaky-fetch@2026-11-21T16:26:58Z"
REASON = f"overlap, blocked by {RUN[:-3]}50Z, due 2026-11-21 16:27:02Z"
RUNS = [
    (RUN, "1", "succeeded", "2026-11-21 16:26:58Z", "0.2s", ""),
    (RUN, "", "skipped", "", "", REASON),
]

words = st.text("ab\u4e2d\u6587@:-", min_size=1, max_size=40)


@pytest.mark.parametrize("columns", TABLES.values(), ids=TABLES.keys())
@given(data=st.data(), width=st.integers(1, 200))
def test_no_name_and_no_word_is_cut_at_any_width(
    columns: Columns, data: st.DataObject, width: int
) -> None:
    table = data.draw(st.lists(st.tuples(*(words for _ in columns.names)), max_size=4))
    text = lines(columns, table, width)
    left_out = text[-1].removeprefix("(too narrow for: ").removesuffix(")").split(", ")
    shown = set(" ".join(text).split())
    for row in table:
        for name, content in zip(columns.names, row, strict=True):
            assert name in left_out or content in shown


@pytest.mark.parametrize("columns", TABLES.values(), ids=TABLES.keys())
def test_what_names_a_row_is_never_left_out(columns: Columns) -> None:
    assert columns.names[0] not in columns.drops
    assert {*columns.drops} <= set(columns.names)


@pytest.mark.parametrize("width", [None, 120, 80])
def test_a_narrow_screen_has_fewer_columns_and_names_those_that_are_left_out(
    width: int | None,
) -> None:
    text = lines(tables.RUN_COLUMNS, RUNS, width)
    assert sum(line.startswith(RUN) for line in text) == 2
    assert text[2].endswith(REASON)
    assert (text[-1] == "(too narrow for: started)") == (width == 80)


def test_wide_characters_take_two_cells() -> None:
    wide = ("\u4e2d" * 5, *RUNS[0][1:])
    _, first, _ = lines(tables.RUN_COLUMNS, [wide, RUNS[1]])
    assert wcswidth(first.partition("1")[0]) == len(f"{RUN}  ")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([], ["SAT"], '[] -> ["SAT"]'),
        (
            [f"2026-01-{day:02}" for day in range(1, 9)],
            [*(f"2026-01-{day:02}" for day in range(6, 15)), "holidays DE until 2032"],
            "more: holidays DE until 2032, 2026-01-09, 2026-01-10, 2026-01-11 and 3 more; "
            "no longer: 2026-01-01, 2026-01-02, 2026-01-03, 2026-01-04 and 1 more",
        ),
    ],
    ids=["few", "many"],
)
def test_of_many_excluded_days_an_edit_names_those_that_come_and_go(
    old: list[str], new: list[str], expected: str
) -> None:
    assert edit_text(Edit("exclude", old, new)) == expected
