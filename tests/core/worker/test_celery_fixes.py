"""Each fault of Celery that a worker works around is there, and does no harm under the fix.

A test whose name begins with `fault` runs Celery's own code, without ours. Where it fails, Celery
has mended the fault: once no supported Celery has it, the fix in celery_fixes.py goes.
"""

from __future__ import annotations

import inspect
import os
import pickle
import re
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakKeyDictionary

import billiard.pool
import celery.concurrency.prefork
import pytest
from billiard import get_context
from billiard.connection import Pipe
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import ACK, RUN, TASK, ApplyResult, Worker
from celery import Celery
from celery.concurrency import asynpool
from celery.concurrency.base import apply_target
from celery.exceptions import InvalidTaskError
from kombu import Connection, Consumer, Exchange, Queue
from kombu.asynchronous import Hub
from kombu.message import Message
from kombu.transport import redis, virtual

from supervisor.worker import celery_fixes
from supervisor.worker.celery_fixes import (
    GivenRun,
    WholeResults,
    check,
    given_once,
    raise_soft_limit,
    take_any_message,
    with_errors,
)
from tests.waiting import scaled, wait_until

ROOT = Path(__file__).parents[3]


def oldest_celery() -> tuple[int, ...]:
    """The oldest version that the package allows."""
    matches = re.search(r"celery\[redis\]>=([\d.]+)", (ROOT / "pyproject.toml").read_text())
    assert matches
    return tuple(map(int, matches[1].split(".")))


@pytest.mark.parametrize(
    ("fix", "mended_in"),
    [("take_with_a_place_free", (5, 6)), ("places", (5, 7)), ("given_once", (5, 7))],
)
def test_fault_of_the_oldest_celery(fix: str, mended_in: tuple[int, ...]) -> None:
    assert hasattr(celery_fixes, fix)
    assert oldest_celery() < mended_in


# 1. Messages that are not of Celery's making


def message_of(channel: Any, headers: dict[str, Any]) -> Message:
    body = b"[[], {}, {}]"
    types = {"content_type": "application/json", "content_encoding": "utf-8"}
    return Message(body, channel=channel, headers=headers, properties={}, **types)


@pytest.fixture
def consumer() -> Iterator[Any]:
    """Of a worker that is not supervised, with a task."""
    app = Celery("raw", broker="memory://", backend="disabled", set_as_current=False)

    @app.task(name="raw.work", shared=False)
    def work() -> None: ...

    worker: Any = app.WorkController(pool_cls="solo", concurrency=1, hostname="raw@here")
    worker.pool.start()
    worker.consumer.update_strategies()
    yield worker.consumer
    worker.pool.stop()


@pytest.mark.parametrize("limits", ["soon", [1, 2, 3]])
def test_fault_a_foreign_message_ends_a_worker(consumer: Any, limits: Any) -> None:
    headers = {"task": "raw.work", "lang": "py", "id": "a", "timelimit": limits}
    with Connection("memory://") as connection, connection.channel() as channel:
        message = message_of(channel, headers)
        with pytest.raises(ValueError, match="values to unpack"):
            consumer.create_task_handler()(message)
        with pytest.raises(InvalidTaskError):
            check(message)


def test_fault_a_task_that_the_pool_cannot_take_ends_a_worker() -> None:
    class Unwritable(Exception): ...

    def cannot(_: Any) -> None:
        raise Unwritable

    with pytest.raises(Unwritable):
        celery_fixes.give(SimpleNamespace(pool=None), SimpleNamespace(execute_using_pool=cannot))


@pytest.fixture
def listening(redis_url: str) -> Iterator[tuple[Connection, Any]]:
    """A connection that consumes the queue `raw` of Redis, and its channel."""
    with Connection(redis_url) as connection:
        channel: Any = connection.channel()
        queue = Queue("raw", Exchange("raw"), "raw", channel=channel)
        with Consumer(channel, [queue], callbacks=[lambda *_: None]):
            yield connection, channel
            channel._in_poll = None  # a reply that was taken away would be waited for


@pytest.mark.parametrize("pushed", [b"\xff", b"{", b"{}"])
def test_fault_a_text_that_is_no_message_ends_a_worker(
    listening: tuple[Connection, Any], pushed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis.Channel, "_brpop_read", celery_fixes.brpop_read)
    monkeypatch.setattr(virtual.Transport, "_deliver", celery_fixes.deliver)
    connection, channel = listening
    channel.client.lpush("raw", pushed)
    with pytest.raises((ValueError, LookupError)):
        connection.drain_events(timeout=scaled(5))


