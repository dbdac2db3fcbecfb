"""What a database holds, as something to compare."""

from __future__ import annotations

from supervisor.store.connection import Client

#: Key and digest of each.
DIGESTS = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  found[#found + 1] = key
  found[#found + 1] = redis.sha1hex(redis.call('DUMP', key))
end
return found
"""


def digests(client: Client) -> dict[str, str]:
    found = client.eval(DIGESTS, 0)
    return dict(zip(found[::2], found[1::2], strict=True))
