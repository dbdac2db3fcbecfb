"""The keys of a job that features add, and those of the core that do nothing without a feature."""

from __future__ import annotations

from supervisor.features import adoption, following, run_log
from supervisor.features.notices import keys as notices
from supervisor.features.pings import keys as pings
from supervisor.features.sentry import keys as sentry
from supervisor.job.keys import AddressKey, KeyGroup


class FeatureKeys(
    notices.NoticeKeys,
    pings.PingKeys,
    sentry.SentryKeys,
    KeyGroup,
):
    """Those of all features: JobSpec inherits them."""


#: Keys that the core has and a feature gives a meaning: those of `job.spec.OF_FEATURES` that are
#: not here are unknown in a schedule file.
OFFERED: list[tuple[str, ...]] = [
    adoption.KEYS,
    following.KEYS,
    run_log.KEYS,
]

#: Keys with addresses, which are secrets.
ADDRESSES: dict[str, AddressKey] = {
    key.key: key
    for key in (
        notices.ADDRESS_KEY,
        pings.ADDRESS_KEY,
        sentry.ADDRESS_KEY,
    )
}
