"""The lock's key of a run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.errors import InvalidKey
from supervisor.job.lock_keys import LONGEST, checked_key, lock_key, placeholders


def key(template: str, *args: Any, **kwargs: Any) -> str:
    return lock_key(template, job="nightly", task="proj.nightly", args=args, kwargs=kwargs)


@pytest.mark.parametrize(
    ("template", "made"),
    [
        ("reports", "reports"),
        ("import:{url}", "import:https://example.org/{x}"),
        ("{0}-{1}", "1-two"),
        ("{job}/{task}", "nightly/proj.nightly"),
        ("{{literal}}", "{literal}"),
        ("{options}", '{"a": 1, "b": [null, true]}'),
    ],
)
def test_a_template_is_filled_from_the_arguments(template: str, made: str) -> None:
    kwargs = {"url": "https://example.org/{x}", "options": {"b": [None, True], "a": 1}}
    assert key(template, 1, "two", **kwargs) == made


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("{uri}", "no argument 'uri' \\(did you mean 'url'"),
        ("{2}", "no argument '2'"),
        ("{url.host}", "neither a name nor a position"),
        ("{url!r}", "neither a name nor a position"),
        ("{url:>10}", "neither a name nor a position"),
        ("{", "is not a template"),
        ("{}", "neither a name nor a position"),
        ("{empty}", "the key is empty"),
        ("queue/{url}", "cannot begin with 'queue/'"),
    ],
)
def test_a_key_that_cannot_be_made_says_why(template: str, what: str) -> None:
    with pytest.raises(InvalidKey, match=what):
        key(template, "first", "second", url="u", empty=" ")


def test_the_digest_of_all_arguments_tells_them_apart() -> None:
    assert key("{arguments}", 1, a=2) == key("{arguments}", 1, a=2)
    assert (
        len({key("{arguments}", *a, **k) for a, k in [((1,), {}), ((2,), {}), ((), {"a": 1})]}) == 3
    )


@given(st.text(min_size=LONGEST + 1), st.text(min_size=LONGEST + 1))
def test_long_keys_are_cut_and_stay_apart(one: str, other: str) -> None:
    prefix = "p" * LONGEST
    assert len(checked_key(prefix + one)) <= LONGEST
    assert (checked_key(prefix + one) == checked_key(prefix + other)) is (one == other)


def test_the_placeholders_of_a_template_are_known_without_arguments() -> None:
    assert placeholders("import:{feed_url}:{0}") == ["feed_url", "0"]
