"""The jobs that RedBeat keeps in Redis, whoever put them there.

All keys of its sorted set are read, also those that are never due again, and each is decoded by
RedBeat's own decoder. The entries that this product keeps there are of schedule files already.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from datetime import datetime

from celery import Celery
from redbeat.schedulers import RedBeatSchedulerEntry, ensure_conf, get_redis

from supervisor.beat.entries import SPEC_FIELD
from supervisor.celery_import.entries import Entry, translate
from supervisor.importing.found import Item, LeftOut
from supervisor.ledger.connection import Client

#: How many entries are asked for in one round trip.
BATCH = 500


def read_redbeat(app: Celery, now: datetime) -> list[Item]:
    with warnings.catch_warnings():
        # An app that does not say where RedBeat's Redis is means its broker, as RedBeat does.
        warnings.simplefilter("ignore", DeprecationWarning)
        conf = ensure_conf(app)
    entries = sorted(_entries(get_redis(app), conf.schedule_key))
    return [
        _item(key.removeprefix(conf.key_prefix), definition, app, now)
        for key, definition, spec in entries
        if spec is None
    ]


def _entries(client: Client, schedule_key: str) -> Iterator[tuple[str, str | None, str | None]]:
    """Key, definition and the field that only this product's entries have."""
    keys = client.zrange(schedule_key, 0, -1)
    for start in range(0, len(keys), BATCH):
        batch = keys[start : start + BATCH]
        with client.pipeline(transaction=False) as pipe:
            for key in batch:
                pipe.hmget(key, "definition", SPEC_FIELD)
            for key, (definition, spec) in zip(batch, pipe.execute(), strict=True):
                yield key, definition, spec


def _item(name: str, definition: str | None, app: Celery, now: datetime) -> Item:
    source = f"redbeat {name!r}"
    if not definition:
        return LeftOut(source, "Redis has its key, but no definition")
    try:
        fields = dict(RedBeatSchedulerEntry.decode_definition(definition))
    except Exception as error:  # noqa: BLE001 - its decoder builds objects out of what it finds
        return LeftOut(source, f"RedBeat cannot decode it: {error}", [definition])
    return translate(Entry(source, name, fields), app, now)
