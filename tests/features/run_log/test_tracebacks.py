"""What is kept of the traceback of a failed attempt."""

from __future__ import annotations

import pytest

from supervisor.features.run_log.lines import LARGEST, traceback_text
from supervisor.job.secrets import Mask, hidden_in, without_hidden


def raised(depth: int = 0, text: str = "no such order") -> BaseException:
    def fail(left: int) -> None:
        if left:
            fail(left - 1)
        raise ValueError(text)

    try:
        fail(depth)
    except ValueError as error:
        return error
    raise AssertionError


def as_it_is(text: str) -> str:
    return text


def test_the_frames_and_the_exception_are_there_without_variables() -> None:
    text = traceback_text(raised(), as_it_is)
    assert text.startswith("Traceback (most recent call last):\n")
    assert "raise ValueError(text)" in text
    assert text.endswith("\nValueError: no such order\n")


def test_what_called_the_tasks_code_is_left_out() -> None:
    from supervisor.guard.commands import run_command

    with pytest.raises(OSError) as caught:
        run_command(["/no/such/program"])
    error = caught.value
    error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
    text = traceback_text(error, as_it_is)
    assert "commands.py" not in text
    assert "subprocess.py" in text


def test_what_it_was_raised_from_is_there() -> None:
    error = raised()
    error.__cause__ = raised(text="the first")
    text = traceback_text(error, as_it_is)
    assert text.index("ValueError: the first") < text.index("ValueError: no such order")


@pytest.mark.parametrize(("depth", "text"), [(900, "deep"), (0, "long " * 10_000)])
def test_of_a_long_one_the_end_is_kept(depth: int, text: str) -> None:
    kept = traceback_text(raised(depth, text), as_it_is)
    assert len(kept.encode()) < LARGEST + 100
    assert kept.rstrip().endswith(text[-10:].rstrip())


def test_hidden_texts_are_not_in_it() -> None:
    hidden = {"hunter2": "${PASSWORD}", "two\nlines": "***", "abc": "***"}
    error = raised(text="no login with hunter2, 'two\\nlines', abc")
    text = traceback_text(error, lambda said: without_hidden(said, hidden))
    assert text.endswith("no login with ${PASSWORD}, '***', abc\n")


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (False, []),
        (True, ["one", "secret", "4711", "deep"]),
        (("password", "key"), ["secret", "deep"]),
    ],
)
def test_what_a_mask_hides_is_found_in_arguments(mask: Mask, found: list[str]) -> None:
    arguments = [["one", None, True], {"password": "secret", "pin": 4711, "at": [{"key": "deep"}]}]
    assert sorted(hidden_in(mask, arguments)) == sorted(found)
