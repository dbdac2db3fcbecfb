"""The key `sentry_monitor`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from supervisor.job.keys import AddressKey, KeyGroup, joined

#: As Sentry allows for slugs of monitors; it takes a slug of digits alone for an id.
MonitorSlug = (
    Annotated[bool, Field(strict=True)]
    | Annotated[str, Field(pattern=r"^[0-9]*[a-z_-][a-z0-9_-]*$", max_length=50)]
)


class SentryKeys(KeyGroup):
    sentry_monitor: MonitorSlug | None = None
    """true or a slug: runs check in at Sentry Crons; false: they do not, whatever the app sets."""

    @property
    def own_rules(self) -> dict[str, str]:
        return joined(super().own_rules, {"ping": "check_in" if self.sentry_monitor else ""})


#: The address of Sentry is the app's own.
ADDRESS_KEY = AddressKey("sentry_monitor", texts=lambda _: None, mask=lambda monitor: monitor)
