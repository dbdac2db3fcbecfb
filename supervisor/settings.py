"""Settings, read once from the environment or the app."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.errors import NotConfigured

STATE_DIR = Path(".supervisor")

#: `supervisor up` writes the address of its embedded server here, for the other commands.
URL_FILE = STATE_DIR / "url"

#: The variable of `serve` whose value opens its page and its API.
TOKEN = "SUPERVISOR_TOKEN"

#: The variables with the file of further tokens, and with the path at which a proxy serves it.
ACCESS_FILE = "SUPERVISOR_ACCESS_FILE"
ROOT_PATH = "SUPERVISOR_ROOT_PATH"

#: Where notices go that are about no job.
NOTIFY = "SUPERVISOR_NOTIFY"
#: How long a notice waits for others of its kind and cause, such as 30s.
NOTIFY_WAIT = "SUPERVISOR_NOTIFY_WAIT"
#: When the summary of the day before is sent, and whose days those are: 07:00 Europe/Berlin.
NOTIFY_DAILY = "SUPERVISOR_NOTIFY_DAILY"

#: Where people see the service, for the links in notices.
PAGE_URL = "SUPERVISOR_PAGE_URL"

#: What the pages are headed with, such as production.
INSTALLATION = "SUPERVISOR_NAME"

#: Signs webhooks that have no secret of their own.
NOTIFY_SECRET = "SUPERVISOR_NOTIFY_SECRET"

DEFAULT_URL = "redis://127.0.0.1:6379/0"
DEFAULT_PREFIX = "supervisor"

#: It becomes part of the text of the functions, and of the patterns of keys in access lists.
PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where a ledger is. Raises NotConfigured."""

    redis_url: str = field(default=DEFAULT_URL, repr=False)
    """Of Redis or Valkey."""

    prefix: str = DEFAULT_PREFIX
    """What all keys of the ledger begin with."""

    connection: Mapping[str, Any] = field(
        default_factory=dict, repr=False, compare=False, hash=False
    )
    """The app's further options, under Celery's names, such as TLS or a credential provider."""

    def __post_init__(self) -> None:
        if not PREFIX.fullmatch(self.prefix):
            prefix = self.prefix if len(self.prefix) <= 100 else f"{self.prefix[:100]}..."
            raise NotConfigured(
                f"{prefix!r} cannot be the prefix of the ledger's keys: it has 1 to 100 letters,"
                " digits and _ . : - (SUPERVISOR_PREFIX, or `prefix` of supervise())"
            )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], directory: Path = Path()) -> Settings:
        """From SUPERVISOR_REDIS_URL, or else from `up` in `directory`, and SUPERVISOR_PREFIX."""
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
