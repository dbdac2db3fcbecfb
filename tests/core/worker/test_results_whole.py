"""A result that a worker has read in part when its loop starts afresh."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.connection import Pipe
from celery.concurrency import asynpool
from kombu.asynchronous import Hub

from supervisor.worker import intake
from supervisor.worker.intake import read_results_whole


class Child:
    """What the pool knows of a child process, as far as it matters here."""


class Handler(asynpool.ResultHandler):
    def __init__(self, outputs: dict[int, Child]) -> None:
        self.fileno_to_outq = outputs
        self.received: list[Any] = []
        self.on_state_change = self.received.append


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ours, childs = os.pipe()
    os.set_blocking(ours, False)
    yield ours, childs
    os.close(ours)
    os.close(childs)


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


def listen(handler: Handler, hub: Hub, fd: int) -> None:
    """As the pool does whenever the worker has connected to its broker."""
    handler.register_with_event_loop(hub)
    hub.add_reader(fd, handler.handle_event, fd)


def turn(hub: Hub, times: int) -> None:
    loop = hub.create_loop()
    for _ in range(times):
        next(loop)


def framed(result: Any) -> bytes:
    body = pickle.dumps(result)
    return struct.pack("!i", len(body)) + body


@pytest.mark.parametrize("part", [1, 4, 9])
def test_a_result_read_in_part_is_read_on_after_a_reset(
    pipe: tuple[int, int], hub: Hub, part: int
) -> None:
    read_results_whole()
    ours, childs = pipe
    sent = framed(("ready", "x" * 20_000))
    handler = Handler({ours: Child()})
    listen(handler, hub, ours)
    os.write(childs, sent[:part])
    turn(hub, 1)
    hub.reset()
    listen(handler, hub, ours)
    os.write(childs, sent[part:] + sent)
    turn(hub, 2)
    assert handler.received == [("ready", "x" * 20_000)] * 2


def test_a_dead_childs_part_is_not_taken_for_another_childs(
    pipe: tuple[int, int], hub: Hub
) -> None:
    read_results_whole()
    ours, childs = pipe
    handler = Handler({ours: Child()})
    listen(handler, hub, ours)
    os.write(childs, framed("of the dead")[:4])
    turn(hub, 1)
    hub.reset()
    handler.fileno_to_outq[ours] = Child()
    listen(handler, hub, ours)
    os.write(childs, framed("of the living"))
    turn(hub, 1)
    assert handler.received == ["of the living"]


class Stopping:
    """A worker that has read nine bytes of this, began its loop afresh, and then stops."""

    def __init__(self, hub: Hub, sent: bytes) -> None:
        read_results_whole()
        self.reader, self.child = Pipe(duplex=False)
        self.fd = self.reader.fileno()
        os.set_blocking(self.fd, False)
        child: Any = Child()
        child.outq = SimpleNamespace(_reader=self.reader)
        self.handler, self.removed = Handler({self.fd: child}), list[int]()
        listen(self.handler, hub, self.fd)
        os.write(self.child.fileno(), sent[:9])
        turn(hub, 1)
        hub.reset()

    def flush(self) -> None:
        handler = self.handler
        handler._flush_outqueue(
            self.fd, self.removed.append, handler.fileno_to_outq, handler.on_state_change
        )


def test_a_worker_that_stops_meanwhile_reads_it_on_too(hub: Hub) -> None:
    sent = framed(("ready", "x" * 20_000))
    stopping = Stopping(hub, sent)
    os.write(stopping.child.fileno(), sent[9:] + framed("the next"))
    for _ in range(2):
        stopping.flush()
    assert stopping.handler.received == [("ready", "x" * 20_000), "the next"]
    assert not stopping.removed


def test_a_worker_that_stops_does_not_wait_for_a_dead_childs_rest(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "LONGEST_READING_SECONDS", 0.3)
    stopping = Stopping(hub, framed("of the dead"))
    stopping.flush()
    assert stopping.removed == [stopping.fd]
