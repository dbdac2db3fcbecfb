"""What stands before kombu's producer while Celery makes the message of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from supervisor.guard.delivery import HEADER
from supervisor.sending.content import ENCODER, content_of


class RunProducer:
    """For each message of a run.

    1. It notes what the message is to say that the app's own code has changed: signals and the
       classes of tasks may do that before it is sent.
    2. It gives the message the headers that the run's first one had from the app's own code, and
       not those of the process that happens to send it.
    """

    def __init__(
        self,
        producer: Any,
        says: tuple[str, Sequence[Any], Mapping[str, Any]],
        named: str,
        note: Callable[[str], None],
        headers: Mapping[str, Any],
    ) -> None:
        """says: task, args and kwargs. named: which of the arguments have references to secrets.
        note: is given what has changed, as a line of job/content.py."""
        self._producer = producer
        self._expected = ENCODER.encode(says)  # that code may change them in place
        self._named = named
        self._note = note
        self._headers = headers
        #: False if the app's own code has sent nothing, or will do so later.
        self.has_sent = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, *more: Any, **options: Any) -> Any:
        headers = options.get("headers") or {}
        if HEADER in headers:
            self.has_sent = True
            args, kwargs, _ = body
            if ENCODER.encode((headers["task"], args, kwargs)) != self._expected:
                content = content_of(headers["id"], headers["task"], args, kwargs)
                self._note(f"{content.args} {content.kwargs} {self._named or '-'} {content.task}")
            if self._headers:
                options["headers"] = {**headers, **self._headers}
        return self._producer.publish(body, *more, **options)


class Unsent:
    """Stands before a producer, and keeps a run's message from being sent: only its headers count.

    So it does with Celery's event that it was sent. It publishes what is no run's.
    """

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self.headers: Mapping[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, *more: Any, **options: Any) -> Any:
        headers = options.get("headers") or {}
        if HEADER in headers:
            self.headers = headers
        elif not (isinstance(body, dict) and body.get("type") == "task-sent"):
            return self._producer.publish(body, *more, **options)
        return None
