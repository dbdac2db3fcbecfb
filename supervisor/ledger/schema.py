"""The ledger's schema: one number for what its keys mean, kept in the ledger itself.

1. The first script that meets a ledger without the number writes that of its own code.
2. Every script that writes compares first (schema.lua), and changes nothing in a ledger of another
   number. So it is also with a process whose ledger is upgraded while it runs, and there is no
   moment in between.
3. Workers and beats hear of it with the next call that says that they are there, and stop.

How an older ledger becomes a newer one: migrations.py.
"""

from __future__ import annotations

from redis.exceptions import ResponseError

from supervisor.errors import WrongSchema
from supervisor.ledger.connection import Client, NotWritable
from supervisor.ledger.keys import Keys

#: What this code reads and writes.
SCHEMA = 1

MISMATCH = "WRONGSCHEMA "


def guard_text(check: str) -> str:
    """What a script that writes begins with: the comparison, which is schema.lua."""
    return f"local SCHEMA = {SCHEMA}\n{check}"


def mismatch(reply: object) -> WrongSchema | None:
    """What a script said that found a ledger of another schema; None of any other reply."""
    if isinstance(reply, ResponseError) and str(reply).startswith(MISMATCH):
        return WrongSchema(int(str(reply).removeprefix(MISMATCH)), SCHEMA)
    return None


def refused(error: ResponseError) -> Exception:
    """`error`, or what callers know: another schema, or a server that is as good as away."""
    if str(error).startswith(NotWritable.CODES):
        return NotWritable(str(error))
    return mismatch(error) or error


def check_schema(client: Client, keys: Keys) -> None:
    """For who writes without a script. Raises WrongSchema."""
    found = client.get(keys.schema)
    if found is not None and int(found) != SCHEMA:
        raise WrongSchema(int(found), SCHEMA)
