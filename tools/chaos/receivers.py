"""``python -m tools.chaos.receivers webhook|smtp PORT FILE``: a server that takes down notices.

Each is a line of JSON in the file before it is acknowledged. So one that was killed in between has
taken down what its sender does not know to have arrived, and sends again.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_lock = threading.Lock()


def take_down(file: Path, **facts: Any) -> None:
    with _lock, file.open("a") as taken:
        taken.write(json.dumps({"at": time.time(), **facts}) + "\n")


def webhook(port: int, file: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            take_down(file, headers={k.lower(): v for k, v in self.headers.items()}, body=body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def smtp(port: int, file: Path) -> None:
    from aiosmtpd.smtp import SMTP

    class Handler:
        async def handle_DATA(self, _: object, __: object, envelope: Any) -> str:
            mail = message_from_bytes(envelope.content, policy=policy.default)
            text = mail.get_body(("plain", "html"))
            headers = {name.lower(): str(value) for name, value in mail.items()}
            take_down(file, headers=headers, body=text.get_content() if text else "")
            return "250 taken"

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: SMTP(Handler()), "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(serve())


if __name__ == "__main__":
    kind, port, path = sys.argv[1:]
    {"webhook": webhook, "smtp": smtp}[kind](int(port), Path(path))
