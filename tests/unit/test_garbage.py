"""The collector of reference cycles stays away from work that makes many objects."""

from __future__ import annotations

import gc
from contextlib import suppress

from supervisor import garbage


def collections_while_many_are_made() -> int:
    before = sum(generation["collections"] for generation in gc.get_stats())
    made = [[number] for number in range(100 * gc.get_threshold()[0])]
    assert made
    return sum(generation["collections"] for generation in gc.get_stats()) - before


def test_nothing_is_collected_inside_and_everything_after() -> None:
    assert collections_while_many_are_made() > 0
    with garbage.left_alone():
        assert collections_while_many_are_made() == 0
        with suppress(ValueError), garbage.left_alone():
            raise ValueError
        assert collections_while_many_are_made() == 0
    assert collections_while_many_are_made() > 0


def test_who_has_turned_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with garbage.left_alone():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
