"""Processes that deal with thousands of jobs at once seldom look for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from celery import Celery, signals
from celery.beat import Service

import supervisor.beat.emitter  # noqa: F401 - as beat does
from supervisor import process


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_beat_says_so_when_it_starts() -> None:
    assert gc.get_threshold() != process.RARELY
    signals.beat_init.send(sender=Service(Celery(set_as_current=False)))
    assert gc.get_threshold() == process.RARELY