def test_a_consumer_of_a_task_hears_of_what_its_callback_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(virtual.Transport, "_deliver", virtual.Transport._deliver)
    monkeypatch.setattr(redis.Channel, "_brpop_read", redis.Channel._brpop_read)
    take_any_message()

    class Found(Exception): ...

    def found(*_: Any) -> None:
        raise Found

    with Connection("memory://") as connection, connection.channel() as channel:
        queue = Queue("of-a-task", channel=channel)
        queue.declare()
        connection.Producer().publish({}, routing_key="of-a-task")
        with Consumer(channel, [queue], callbacks=[found]), pytest.raises(Found):
            connection.drain_events(timeout=scaled(0.5))


# 2. A forked child reads a reply that is its parent's


def arrives_after_a_fork(listening: tuple[Connection, Any]) -> bool:
    """Whether this process gets a message after a child has done what it does to close a channel.

    Before kombu closes a channel on which a reply is due, it reads the reply.
    """
    connection, channel = listening
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.1)
    assert channel._in_poll  # it waits for a reply
    connection.Producer().publish({}, exchange="raw", routing_key="raw")
    child = os.fork()
    if child == 0:
        try:
            channel._brpop_read()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    try:
        connection.drain_events(timeout=scaled(0.5))
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("is_mended", [False, True])
def test_fault_a_child_takes_its_parents_message(
    listening: tuple[Connection, Any], is_mended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = celery_fixes.read_any if is_mended else celery_fixes.brpop_read
    monkeypatch.setattr(redis.Channel, "_brpop_read", read)
    assert arrives_after_a_fork(listening) is is_mended


# 3. A task that is over keeps its place


def raises() -> None:
    raise OSError("the result cannot be stored")


def test_fault_a_pool_without_children_hears_of_no_error() -> None:
    ended: list[Any] = []
    with pytest.raises(OSError, match="cannot be stored"):
        apply_target(raises, callback=ended.append)
    assert ended == []
    apply_target(with_errors, (raises,), callback=ended.append)
    [(has_failed, *_)] = ended
    assert has_failed


# 4. A result that was read in part


class Child:
    """What the pool knows of a child process, as far as it matters here."""

    exitcode: int | None = None


class Handler(WholeResults):
    def __init__(self, outputs: dict[int, Child]) -> None:
        self.fileno_to_outq = outputs
        self._reading = WeakKeyDictionary()
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


@pytest.mark.parametrize(("exitcode", "seconds"), [(None, 0.3), (-9, 1_000)])
def test_a_worker_that_stops_does_not_wait_for_a_dead_childs_rest(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, exitcode: int | None, seconds: float
) -> None:
    monkeypatch.setattr(celery_fixes, "LONGEST_READING_SECONDS", seconds)
    monkeypatch.setattr(Child, "exitcode", exitcode)
    stopping = Stopping(hub, framed("of the dead"))
    stopping.flush()
    assert stopping.removed == [stopping.fd]


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_worker_that_stops_does_not_wait_for_what_a_dead_child_has_not_sent(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    monkeypatch.setattr(celery_fixes, "LONGEST_READING_SECONDS", 0.3)
    whole = framed("whole")
    stopping = Stopping(hub, whole)
    os.write(stopping.child.fileno(), whole[9:] + framed("of the dead")[: 9 * is_begun])
    for _ in range(2):
        stopping.flush()
    assert stopping.handler.received == ["whole"]
    assert stopping.removed == [stopping.fd] * is_begun


@pytest.mark.parametrize("part", [1, 4])
def test_fault_a_fresh_loop_loses_a_result(pipe: tuple[int, int], hub: Hub, part: int) -> None:
    class Raw(asynpool.ResultHandler):
        def __init__(self, outputs: dict[int, Child]) -> None:
            self.fileno_to_outq = outputs
            self.received: list[Any] = []
            self.on_state_change = self.received.append

    ours, childs = pipe
    handler = Raw({ours: Child()})
    listen(cast(Any, handler), hub, ours)
    os.write(childs, framed("ready")[:part])
    turn(hub, 1)
    hub.reset()
    listen(cast(Any, handler), hub, ours)
    os.write(childs, framed("ready")[part:])
    turn(hub, 2)
    assert handler.received == []


# 5. A task that was written to a child


def is_known_after_a_flush(kind: type[Any]) -> bool:
    """Whether a pool still knows a task that it has written to a living child."""
    child = SimpleNamespace(pid=7, _is_alive=lambda: True)
    request = SimpleNamespace(on_accepted=lambda *_: None, on_taken_back=lambda: None)
    cache: dict[Any, Any] = {}
    job = kind(cache, None, accept_callback=Accepting(request).accept)
    job._write_to = child
    empty: Any = SimpleNamespace(
        _state=RUN,
        _cache=cache,
        synack=False,
        outbound_buffer=[],
        maintain_pool=lambda: None,
        _active_writers=set(),
        _active_writes=set(),
        _busy_workers=set(),
    )
    asynpool.AsynPool.flush(empty)
    return job in cache.values()


class Accepting:
    def __init__(self, request: Any) -> None:
        self.on_taken_back = request.on_taken_back

    def accept(self, *_: Any) -> None: ...


def test_fault_a_pool_forgets_what_it_has_written_to_a_child() -> None:
    assert not is_known_after_a_flush(ApplyResult)
    assert is_known_after_a_flush(GivenRun)


# 8. A child whose main process was killed just after the fork


def test_fault_a_child_does_not_look_whether_it_has_a_parent() -> None:
    initializer = inspect.getsource(celery.concurrency.prefork.process_initializer)
    assert "set_pdeathsig" in initializer
    assert "getppid" not in initializer


# 9. An argument of a retry


@pytest.mark.parametrize(
    ("args", "kwargs", "again"),
    [
        (None, None, (None, None)),
        (None, {"b": 5}, ([1, 5], {})),
        (None, {"c": 5}, ([1, 2], {"c": 5})),
        (None, {"b": 5, "other": 6}, ([1, 5], {"other": 6})),
        ([7], None, ([7], {"c": 3})),
        ([7, 8, 9], None, ([7, 8, 9], {})),
        ([7], {"c": 9}, ([7], {"c": 9})),
    ],
)
def test_an_argument_that_is_given_in_another_way_is_given_once(
    args: Any, kwargs: Any, again: Any
) -> None:
    app = Celery("retries", set_as_current=False)

    @app.task(bind=True, shared=False)
    def work(self: Any, a: int, b: int, c: int = 0, **more: Any) -> None: ...

    work.push_request(args=[1, 2], kwargs={"c": 3})
    assert given_once(work, args, kwargs) == again
    assert work.request.kwargs == {"c": 3}


# 10. A soft time limit that passes while a child sends its result


class Sending:
    """A child of a pool that has a result for which the pipe has no place."""

    def __init__(self) -> None:
        context = get_context("fork")
        self.tasks, self.results = context.SimpleQueue(), context.SimpleQueue()
        worker = Worker(self.tasks, self.results, sigprotection=False)
        self.child = worker.contribute_to_object(context.Process(target=worker))
        self.child.start()
        self.give(1_000_000)
        assert self.receive()[0] == ACK
        wait_until(lambda: "pipe_write" in self.of_kernel("wchan"), 20)

    def give(self, size: int) -> None:
        self.tasks.put((TASK, (1, None, bytes, (size,), {})))

    def receive(self) -> Any:
        assert self.results._reader.poll(scaled(20))
        return self.results._reader.recv()

    def of_kernel(self, name: str) -> str:
        return Path(f"/proc/{self.child.pid}/{name}").read_text()

    def exceed_soft_limit(self) -> None:
        os.kill(self.child.pid, signal.SIGUSR1)
        wait_until(lambda: not re.search(r"Pnd:.*[1-9a-f]", self.of_kernel("status")), 20)


@pytest.fixture
def sending() -> Iterator[Callable[[], Sending]]:
    made: list[Sending] = []

    def send() -> Sending:
        made.append(Sending())
        return made[-1]

    yield send
    for each in made:
        each.child.terminate()
        each.child.join()


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@on_linux
def test_a_soft_limit_leaves_a_result_whole(
    sending: Callable[[], Sending], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(billiard.pool, "soft_timeout_sighandler", raise_soft_limit)
    child = sending()
    child.exceed_soft_limit()
    assert child.receive()[1][2] == (True, bytes(1_000_000))
    child.exceed_soft_limit()
    child.give(3)
    assert [child.receive()[0], child.receive()[1][2]] == [ACK, (True, bytes(3))]


@on_linux
def test_a_soft_limit_in_code_without_a_module_is_a_limit() -> None:
    """A template engine makes such code of its templates."""
    code: dict[str, Any] = {"limit": raise_soft_limit, "frame": sys._getframe}
    exec("def render(): limit(0, frame())", code)
    with pytest.raises(SoftTimeLimitExceeded):
        code["render"]()


def test_fault_a_soft_limit_tears_a_result(sending: Callable[[], Sending]) -> None:
    child = sending()
    child.exceed_soft_limit()
    reader, sent = child.results._reader, b""
    while reader.poll(0) or "pipe_read" not in child.of_kernel("wchan"):
        sent += os.read(reader.fileno(), 100_000) if reader.poll(0.1) else b""
    assert b"SoftTimeLimitExceeded" in sent
    assert bytes(1_000_000) not in sent
