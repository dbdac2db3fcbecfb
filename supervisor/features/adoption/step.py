"""Adoption's part of beat. The rest is imported only if the app adopts, or did once."""

from __future__ import annotations

from datetime import datetime

from supervisor.beat.turn import BeatContext, Part
from supervisor.features.adoption import DJANGO
from supervisor.job.changes import register
from supervisor.ledger.job_record import REDBEAT


def part(beat: BeatContext) -> Part:
    """Follows what `adopt_entries` and `adopt_rows` name, and gives back what they name no more."""
    settings = beat.app.supervisor  # type: ignore[attr-defined]
    if settings["adopt_rows"]:
        from supervisor.features.adoption.django_rows import CeleryBeatRows

        register(CeleryBeatRows(beat.app))
    if not settings["adopt_entries"]:
        return Part(begin=lambda _at, _is_first: give_back(beat))
    from supervisor.features.adoption.adopted import Adopted

    adopted = Adopted(beat.app, beat.ledger, beat.entries, is_on=True)

    def begin(_at: datetime, _is_first: bool) -> None:
        adopted.begin()
        give_back(beat)

    return Part(emit=(adopted,), begin=begin)


def give_back(beat: BeatContext) -> None:
    """Removes the jobs of entries or rows that the app adopts no more."""
    settings = beat.app.supervisor  # type: ignore[attr-defined]
    sources = {origin.source for origin in beat.ledger.origins().values()}
    if REDBEAT in sources and not settings["adopt_entries"]:
        from supervisor.features.adoption.adopted import Adopted

        Adopted(beat.app, beat.ledger, beat.entries, is_on=False).begin()
    if DJANGO in sources and not settings["adopt_rows"]:
        from supervisor.features.adoption.django_rows import forget_rows

        forget_rows(beat.ledger, beat.entries)
