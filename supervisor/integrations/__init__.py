"""What only an extra or another service needs: each file can be deleted by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Protocol

from supervisor.job.notices import Answer, Destination, Notice
from supervisor.job.spec import JobSpec


class Send(Protocol):
    """Sends a notice, as notify.py does: the result, and the reason in words without secrets."""

    def __call__(
        self, destination: Destination, notice: Notice, *, deadline_seconds: float
    ) -> tuple[Answer, str]: ...


def sender() -> Send:
    """The function that sends notices. If its file was deleted, notices are refused."""
    return part("notify", "send") or _not_sent


def missing_extra(destinations: Iterable[Destination]) -> str | None:
    """As in notify.py."""
    find: Callable[[Iterable[Destination]], str | None] | None = part("notify", "missing_extra")
    return find(destinations) if find else None


class NoCheckIns:
    """Takes the place of `sentry.CheckIns` if that file was deleted."""

    def monitored(self, spec: JobSpec) -> JobSpec:
        return spec

    def keeps(self, _: object) -> bool:
        return False

    def look(self) -> None:
        pass


def part(module: str, name: str) -> Any:
    """What the file defines under this name; None if the file was deleted."""
    path = f"{__name__}.{module}"
    try:
        return getattr(import_module(path), name)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        return None


def _not_sent(*_: object, **__: object) -> tuple[Answer, str]:
    return Answer.REFUSED, "integrations/notify.py is not there"
