"""What the steps of a run hand on to each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from supervisor.errors import UnusableReturn

#: Of what a step returns, in characters of JSON: it goes through the ledger.
LARGEST_RETURNED = 4 * 1024 * 1024


class Params(Mapping[str, Any]):
    """Read from the ledger when somebody looks; each look gives a value of its own to change."""

    def __init__(
        self, load: Callable[[], Mapping[str, str]], decode: Callable[[str], Any] = json.loads
    ) -> None:
        self._load = load
        self._decode = decode
        self._loaded: Mapping[str, str] | None = None

    def _texts(self) -> Mapping[str, str]:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def __getitem__(self, name: str) -> Any:
        return self._decode(self._texts()[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts())

    def __len__(self) -> int:
        return len(self._texts())

    def __repr__(self) -> str:
        return f"Params({', '.join(self) if self._loaded is not None else 'not read yet'})"


def handed_on(returned: Any, as_json: Callable[[Any], Any]) -> dict[str, Any] | None:
    """What a step returned, in plain JSON; None unless it is a mapping. Raises UnusableReturn."""
    if not isinstance(returned, Mapping):
        return None
    try:
        plain = dict(as_json(dict(returned)))
        size = len(json.dumps(plain))
    except Exception as error:  # whatever an object's own way into JSON raises
        raise UnusableReturn(f"what the step returned is not JSON: {error}") from error
    if size > LARGEST_RETURNED:
        what = f"{size:,} characters of JSON, {LARGEST_RETURNED:,} are allowed"
        raise UnusableReturn(f"{what}: store the data and return where it is")
    return plain
