"""Who may do what: the roles, what each route takes, and the file that gives roles to visitors:
tokens by their digests, and people whom a proxy names.

    anonymous: viewer                      # or none; of this machine, on a loopback address
    tokens:
      - {name: prometheus, role: viewer, hash: "sha256:..."}
      - {name: billing, role: operator, hash: "sha256:..."}
    proxy:
      hash: "sha256:..."                   # of the secret that the proxy sends with each request
      people:                              # the first that fits counts
        - {user: ada@example.com, role: editor}
        - {group: ops, role: operator}

There is no secret in it. Tokens are 256 random bits, which cannot be guessed, however quick the
digest; a slow one would be computed for each request, also for requests without a valid token.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from starlette.datastructures import Headers

from supervisor.catalog import faults
from supervisor.catalog.faults import EXPECTED
from supervisor.catalog.yaml_source import UnusableFile, YamlDocument, read, text_of
from supervisor.errors import AccessFileInvalid, Problem, closest, shown
from supervisor.logs import get_logger

log = get_logger("supervisor.web")

#: Names that stand for visitors outside the file.
OWN_NAMES = ("token", "anonymous")

NAME = r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}"


def is_name(text: str) -> bool:
    return re.fullmatch(NAME, text) is not None


Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")]
Text = Annotated[str, Field(min_length=1, max_length=200)]


# The roles; needs.py says which of them each route takes.


class Role(StrEnum):
    """Each role may also do what the roles before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    EDITOR = "editor"

    def includes(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


# The file.


class AccessEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Token(AccessEntry):
    role: Role
    name: Annotated[str, Field(pattern=rf"^{NAME}$")]
    hash: Digest


class Person(AccessEntry):
    """One user or one group."""

    role: Role

    user: Text | None = None
    """A name, or * for all."""

    group: Text | None = None

    def fits(self, user: str, groups: Sequence[str]) -> bool:
        return self.user in ("*", user) or self.group in groups


class Proxy(AccessEntry):
    """A proxy that authenticates its visitors, and the names of its headers."""

    hash: Digest
    people: tuple[Person, ...]
    secret_header: HeaderName = "X-Supervisor-Proxy"
    user_header: HeaderName = "X-Forwarded-User"
    groups_header: HeaderName = "X-Forwarded-Groups"
    sign_out: Text | None = None

    def sent(self, headers: Headers) -> bool:
        """Whether the proxy sent the request: only the proxy has the secret."""
        secret = texts(headers, self.secret_header)
        return len(secret) == 1 and is_same(f"sha256:{digest(secret[0])}", self.hash)

    def user(self, headers: Headers) -> str:
        """The user; empty if the proxy names none, or several."""
        named = texts(headers, self.user_header)
        return named[0].strip() if len(named) == 1 else ""

    def role(self, headers: Headers) -> Role | None:
        """The role of the first person that fits."""
        user = self.user(headers)
        lists = texts(headers, self.groups_header)
        groups = [group.strip() for group in ",".join(lists).split(",")]
        fitting = (person.role for person in self.people if person.fits(user, groups))
        return next(fitting, None)


def texts(headers: Headers, name: str) -> list[str]:
    """The values of a header. Proxies send UTF-8, which Starlette reads as Latin-1."""
    sent = [value.encode("latin-1") for value in headers.getlist(name)]
    return [value.decode(errors="replace") for value in sent]


class Policy(AccessEntry):
    anonymous: Literal["viewer", "none"] = "viewer"
    tokens: tuple[Token, ...] = ()
    proxy: Proxy | None = None


NO_FILE = Policy()


# Reading it: all problems at once, each with its line.

HINTS = {
    "hash": "as `supervisor token new` prints it",
    "name": "letters, digits and _ . @ - only, at most 100, a letter or digit first",
}


def policy_in(path: Path) -> Policy:
    """Raises AccessFileInvalid."""
    try:
        document = read(text_of(path))
    except UnusableFile as error:
        raise AccessFileInvalid([Problem(str(path), error.line, None, error.what)]) from None
    if document.faults:
        raise AccessFileInvalid(
            [Problem(str(path), f.line, None, f.what, f.hint) for f in document.faults]
        )
    try:
        policy = Policy.model_validate({} if document.data is None else document.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise AccessFileInvalid([problem(path, document, detail) for detail in details]) from None
    if problems := list(contradictions(path, document, policy)):
        raise AccessFileInvalid(problems)
    return policy


def problem(path: Path, document: YamlDocument, detail: ErrorDetails) -> Problem:
    place, key = detail["loc"], str(detail["loc"][-1]) if detail["loc"] else "the file"
    what, hint = f"{key!r}: {shown(detail['input'])} is not valid", HINTS.get(key)
    if detail["type"] == "extra_forbidden":
        what, hint = f"unknown key {key!r}", closest(key, keys_of(place))
    elif detail["type"] == "missing":
        what, hint = f"{key!r} is missing", None
    elif detail["type"] in ("enum", "literal_error"):
        what = f"{key!r}: {shown(detail['input'])} is not {detail['ctx']['expected']}"
        hint = closest(detail["input"], [role.value for role in Role])
    elif (kind := detail["type"]) in EXPECTED and key not in HINTS:
        what, hint = f"{key!r}: {shown(detail['input'])} {EXPECTED[kind]}", faults.HINTS.get(kind)
    return Problem(str(path), document.line_of(place), None, what, hint)


def keys_of(place: Sequence[str | int]) -> Iterable[str]:
    """The keys of the mapping in which this key stands."""
    models: dict[str | int, type[AccessEntry]] = {"tokens": Token, "people": Person, "proxy": Proxy}
    parts = [models[part] for part in place[:-1] if part in models]
    return [*(parts[-1] if parts else Policy).model_fields]


def contradictions(path: Path, document: YamlDocument, policy: Policy) -> Iterator[Problem]:
    for key in ("name", "hash"):
        seen: dict[str, int] = {}
        for number, token in enumerate(policy.tokens):
            line = document.line_of(("tokens", number, key))
            value = getattr(token, key)
            if value in OWN_NAMES:
                yield Problem(str(path), line, None, f"the name {value!r} is taken", "another")
            if value in seen:
                what = f"{key!r}: two tokens have the same"
                yield Problem(str(path), line, None, what, f"first on line {seen[value]}")
            seen.setdefault(value, line)
    for number, person in enumerate(policy.proxy.people if policy.proxy else ()):
        if (person.user is None) == (person.group is None):
            line = document.line_of(("proxy", "people", number))
            yield Problem(str(path), line, None, "give a user or a group", "one of the two")


#: Seconds between two checks for a changed file.
CHECK_SECONDS = 1.0

STILL_IN_FORCE = "the previous version stays in force"


class AccessFile:
    """The policy as the file has it. One with problems changes nothing, is logged once, and makes
    the file invalid (`supervisor_access_file_valid`) until it is corrected."""

    def __init__(self, path: Path) -> None:
        """Raises AccessFileInvalid."""
        self._path = path
        self._version = version_of(path)
        self._checked_at = time.monotonic()
        self._policy = policy_in(path)
        self.is_valid = True

    @property
    def policy(self) -> Policy:
        if time.monotonic() - self._checked_at >= CHECK_SECONDS:
            self._check()
        return self._policy

    def _check(self) -> None:
        self._checked_at = time.monotonic()
        version = version_of(self._path)
        if version == self._version:
            return
        self._version = version
        try:
            self._policy = policy_in(self._path)
        except AccessFileInvalid as error:
            self.is_valid = False
            problems = [str(problem) for problem in error.problems]
            log.error("access file refused", problems=problems, hint=STILL_IN_FORCE)
            return
        self.is_valid = True
        log.info("access file loaded", tokens=len(self._policy.tokens))


def version_of(path: Path) -> tuple[int, ...] | None:
    """Changes with the file, and as it is given another owner or mode."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size


# Tokens.


def digest(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()


def is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def new_token() -> str:
    """256 random bits."""
    return f"sup_{secrets.token_urlsafe(32)}"


def line_for(token: str, name: str, role: Role) -> str:
    """The token's line in the list `tokens` of the file."""
    return f'- {{name: {name}, role: {role}, hash: "sha256:{digest(token)}"}}'
