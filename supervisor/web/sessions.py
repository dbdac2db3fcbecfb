"""Sessions of browsers, and the tokens of their forms: signed, and valid for twelve hours.

1. A session is a signed cookie with the name of the token that was shown. Beside the name stands a
   seal of that token: changing or removing a token ends its sessions. The role is looked up at each
   request.
2. The key that signs is random. The first login makes it, and the ledger keeps it, so that a
   session is one for every server of the ledger.
3. A logout is kept until the session would have ended, so that it holds for every server.
4. Each form has a token against requests of other sites (CSRF), signed for its visitor alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any

from itsdangerous import BadData, Signer, URLSafeTimedSerializer

from supervisor.ledger.ledger import Ledger
from supervisor.times import to_ms
from supervisor.web.access_file import Token

COOKIE = "supervisor_session"

SESSION_TTL = timedelta(hours=12)
TTL_SECONDS = round(SESSION_TTL.total_seconds())


@dataclass(frozen=True, slots=True)
class Session:
    name: str
    """Of the token that was shown."""

    id: str
    """A random one."""


@dataclass(frozen=True, slots=True)
class FormToken:
    """Signs the forms of one visitor."""

    key: str
    """That of the sessions."""

    visitor: str
    """A session or a person."""

    @property
    def text(self) -> str:
        return serializer(self.key, "form").dumps(self.visitor)

    def fits(self, text: str) -> bool:
        return bool(loaded(self.key, "form", text) == self.visitor)


class Sessions:
    def __init__(self, ledger: Ledger) -> None:
        self._client = ledger.client
        self._keys = ledger.keys

    def key(self) -> str:
        """The key that signs; it is made now if there is none."""
        place = self._keys.session_key
        if key := self._client.get(place):
            return key
        # Another server may make one at the same time: the first one counts.
        self._client.execute_command("SET", place, secrets.token_urlsafe(32), "NX")
        return self._client.get(place) or secrets.token_urlsafe(32)

    def begin(self, token: Token) -> str:
        """The cookie of a new session. token: that was shown."""
        key = self.key()
        fields = {"name": token.name, "id": secrets.token_hex(16), "seal": seal_of(key, token)}
        return serializer(key, "session").dumps(fields)

    def read(self, key: str, cookie: str, named: Callable[[str], Token | None]) -> Session | None:
        """The session of this cookie; None if it is over, or was never one.

        named: the token of that name, if there is one.
        """
        fields = loaded(key, "session", cookie)
        if fields is None:
            return None
        token = named(fields["name"])
        if token is None or seal_of(key, token) != fields["seal"]:
            return None
        if self._client.get(self._keys.session_ended(fields["id"])):
            return None
        return Session(fields["name"], fields["id"])

    def end(self, session: Session) -> None:
        self._client.set(self._keys.session_ended(session.id), 1, px=to_ms(SESSION_TTL))


def serializer(key: str, purpose: str) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(key, salt=purpose, signer_kwargs={"digest_method": sha256})


def loaded(key: str, purpose: str, text: str) -> Any:
    """What was signed with this key for this purpose; None for anything else."""
    try:
        return serializer(key, purpose).loads(text, max_age=TTL_SECONDS)
    except BadData:
        return None


def seal_of(key: str, token: Token) -> str:
    """Shows which token it was only to a process that has the key and the token."""
    return Signer(key, salt="seal", digest_method=sha256).get_signature(token.hash).decode()
