"""archive-report: a little slower than its interval, so that ticks are re-queued."""

from __future__ import annotations

import itertools
import json
import lzma
from typing import Any

from celery import shared_task

from examples.pacing import spread
from examples.storage import database, directory, write_atomically
from examples.witness import witness

#: Ways to compress: presets, literal context bits, position bits.
TRIALS = tuple(itertools.product(range(1, 7), range(5), (0, 2)))

#: Bounds what one trial may allocate, whatever its preset says.
DICTIONARY_BYTES = 1 << 18


@shared_task(name="examples.archive_report")
def archive_report(seconds: float = 6) -> int:
    """Keeps the last samples in the smallest form that LZMA knows; returns its size in bytes."""
    with witness("archive-report"):
        archive = smallest(_recent_samples(), seconds)
        write_atomically(directory() / "samples.json.xz", archive)
        return len(archive)


def smallest(content: bytes, seconds: float) -> bytes:
    """The best of all trials, tried one after the other over `seconds`."""
    attempts = (_compress(content, *trial) for trial in spread(TRIALS, seconds))
    return min(attempts, key=len)


def _compress(content: bytes, preset: int, lc: int, pb: int) -> bytes:
    trial: dict[str, Any] = {"id": lzma.FILTER_LZMA2, "preset": preset, "lc": lc, "lp": 0, "pb": pb}
    return lzma.compress(content, filters=[trial | {"dict_size": DICTIONARY_BYTES}])


def _recent_samples() -> bytes:
    with database() as db:
        rows = db.execute(
            "SELECT sampled_at, load, cpu, memory FROM samples ORDER BY id DESC LIMIT 600"
        )
        return json.dumps(rows.fetchall()).encode()
