"""The access file of the tests, and what its visitors send."""

from __future__ import annotations

from pathlib import Path

from supervisor.web.access import Access
from supervisor.web.access_file import AccessFile, digest
from tests.tools.web.visits import TOKEN

SECRET = "what only the proxy of the tests knows"

#: Name of each token -> its text.
TOKENS = {name: f"the token of {name} in the tests" for name in ("reads", "acts", "edits")}

FILE = f"""\
tokens:
  - {{name: reads, role: viewer, hash: "sha256:{digest(TOKENS["reads"])}"}}
  - {{name: acts, role: operator, hash: "sha256:{digest(TOKENS["acts"])}"}}
  - {{name: edits, role: editor, hash: "sha256:{digest(TOKENS["edits"])}"}}
proxy:
  hash: "sha256:{digest(SECRET)}"
  people:
    - {{user: eve, role: editor}}
    - {{user: jürgen, role: editor}}
    - {{group: ops, role: operator}}
    - {{group: 運用, role: operator}}
    - {{group: billing, role: viewer}}
"""


def access_of(directory: Path, *, is_local: bool = True, text: str = FILE) -> Access:
    path = directory / "access.yaml"
    path.write_text(text)
    return Access(TOKEN, is_local, AccessFile(path))


def bearing(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[name]}"}


def named_by_the_proxy(user: str, groups: str = "") -> dict[str, str | bytes]:
    return {
        "x-supervisor-proxy": SECRET,
        "x-forwarded-user": user.encode(),
        "x-forwarded-groups": groups.encode(),
        "sec-fetch-site": "same-origin",
        "accept": "text/html",
    }
