"""What `up` shows of the lines that its processes write."""

from __future__ import annotations

import io
import json
import re

import click
import pytest

from supervisor.deploy.screen import Lines, Screen

AT = "2026-11-23T13:43:05.123456Z"


def shown(*lines: str, colour: bool = False, is_chatty: bool = False) -> list[str]:
    stream = io.StringIO()
    screen = Screen(stream, colour=colour, is_chatty=is_chatty)
    for line in lines:
        screen.show("beat", line)
    return stream.getvalue().splitlines()


def event(**fields: object) -> str:
    told = {"event": "run skipped", "level": "warning", "logger": "supervisor.beat"}
    return json.dumps({"timestamp": AT, **told, **fields})


def test_an_event_is_one_short_line() -> None:
    [line] = shown(event(job="nightly", run="nightly@1", reason="overlap", blocked_by=None))
    assert re.fullmatch(r"beat {11}\d\d:43:05 run skipped nightly@1 reason=overlap", line)


def test_a_traceback_stands_below_its_event() -> None:
    first, *below = shown(event(exception="Traceback\n  File x"))
    assert "run skipped" in first
    assert below == [f"beat {' ' * 10}  Traceback", f"beat {' ' * 10}    File x"]


@pytest.mark.parametrize("line", ["plain words", "{not json", '{"no": "event"}', "[1]"])
def test_what_is_no_event_is_shown_as_it_is(line: str) -> None:
    assert shown(line, "") == [f"beat {' ' * 10}{line}"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (["a", "b"], "jobs=a, b"),
        (["a", "b", "c", "d", "e"], "jobs=a, b, c and 2 more"),
        ([{"job": "a"}, {"job": "b"}], "jobs=2"),
        ([], ""),
        ({}, ""),
        (0, "jobs=0"),
    ],
)
def test_a_list_in_a_field_is_short(value: object, words: str) -> None:
    [line] = shown(event(jobs=value))
    assert line.endswith(f"run skipped {words}".rstrip())


def test_no_text_moves_the_cursor() -> None:
    lines = shown(event(reason="a\x1b[2Jb\nfake"), "raw\x1b[2J", event(exception="x\x1b[2J"))
    assert len(lines) == 4
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize(
    ("fields", "is_shown"),
    [
        ({"logger": "celery.worker.consumer.mingle", "level": "info"}, False),
        ({"logger": "uvicorn.error", "level": "info"}, False),
        ({"logger": "celery.worker.consumer.connection", "level": "warning"}, True),
        ({"logger": "celery.app.trace", "level": "info"}, True),
        ({"logger": "celery.app.trace", "level": "info", "run": "nightly@1"}, False),
        ({"logger": "celery.worker.strategy", "level": "info", "event": "T[a@1]"}, False),
        ({"logger": "celery.app.trace", "level": "error", "run": "nightly@1"}, True),
        ({"logger": "proj.tasks", "level": "info"}, True),
    ],
)
def test_how_libraries_start_is_left_out(fields: dict[str, str], is_shown: bool) -> None:
    assert bool(shown(event(**fields))) is is_shown
    assert shown(event(**fields), is_chatty=True)


def test_colours_tell_processes_and_levels_apart() -> None:
    [line] = shown(event(), colour=True)
    assert line.startswith(click.style("beat          ", fg="cyan"))
    assert click.style("run skipped", fg="yellow") in line


def test_the_log_of_up_itself_goes_the_same_way() -> None:
    stream = io.StringIO()
    log = Lines(Screen(stream, colour=False), "up")
    log.write(event(event="child died", level="error", child="beat") + "\n")
    assert stream.getvalue().endswith(" child died child=beat\n")
