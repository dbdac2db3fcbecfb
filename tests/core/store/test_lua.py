"""Each function can be read alone: its first lines say what it is given and what it gives."""

from __future__ import annotations

from itertools import chain

import pytest

from supervisor.ledger.function_library import HOOKS, SHARED, source, sources


@pytest.mark.parametrize("name", sorted(sources().keys() - {*SHARED, *chain(*HOOKS.values())}))
def test_a_function_opens_with_keys_arguments_and_replies(name: str) -> None:
    opening, _, body = source(name).partition("\n\n")
    said = [word for word in ("KEYS ", "ARGV ", "gives ") if f"\n-- {word}" in opening]
    used = [f"{word} " for word in ("KEYS", "ARGV") if word in body]
    assert said == [*used, "gives "]
