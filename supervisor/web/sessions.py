"""Sessions of browsers: a signed cookie, and the token of its forms. Nothing is stored.

The cookie is ``<end>.<nonce>.<signature>``; the signature is an HMAC under the server's token, so
that the cookie does not contain it. Another token ends all sessions.
"""

from __future__ import annotations

import hmac
import secrets
from datetime import datetime, timedelta

COOKIE = "supervisor_session"

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


def form_token(token: str, cookie: str) -> str:
    """What the forms of a session carry: a page of another site can neither read nor guess it."""
    return signature(token, "form", cookie)


def is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def signature(token: str, purpose: str, text: str) -> str:
    message = f"{purpose}:{text}".encode(errors="replace")
    return hmac.new(token.encode(), message, "sha256").hexdigest()
