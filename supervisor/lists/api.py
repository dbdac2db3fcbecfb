"""The operations of the JSON API that features add."""

from __future__ import annotations

from supervisor.features.notices import api as notices
from supervisor.web.operations import Operations


class FeatureOperations(
    notices.SilenceOperations,
    Operations,
):
    """Those of all features: Api inherits them."""
