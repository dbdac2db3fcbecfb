"""How a ledger that an older version wrote becomes what this version writes.

1. A beat or a worker that starts looks at the ledger's schema, and makes the steps that lack.
2. A step is one script, which writes the new number as well: it was made or it was not, and it is
   made once, however many processes start together. What an error in a script has written already
   stays: a step has to bear that it is made again.
3. While a process is there that runs the older code nothing is upgraded: it could not report how
   its runs end. Who is there at an older ledger runs older code, for newer code would have upgraded
   it or not have started.
"""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.errors import UpgradeBlocked, WrongSchema
from supervisor.ledger.connection import Client
from supervisor.ledger.functions import SCHEMA
from supervisor.ledger.keys import Keys
from supervisor.ledger.presence import Presences
from supervisor.ledger.reads import Readings
from supervisor.ledger.replies import ms_of

#: From a schema to the next: the text of a script that has the keys as `K`, as all functions do. A
#: change needs one, and a new `SCHEMA`, if either version would misread what the other has written.
MIGRATIONS: Mapping[int, str] = {}


def upgrade(
    client: Client, keys: Keys, to: int = SCHEMA, migrations: Mapping[int, str] = MIGRATIONS
) -> list[int]:
    """Brings the ledger to schema `to`, if it is not; gives the schemas that it was brought to.

    Raises WrongSchema when the ledger is newer, UpgradeBlocked while processes use it as it is.
    """
    passed = []
    while (found := int(client.get(keys.schema) or to)) != to:
        if found > to:
            raise WrongSchema(found, to)
        roll = Presences(client, keys).roll()
        if roll.present:
            # For `doctor` of the older version, which would find nothing wrong.
            wanted = {"upgrade_to": to, "upgrade_at": ms_of(Readings(client, keys).now())}
            client.hset(keys.beat, mapping=wanted)
            raise UpgradeBlocked(found, to, [present.facts.name for present in roll.present])
        text = (
            f"if redis.call('GET', K.schema) ~= '{found}' then return 0 end\n"
            f"do\n{migrations[found]}\nend\n"
            f"redis.call('SET', K.schema, {found + 1})\nreturn 1"
        )
        if client.eval(keys.lua() + text, 0):
            passed.append(found + 1)
    return passed
