"""Where the ledger lives: read once from the environment or the Celery app, then passed down."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.errors import InvalidPrefix

STATE_DIR = Path(".supervisor")

#: `supervisor up` writes the address of its embedded server here, for the other verbs.
URL_FILE = STATE_DIR / "url"

#: The variable of `serve` whose value opens its page and its API.
TOKEN = "SUPERVISOR_TOKEN"

DEFAULT_URL = "redis://127.0.0.1:6379/0"
DEFAULT_PREFIX = "supervisor"

#: It stands in the text of scripts, and in the names of keys that access lists have patterns of.
PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


@dataclass(frozen=True, slots=True)
class Settings:
    """redis_url: the ledger's Redis or Valkey; prefix: what all our keys start with.

    connection: what an app's settings say of the connection beside its address, in Celery's words:
    TLS, a credential provider. Raises InvalidPrefix.
    """

    redis_url: str = field(default=DEFAULT_URL, repr=False)
    prefix: str = DEFAULT_PREFIX
    connection: Mapping[str, Any] = field(
        default_factory=dict, repr=False, compare=False, hash=False
    )

    def __post_init__(self) -> None:
        if not PREFIX.fullmatch(self.prefix):
            raise InvalidPrefix(self.prefix)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], directory: Path = Path()) -> Settings:
        """SUPERVISOR_REDIS_URL, else what `up` runs in `directory`, and SUPERVISOR_PREFIX."""
        return cls(
            redis_url=environ.get("SUPERVISOR_REDIS_URL") or running_url(directory) or DEFAULT_URL,
            prefix=environ.get("SUPERVISOR_PREFIX") or DEFAULT_PREFIX,
        )


def running_url(directory: Path = Path()) -> str | None:
    """The address that a `supervisor up` in `directory` left, or None."""
    try:
        return (directory / URL_FILE).read_text().strip() or None
    except OSError:
        return None
