"""What a feature says of the keys that it adds to a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict


class KeyGroup(BaseModel):
    """Some keys of a job. A feature has a class of these; JobSpec inherits all that are listed."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @property
    def own_rules(self) -> dict[str, str]:
        """Rules of a run that these keys make, each a list of words; those of another feature with
        the same name add their words."""
        return {}


def joined(rules: dict[str, str], own: dict[str, str]) -> dict[str, str]:
    """The rules with the words of a feature added."""
    words = {name: f"{word} {rules.get(name, '')}".strip() for name, word in own.items()}
    return {**rules, **words}


@dataclass(frozen=True, slots=True)
class AddressKey:
    """A key with addresses, which are secrets and may be references to such."""

    key: str

    texts: Callable[[Any], Any]
    """Those of its value that may have references."""

    mask: Callable[[Any], Any]
    """What may be shown of the value, as a schedule file has it."""
