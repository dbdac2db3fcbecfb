"""The transitions of the ledger as one library of Redis Functions, and the scripts that only read.

1. The library is the keys of keys.py, the numbers of limits.py, what the transitions share
   (SHARED), what features do at the moments of hooks.lua (HOOKS), and one function for each file
   of TRANSITIONS, which is called with its KEYS and ARGV.
2. The name of the library, and of each function, has a digest of the text: processes of two
   versions on one server, as in an upgrade, call functions of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain

from supervisor.ledger import limits
from supervisor.store.keys import Keys

#: What the transitions share, in the order in which one file builds on another.
SHARED = (
    *("base", "hooks", "accounts", "records", "messages"),
    *("slots", "attempts", "ends", "comebacks", "placing"),
)

#: What features do at the moments of hooks.lua, by the folder of their files.
HOOKS = {
    "ledger": ("stages",),
    "features/days": ("outcomes",),
    "features/following": ("followers",),
    "features/outbound": ("waiting", "reports"),
    "features/notices": ("events", "watched"),
    "features/summary": ("counts",),
}

#: The functions of the library, by the folder of their files in the package. Those of a feature can
#: be deleted with it.
TRANSITIONS = {
    "ledger": (
        *("act", "admit", "begin", "cancel", "drain", "expand", "fill", "finish", "keep_messages"),
        *(
            "load",
            "poll",
            "next",
            "note_content",
            "note_ending",
            "note_obstacle",
            "pass",
            "pause",
            "present",
            "renew",
        ),
        *("report", "rescue", "resign", "restore", "send", "sent", "set_back"),
    ),
    "features/audit": ("acknowledge", "audit"),
    "features/following": ("follow",),
    "features/notices": ("group", "observe", "silence"),
    "features/outbound": ("delivered",),
}

#: Scripts that change nothing and share nothing with others, each with the keys that it names. A
#: ledger of another schema is read by them as by any command.
READING = {
    "open_runs": ("open", "run"),
    "due": ("job", "jobs"),
    "traces": ("history", "run"),
    "durations": ("history", "run"),
}

#: Where each file is.
FOLDERS = dict.fromkeys((*SHARED, *READING), "ledger") | {
    name: folder for folder, names in chain(HOOKS.items(), TRANSITIONS.items()) for name in names
}


@cache
def sources() -> Mapping[str, str]:
    """All at once: the files may be replaced by those of another version while a process runs."""
    package = files("supervisor")
    return {
        name: (package / folder / f"{name}.lua").read_text(encoding="utf-8")
        for name, folder in FOLDERS.items()
    }


def source(name: str) -> str:
    return sources()[name]


def transition(name: str) -> str:
    """A file as a function of the library."""
    check = "do\nlocal refusal = other_schema()\nif refusal then return refusal end\nend\n"
    return f"register('{name}', function(KEYS, ARGV)\nstart_call()\n{check}{source(name)}end)\n"


class Library:
    """The functions that work on keys under one prefix. name: of the library, before `_<file>` of
    each function; family: what the names of its other versions begin with as well.
    """

    def __init__(self, keys: Keys) -> None:
        transitions = chain.from_iterable(TRANSITIONS.values())
        shared = "".join(map(source, (*SHARED, *chain.from_iterable(HOOKS.values()))))
        body = keys.lua() + limits.lua() + shared + "".join(map(transition, transitions))
        self.family = f"supervisor_{digest(keys.prefix)[:8]}_"
        self.name = self.family + digest(body)[:16]
        self.text = (
            f"#!lua name={self.name}\n"
            "local transitions = {}\n"
            "local function register(name, transition)\n"
            "transitions[name] = transition\n"
            f"redis.register_function('{self.name}_' .. name, transition)\n"
            f"end\n{body}"
        )


@lru_cache(maxsize=10)
def library_of(prefix: str) -> Library:
    """One for all clients of a process, and for the children that it forks: it is a long text."""
    return Library(Keys(prefix))


def digest(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
