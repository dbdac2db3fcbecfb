"""The key `ping_url`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from supervisor.job.fields import LONGEST_URL, may_be_address
from supervisor.job.keys import AddressKey, KeyGroup, joined
from supervisor.job.secrets import masked_url


def _ping_url(value: Any) -> str:
    """The address is a secret, which no message repeats."""
    if not isinstance(value, str) or not may_be_address(value):
        raise ValueError("not an address such as https://hc-ping.com/<uuid>")
    return value


PingUrl = Annotated[
    str,
    BeforeValidator(_ping_url),
    WithJsonSchema({"type": "string", "pattern": r"^(https?://|\$\{)", "maxLength": LONGEST_URL}),
]


class PingKeys(KeyGroup):
    ping_url: Annotated[PingUrl | None, Field(repr=False)] = None
    """Where starts and ends of runs are reported, as healthchecks.io expects them; a secret."""

    @property
    def own_rules(self) -> dict[str, str]:
        return joined(super().own_rules, {"ping": "ping" if self.ping_url else ""})


ADDRESS_KEY = AddressKey("ping_url", texts=lambda url: url, mask=masked_url)
