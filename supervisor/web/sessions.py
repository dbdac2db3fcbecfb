"""Sessions of browsers: a cookie, and a key in the address of all their pages. Nothing is stored.

1. A browser sends a cookie to every port of a host, so that other servers of the machine could have
   it. Hence a session takes two secrets that go different ways: the cookie, and the key in the
   address, ``/s/<key>/...``. Neither allows anything alone.
2. The cookie's path is that address: browsers send it to no other one, on whatever port.
3. The cookie is ``<end>.<nonce>.<signature>``, signed with an HMAC under the server's token; the
   key is another HMAC, of the cookie. So neither contains the token, and another token ends all
   sessions.
"""

from __future__ import annotations

import hmac
import secrets
from datetime import datetime, timedelta

COOKIE = "supervisor_session"

#: What the addresses of all sessions begin with.
ROOTS = "/s/"

SESSION_TTL = timedelta(hours=12)


def new_session(token: str, now: datetime) -> str:
    end = round((now + SESSION_TTL).timestamp())
    facts = f"{end}.{secrets.token_urlsafe(12)}"
    return f"{facts}.{signature(token, 'session', facts)}"


def is_session(token: str, cookie: str, now: datetime) -> bool:
    facts, _, signed = cookie.rpartition(".")
    end = facts.partition(".")[0]
    if not is_same(signed, signature(token, "session", facts)):
        return False
    return now.timestamp() < int(end)


def root_of(token: str, cookie: str) -> str:
    """What the addresses of a session's pages begin with."""
    return f"{ROOTS}{signature(token, 'key', cookie)[:32]}"


def is_root(token: str, cookie: str, root: str) -> bool:
    return is_same(root, root_of(token, cookie))


def split_root(path: str) -> tuple[str, str]:
    """The beginning that sessions' addresses have, whosever it is, and the path behind it."""
    if not path.startswith(ROOTS):
        return "", path
    key, _, rest = path.removeprefix(ROOTS).partition("/")
    return f"{ROOTS}{key}", f"/{rest}"


def is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def signature(token: str, purpose: str, text: str) -> str:
    message = f"{purpose}:{text}".encode(errors="replace")
    return hmac.new(token.encode(), message, "sha256").hexdigest()
