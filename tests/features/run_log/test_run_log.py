"""What log records know of the run whose code makes them."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from supervisor import CurrentRun, RunFilter
from supervisor.features.run_log.lines import line_of
from supervisor.guard.current_run import mark_records, set_current_run
from supervisor.logs import fill_formats

RUN = CurrentRun("orders", "orders@1", datetime(2026, 3, 1, tzinfo=UTC), 2, 7)
FIELDS = {"supervisor_job": "orders", "supervisor_run": "orders@1", "supervisor_attempt": 2}


@pytest.fixture(autouse=True)
def own_factory() -> Iterator[None]:
    """An app's, which has to be asked as before."""
    before = logging.getLogRecordFactory()

    def made(*args: object, **kwargs: object) -> logging.LogRecord:
        record = before(*args, **kwargs)
        record.of_the_app = True
        return record

    logging.setLogRecordFactory(made)
    set_current_run(None)
    mark_records()
    yield
    set_current_run(None)
    logging.setLogRecordFactory(before)


def record(text: str = "%s rows", *args: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("shop").makeRecord(
        "shop", logging.INFO, "shop.py", 1, text, args, None, extra=extra
    )


def fields_of(made: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(made).items() if name.startswith("supervisor_")}


def test_records_of_a_run_name_it_and_others_stay_as_they_are() -> None:
    assert fields_of(record()) == {}
    set_current_run(RUN)
    assert fields_of(record()) == FIELDS
    set_current_run(CurrentRun("a", "a@1", RUN.nominal_at, 1, 7, step="load", item=3))
    assert fields_of(record())["supervisor_step"] == "load#3"
    assert vars(record())["of_the_app"]


def test_a_thread_without_a_context_can_give_the_fields() -> None:
    assert fields_of(record("rows", **RUN.log_fields)) == FIELDS


def test_the_filter_fills_the_fields_outside_of_runs() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(supervisor_run)s|%(supervisor_step)s|%(message)s"))
    handler.addFilter(RunFilter())
    outside, inside = record("said"), logging.makeLogRecord({"msg": "said", **FIELDS})
    assert all(handler.filter(each) for each in (outside, inside))
    assert [handler.format(each) for each in (outside, inside)] == ["||said", "orders@1||said"]


@pytest.mark.parametrize(("form", "count"), [("%(supervisor_job)s", 1), ("%(message)s", 0)])
def test_only_formats_that_name_a_run_get_the_filter(form: str, count: int) -> None:
    logger = logging.Logger("proj")
    logger.addHandler(logging.StreamHandler())
    fill_formats(logger=logger, format=form)
    assert len(logger.handlers[0].filters) == count


def test_an_event_that_a_formatter_would_render_is_a_line() -> None:
    event = {"event": "loaded", "rows": 17}
    assert line_of(logging.makeLogRecord({"name": "shop", "levelname": "INFO", "msg": event})) == (
        "INFO shop: loaded rows=17"
    )


CAPTURES = """
import logging
from supervisor.features.run_log.lines import capture_lines
kept = logging.getLogger("kept")
kept.addHandler(logging.StreamHandler())
capture_lines()
for name in ("other", "kept"):
    logging.getLogger(name).warning("said by %s", name)
logging.getLogger("other").info("never")
print("printed", 1)
"""


def test_capturing_changes_nothing_that_an_app_without_logging_writes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CAPTURES], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines() == ["said by other", "said by kept"]
    assert done.stdout == "printed 1\n"
