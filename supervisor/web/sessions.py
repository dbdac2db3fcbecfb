"""Sessions of browsers: a cookie, and a key in the address of all their pages.

1. A browser sends a cookie to every port of a host, so other servers on the machine could read
   it. So a session takes two secrets that go different ways: the cookie, and the key in the
   address, ``/s/<key>/...``. Neither allows anything alone.
2. The cookie's path is that address: browsers send it to no other one, on whatever port.
3. Both are random. The ledger has their digests, so that whoever reads it has no session, and every
   server on it knows who has logged out.
4. With them lies who logged in, and a seal that only this cookie and the same token make: a token
   that is changed or taken away has no sessions any more. The role is looked up at each request.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from supervisor.ledger.ledger import Ledger
from supervisor.times import to_ms

COOKIE = "supervisor_session"

#: The addresses of all sessions begin with this.
ROOTS = "/s/"

SESSION_TTL = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class Session:
    """Both secrets of one that has begun."""

    cookie: str
    key: str

    @property
    def root(self) -> str:
        """What the addresses of its pages begin with."""
        return ROOTS + self.key


class Sessions:
    def __init__(self, ledger: Ledger) -> None:
        self._client = ledger.client
        self._keys = ledger.keys

    def begin(self, name: str, token_digest: str) -> Session:
        """name: of the token that was shown."""
        session = Session(secrets.token_urlsafe(32), secrets.token_hex(16))
        facts = {
            "name": name,
            "key": digest(session.key),
            "seal": seal(session.cookie, token_digest),
        }
        self._client.set(self._place(session.cookie), json.dumps(facts), px=to_ms(SESSION_TTL))
        return session

    def name(self, cookie: str, root: str, digest_of: Callable[[str], str | None]) -> str | None:
        """Who has the session; None without one. root: what the address of the request begins with.

        digest_of: the digest of the token of that name, if there is one.
        """
        text = self._client.get(self._place(cookie))
        if text is None:
            return None
        facts = json.loads(text)
        token_digest = digest_of(facts["name"])
        is_valid = (
            token_digest is not None
            and is_same(digest(root.removeprefix(ROOTS)), facts["key"])
            and is_same(seal(cookie, token_digest), facts["seal"])
        )
        return str(facts["name"]) if is_valid else None

    def end(self, cookie: str) -> None:
        self._client.delete(self._place(cookie))

    def _place(self, cookie: str) -> str:
        return self._keys.session(digest(cookie))


def digest(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()


def seal(cookie: str, token_digest: str) -> str:
    return hmac.new(cookie.encode(errors="replace"), token_digest.encode(), "sha256").hexdigest()


def is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def split_root(path: str) -> tuple[str, str]:
    """The root of a session, of any browser, and the path below it."""
    if not path.startswith(ROOTS):
        return "", path
    key, _, rest = path.removeprefix(ROOTS).partition("/")
    return f"{ROOTS}{key}", f"/{rest}"
