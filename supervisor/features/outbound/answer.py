"""What became of something that was sent."""

from __future__ import annotations

from enum import StrEnum


class Answer(StrEnum):
    """refused: trying again would not help. unavailable: it may.

    unwanted: it was not sent: there is no address for it any more, or not one for what is like it.
    """

    TAKEN = "taken"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    UNWANTED = "unwanted"
