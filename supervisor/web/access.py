"""Who may do what at this server: a policy made once from its address and its token.

1. Bound to a loopback address, everybody on this machine may read. Anybody's web page could ask a
   browser here to do so under a name of its own, so only loopback names are answered to.
2. Bound to any other address, or behind a proxy, reading takes the token, under whatever name.
3. Acting takes the token everywhere: without one there are no actions, and no server of rule 2.

A program shows the token itself (``Authorization: Bearer``), a browser the cookie of a session.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from ipaddress import ip_address

from supervisor.errors import NotConfigured

SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Access:
    """token: the secret, if there is one. is_local: only this machine reaches the server."""

    token: str | None = None
    is_local: bool = True

    @classmethod
    def of(cls, host: str, token: str | None, *, is_proxied: bool = False) -> Access:
        """Raises NotConfigured where the address asks for a token that is not there, or is weak."""
        is_local = is_loopback(host) and not is_proxied
        if token is None and not is_local:
            raise NotConfigured(
                f"{host} {'behind a proxy ' if is_proxied else ''}is for others than this machine: "
                "set SUPERVISOR_TOKEN to a secret, or "
                + ("leave --proxied out" if is_proxied else "listen on 127.0.0.1")
            )
        if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii()):
            raise NotConfigured(
                f"SUPERVISOR_TOKEN is no secret: it takes {SHORTEST_TOKEN} ASCII characters or more"
            )
        return cls(token, is_local)

    @property
    def has_actions(self) -> bool:
        return self.token is not None

    def answers_to(self, host: str) -> bool:
        """`host`: the Host header of a request."""
        return not self.is_local or is_loopback(without_port(host))

    def is_token(self, given: str) -> bool:
        if self.token is None:
            return False
        return hmac.compare_digest(given.encode(), self.token.encode())


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def without_port(host: str) -> str:
    """``127.0.0.1:9809`` and ``[::1]:9809`` without the port and the brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
