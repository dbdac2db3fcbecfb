"""A way to a server that can stop to carry anything, as a link whose other end is gone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from tests.waiting import scaled


@dataclass
class Proxy:
    """`url` leads to the server at `target`; neither side is told when nothing is carried.

    What a side has given up by then is not carried later, as over a link between two kernels.
    replies_to_lose: so many are not carried; the connection ends in their place. While only the
    replies are held, what is asked for happens, and who asked learns of it late; but not on the
    connections that asked for what contains `spared`.
    freeze_after: the first request that contains this is carried, and nothing after it.
    """

    target: tuple[str, int]
    url: str
    listener: socket.socket
    carries: threading.Event = field(default_factory=threading.Event)
    carries_replies: threading.Event = field(default_factory=threading.Event)
    replies_to_lose: int = 0
    spared: bytes = b""
    spared_sockets: set[socket.socket] = field(default_factory=set)
    freeze_after: bytes = b""
    open_sockets: set[socket.socket] = field(default_factory=set)

    def freeze(self) -> None:
        self.carries.clear()

    def hold_replies(self) -> None:
        self.carries_replies.clear()

    def thaw(self) -> None:
        self.carries.set()
        self.carries_replies.set()

    def accept(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.connect, args=(client,), daemon=True).start()

    def connect(self, client: socket.socket) -> None:
        """Both ways, until each has ended; a server that is down refuses."""
        with client, suppress(OSError), socket.create_connection(self.target) as server:
            both = {client, server}
            self.open_sockets |= both
            for each in both:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            replies = threading.Thread(target=self.carry, args=(server, client, True), daemon=True)
            replies.start()
            self.carry(client, server, is_reply=False)
            replies.join()
            self.open_sockets -= both
            self.spared_sockets.discard(client)

    def carry(self, source: socket.socket, sink: socket.socket, is_reply: bool) -> None:
        may_pass = self.carries_replies if is_reply else self.carries
        with suppress(OSError):
            while data := source.recv(65536):
                was_held = not (self.carries.is_set() and may_pass.is_set())
                self.carries.wait()
                if sink not in self.spared_sockets:
                    may_pass.wait()
                if not is_reply and self.spared and self.spared in data:
                    self.spared_sockets.add(source)
                if was_held and is_given_up(source):
                    break
                if is_reply and self.replies_to_lose:
                    self.replies_to_lose -= 1
                    break
                if not is_reply and self.freeze_after and self.freeze_after in data:
                    self.freeze_after = b""
                    self.freeze()
                sink.sendall(data)
        # Also where a server that was killed reset it: the client waits for a reply.
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.thaw()
        for each in (self.listener, *list(self.open_sockets)):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def is_given_up(source: socket.socket) -> bool:
    """Whether who sent there has closed the connection."""
    try:
        return source.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


@contextmanager
def proxy_to(url: str) -> Iterator[Proxy]:
    parts = urlsplit(url)
    listener = socket.create_server(("127.0.0.1", 0))
    place = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{listener.getsockname()[1]}"
    proxy = Proxy(
        target=(str(parts.hostname), int(parts.port or 6379)),
        url=urlunsplit(parts._replace(netloc=place.removeprefix("@"))),
        listener=listener,
    )
    proxy.thaw()
    thread = threading.Thread(target=proxy.accept, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join(scaled(5))
