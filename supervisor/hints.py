"""What a word that is not known was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint such as `` (did you mean 'overlap'?)``, or nothing when no known word is close."""
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def closest(word: object, known: Iterable[str]) -> str | None:
    """The hint of `did_you_mean`, for a problem that prints its own brackets."""
    hint = did_you_mean(word, known) if isinstance(word, str) else ""
    return hint.removeprefix(" (").removesuffix(")") or None
