"""The command line on a test's ledger: called here, or in a process of its own on a terminal."""

from __future__ import annotations

import json
import os
import pty
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from click.testing import CliRunner, Result

from supervisor.cli import main
from tests.acceptance import warm
from tests.waiting import scaled

#: Takes the words after `supervisor --redis-url URL`; `app` is named with -A, `answer` is typed.
Supervisor = Callable[..., Result]


def supervisor_at(redis_url: str) -> Supervisor:
    def call(*words: str, app: str | None = None, answer: str | None = None) -> Result:
        named = ["-A", app] if app else []
        return CliRunner().invoke(main, [*named, "--redis-url", redis_url, *words], input=answer)

    return call


def as_json(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class Terminal:
    """A verb that runs on a terminal, and what it has shown there so far."""

    def __init__(self, redis_url: str, *words: str, columns: int = 100) -> None:
        self._screen, side = pty.openpty()
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "30"}
        words = ("-m", "supervisor", "--redis-url", redis_url, *words)
        with os.fdopen(side, "wb", buffering=0) as screen:
            self.process = warm.Started(words, Path.cwd(), environ, screen, screen)
        self._shown = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def shown(self) -> str:
        return self._shown.decode(errors="replace")

    def _read(self) -> None:
        with suppress(OSError):  # what Linux reports when the other side is closed
            while chunk := os.read(self._screen, 65536):
                self._shown += chunk

    def whole(self) -> str:
        """All that a verb has shown that ends by itself."""
        assert self.process.wait() == 0, self.shown
        self._reader.join(scaled(5))
        return self.shown

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(scaled(5))
        os.close(self._screen)
