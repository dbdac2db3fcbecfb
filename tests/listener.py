"""A real HTTP server on this machine that takes down what it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Listener:
    url: str = ""

    status: int = 200
    """What it answers with, and `says`."""

    says: str = ""

    hangs: bool = False
    """It answers nothing until it is closed."""

    heard: list[tuple[str, str]] = field(default_factory=list)
    headers: list[Message] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def paths(self) -> list[str]:
        return [path.partition("?")[0] for path, _ in self.heard]


@contextmanager
def listening() -> Iterator[Listener]:
    listener = Listener()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            listener.headers.append(self.headers)
            listener.heard.append((self.path, body))
            if listener.hangs:
                listener.closing.wait()
                return
            self.send_response(listener.status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(listener.says.encode())

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield listener
    finally:
        listener.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
