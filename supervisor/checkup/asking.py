"""Asks Redis what the user may not be allowed to ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import NoPermissionError

T = TypeVar("T")


class Asking:
    """`forbidden`: what Redis said, once for each of its words, to questions it did not answer."""

    def __init__(self) -> None:
        self.forbidden: list[str] = []

    def ask(self, question: Callable[[], T], otherwise: T) -> T:
        try:
            return question()
        except NoPermissionError as error:
            if str(error) not in self.forbidden:
                self.forbidden.append(str(error))
            return otherwise
