"""The transitions of the ledger: one library of Redis Functions, and how they are called.

1. The library is the keys of keys.py, the constants below, the functions that the transitions share
   (SHARED), what features do at the moments of hooks.lua (HOOKS), and one function for each file of
   TRANSITIONS, which is called with its KEYS and ARGV.
2. The name of the library, and of each function, has a digest of the text: processes of two
   versions on one server, as in an upgrade, call functions of their own.
3. A process whose function the server does not have loads the library and calls again. The
   library is kept and replicated with the data, and outlives FLUSHALL.
4. A beat that starts deletes the libraries of other versions; a process that still needs one loads
   it again.

What only reads (READING) is no function: it is called by its digest, EVALSHA, so that a user
without the right to load functions can read.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from itertools import chain
from typing import Any, NamedTuple

import redis
from redis.exceptions import NoScriptError, ResponseError

from supervisor.errors import WrongSchema
from supervisor.job.fields import LARGEST_COUNT
from supervisor.job.run import LINES_KEPT
from supervisor.job.spec import MOST_JOBS
from supervisor.job.steps import ITEMS_AT_ONCE
from supervisor.job.templates import SERIAL_LOCK, STEP_LOCK
from supervisor.store.connection import (
    NO_FUNCTIONS,
    Client,
    NotServed,
    NotWritable,
    is_of_server_without_functions,
    naming_the_right,
)
from supervisor.store.keys import Keys
from supervisor.times import to_ms

#: redis-py before 5.3 wants the name of the command for which a connection is taken.
NAMED = ("FCALL",) if redis.VERSION < (5, 3) else ()


# The ledger's schema: one number for what its keys mean, kept in the ledger itself.
#
# 1. The first function that meets a ledger without the number writes that of its own code.
# 2. Every function that writes compares first (`other_schema` in base.lua), and changes nothing in
#    a ledger of another number. So it is also with a process whose ledger is upgraded while it
#    runs, and there is no moment in between.
# 3. Workers and beats hear of it with the next call that says that they are there, and stop.


#: What this code reads and writes.
SCHEMA = 1

MISMATCH = "WRONGSCHEMA "


def mismatch(reply: object) -> WrongSchema | None:
    """What a function said that found a ledger of another schema; None of any other reply."""
    if isinstance(reply, ResponseError) and str(reply).startswith(MISMATCH):
        return WrongSchema(int(str(reply).removeprefix(MISMATCH)), SCHEMA)
    return None


def refused(error: ResponseError) -> Exception:
    """`error`, or what callers know: another schema, or a server that takes no writes."""
    if str(error).startswith(NotWritable.CODES):
        return NotWritable(str(error))
    return mismatch(error) or error


#: How long an ended run stays readable.
HISTORY_TTL = timedelta(days=7)

#: A run that is retried again and again keeps its last attempts, up to this many.
ATTEMPTS_KEPT = 100

#: Up to this many failed steps and items of a run keep their traceback.
MOST_TRACEBACKS = 20

#: A worker that was told of runs whose messages Celery has to make publishes them; after this, beat
#: does. A worker whose broker hangs may be at it for longer, and then there are two messages: the
#: second begins nothing.
OUTBOX_DELAY = timedelta(seconds=1)

#: A run of several steps holds its lock for this much longer than any of them may be silent.
STEP_MARGIN = timedelta(seconds=30)

#: Up to this many items of a batch that ended badly are kept one by one.
MOST_KEPT_ITEMS = 1_000

#: Items that one call queues; a thousand kept the server from all others for 15 ms.
ITEMS_PER_FILL = 100

#: Items of a batch that one call ends before they have begun, likewise.
ITEMS_PER_END = 50

#: Waiting runs that one call ends because their job is gone or they have waited for too long,
#: likewise.
RUNS_PER_DISMISSAL = 25

#: Params of more bytes than this are dropped when their run ends; but the last few of a job's runs
#: that failed keep theirs: they may be run again.
LARGEST_KEPT_PARAM = 10_000
RUNS_WITH_PARAMS = 10
DROPPED_PARAM = '"(dropped when the run ended)"'

#: Up to this many starts and ends of a job's runs wait for its `ping_url`, and for Sentry.
MOST_PINGS = 100

#: Calls of a job that ended before they began and whose callers could not be informed, likewise.
MOST_REVOCATIONS = 10_000

#: Events of which no beat has made notices, likewise; those beyond are counted.
MOST_EVENTS = 20_000

#: Groups of a destination's notices are known for this long after the last was sent: longer than
#: the next one of a group waits for it (features/notices/incidents.py).
GROUPS_KEPT = timedelta(minutes=10)

#: Silences of notices at one time.
MOST_SILENCES = 1_000

#: What went wrong is counted by QUARTER, and known for this long: features/summary/store.py.
QUARTER = timedelta(minutes=15)
QUARTERS_A_DAY = 96
COUNTS_OF_DAYS_KEPT = timedelta(days=8)

#: Skips in a row that are too many where the job says nothing.
SKIPS_IN_A_ROW = 3

#: Versions of a job whose messages may still be under way, and those whose runs may be repeated.
CONTENTS_KEPT = 5
FORMER_KEPT = 10

#: Up to this many of the jobs that were loaded, edited or removed last are known one by one: more
#: than beat looks at in one turn.
EDITS_KEPT = 2 * MOST_JOBS

#: Entries that the record of actions keeps; there may be a hundred more, for a stream drops them in
#: blocks.
ACTIONS_KEPT = 10_000

#: Calls that are sent before the reply to the first of them is read: one that takes the server
#: long, and one that is small.
CALLS_AHEAD = 2
SMALL_CALLS_AHEAD = 100

#: Upper bounds, in seconds, of the duration and start-delay histograms.
BOUNDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400)

#: What the transitions share, in the order in which one file builds on another.
SHARED = (
    *("base", "hooks", "accounts", "records", "messages"),
    *("slots", "attempts", "ends", "comebacks", "placing"),
)

#: What features do at the moments of hooks.lua, by the folder of their files.
HOOKS = {
    "ledger": ("stages",),
    "features/following": ("followers",),
    "features/notices": ("watched",),
}

#: The functions of the library, by the folder of their files in the package. Those of a feature can
#: be deleted with it.
TRANSITIONS = {
    "ledger": (
        *("act", "admit", "begin", "cancel", "drain", "expand", "fill", "finish", "keep_messages"),
        *(
            "load",
            "look",
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
    "features/notices": ("findings", "fold", "silence"),
    "features/outbound": ("delivered",),
}

#: Scripts that change nothing and share nothing with others, each with the keys that it names. A
#: ledger of another schema is read by them as by any command.
READING = {
    "figures": ("job",),
    "open_runs": ("open", "run"),
    "due": ("job", "jobs"),
    "traces": ("history", "run"),
    "durations": ("history", "run"),
}

#: Where each file is.
FOLDERS = dict.fromkeys((*SHARED, *READING), "ledger") | {
    name: folder for folder, names in chain(HOOKS.items(), TRANSITIONS.items()) for name in names
}

#: The function that compares the schema itself: a process may leave a ledger that was upgraded
#: under it.
UNCHECKED = "present"


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


def constants() -> str:
    bounds = ", ".join(map(str, BOUNDS))
    return f"""\
local SCHEMA = {SCHEMA}
local HISTORY_TTL = {to_ms(HISTORY_TTL)}
local ATTEMPTS_KEPT = {ATTEMPTS_KEPT}
local OUTBOX_DELAY = {to_ms(OUTBOX_DELAY)}
local LINES_KEPT, MOST_TRACEBACKS = {LINES_KEPT}, {MOST_TRACEBACKS}
local SERIAL_LOCK, STEP_LOCK = '{SERIAL_LOCK}', '{STEP_LOCK}'
local STEP_MARGIN, ITEMS_AT_ONCE = {to_ms(STEP_MARGIN)}, {ITEMS_AT_ONCE}
local ITEMS_PER_FILL, ITEMS_PER_END = {ITEMS_PER_FILL}, {ITEMS_PER_END}
local RUNS_PER_DISMISSAL = {RUNS_PER_DISMISSAL}
local MOST_KEPT_ITEMS, LARGEST_KEPT_PARAM = {MOST_KEPT_ITEMS}, {LARGEST_KEPT_PARAM}
local RUNS_WITH_PARAMS, DROPPED_PARAM = {RUNS_WITH_PARAMS}, '{DROPPED_PARAM}'
local MOST_PINGS, MOST_REVOCATIONS = {MOST_PINGS}, {MOST_REVOCATIONS}
local MOST_EVENTS, GROUPS_KEPT = {MOST_EVENTS}, {to_ms(GROUPS_KEPT)}
local SKIPS_IN_A_ROW, MOST_SILENCES = {SKIPS_IN_A_ROW}, {MOST_SILENCES}
local QUARTER, QUARTERS_A_DAY = {to_ms(QUARTER)}, {QUARTERS_A_DAY}
local COUNTS_OF_DAYS_KEPT = {to_ms(COUNTS_OF_DAYS_KEPT)}
local MOST_RUNNING = {LARGEST_COUNT}
local EDITS_KEPT, CONTENTS_KEPT, FORMER_KEPT = {EDITS_KEPT}, {CONTENTS_KEPT}, {FORMER_KEPT}
local ACTIONS_KEPT = {ACTIONS_KEPT}
local BOUNDS = {{{bounds}}}
"""


def transition(name: str) -> str:
    """A file as a function of the library."""
    check = "do\nlocal refusal = other_schema()\nif refusal then return refusal end\nend\n"
    return (
        f"register('{name}', function(KEYS, ARGV)\nstart_call()\n"
        f"{'' if name == UNCHECKED else check}{source(name)}end)\n"
    )


class Library:
    """The functions that work on keys under one prefix. name: of the library, before `_<file>` of
    each function; family: what the names of its other versions begin with as well.
    """

    def __init__(self, keys: Keys) -> None:
        transitions = chain.from_iterable(TRANSITIONS.values())
        shared = "".join(map(source, (*SHARED, *chain.from_iterable(HOOKS.values()))))
        body = keys.lua() + constants() + shared + "".join(map(transition, transitions))
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


def is_missing(error: ResponseError) -> bool:
    """Whether the server does not have it, and has done nothing."""
    return isinstance(error, NoScriptError) or str(error) == "Function not found"


class Call(NamedTuple):
    """The arguments of one call of a function."""

    args: tuple[str | int, ...]
    keys: tuple[str, ...] = ()


class Functions:
    """Those of one ledger, and what only reads: one round trip for a call, or for many calls.

    Both raise WrongSchema when another version of this code writes the ledger.
    """

    def __init__(self, client: Client, keys: Keys) -> None:
        sources()
        self._client = client
        self._keys = keys

    @cached_property
    def _library(self) -> Library:
        return library_of(self._keys.prefix)

    @cached_property
    def _readers(self) -> Mapping[str, str]:
        return {name: self._keys.lua(*keys) + source(name) for name, keys in READING.items()}

    @cached_property
    def _commands(self) -> dict[str, tuple[str, str]]:
        """How each that was called before is called: as a function, or by its digest."""
        return {name: ("EVALSHA", digest(text)) for name, text in self._readers.items()}

    def __call__(self, name: str, *args: str | int, keys: tuple[str, ...] = ()) -> Any:
        """``functions("begin", run_id, token, worker)``"""
        return self.as_of_sending(name, lambda: Call(args, keys))

    def act(self, entry: str, name: str, *args: str | int, keys: tuple[str, ...] = ()) -> Any:
        """The same for what a person or a program asked for: the record of actions has it.

        entry: that of actions.py; empty where no one asked for it.
        """
        return self("act", *args, name, entry, keys=keys) if entry else self(name, *args, keys=keys)

    def as_of_sending(self, name: str, call: Callable[[], Call]) -> Any:
        """The same for a call that tells of time: it is asked for whenever it is sent."""
        with self._connected() as connection:

            def made() -> Any:
                connection.send_command(*self._command(name), *self._arguments(call()))
                return connection.read_response()

            try:
                return connection.retry.call_with_retry(made, lambda _: connection.disconnect())
            except ResponseError as error:
                refusal = error
        if is_missing(refusal):
            return self._loaded(name, call())
        raise self._refused(name, refusal) from refusal

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """A connection of the client's pool; closed after an error, for a reply may still come."""
        pool = self._client.connection_pool
        connection: Any = pool.get_connection(*NAMED)
        try:
            yield connection
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    def _loaded(self, name: str, call: Call) -> Any:
        """The same on a server that does not have it yet."""
        try:
            if name in READING:
                text = self._readers[name]
                return self._client.eval(text, *self._arguments(call))
            self._client.function_load(self._library.text, replace=True)
            function = self._command(name)[1]
            return self._client.fcall(function, *self._arguments(call))
        except ResponseError as error:
            raise self._refused(name, error) from error

    def _arguments(self, call: Call) -> tuple[Any, ...]:
        """What a job or a person wrote may have half a character, which is no text for Redis."""
        args = (
            a if isinstance(a, int) or a.isascii() else a.encode(errors="replace")
            for a in call.args
        )
        return (len(call.keys), *call.keys, *args)

    def _command(self, name: str) -> tuple[str, str]:
        try:
            return self._commands[name]
        except KeyError:
            return self._commands.setdefault(name, ("FCALL", f"{self._library.name}_{name}"))

    def _refused(self, name: str, error: ResponseError) -> Exception:
        if is_of_server_without_functions(error):
            return NotServed(NO_FUNCTIONS)
        text = self._readers[name] if name in READING else self._library.text
        return refused(naming_the_right(error, text))

    def forget_versions(self, but: str = "") -> None:
        """Deletes the libraries of all versions for these keys, where the user may do so."""
        with suppress(ResponseError):  # also where another process was quicker
            for library in self._client.function_list(library=f"{self._library.family}*"):
                # With RESP3 it is a mapping.
                name = library["library_name"] if isinstance(library, Mapping) else library[1]
                if name != but:
                    self._client.function_delete(name)

    def forget_other_versions(self) -> None:
        self.forget_versions(but=self._library.name)

    def many(self, name: str, calls: Iterable[Call]) -> list[Any]:
        """The replies to all calls of one function, which are made in order."""
        return list(self.stream(name, calls, SMALL_CALLS_AHEAD))

    def stream(self, name: str, calls: Iterable[Call], ahead: int = CALLS_AHEAD) -> Iterator[Any]:
        """The same one by one: while the server is at some calls, the next ones are made and sent.

        Raises what the server says of a call once the replies to those before it have been given.
        """
        rest = iter(calls)
        for first in rest:
            with self.ahead(name) as sent:
                for call in chain((first,), rest):
                    sent.send(call)
                    while len(sent) > ahead:
                        yield from sent.replies()
                while sent:
                    yield from sent.replies()

    @contextmanager
    def ahead(self, name: str) -> Iterator[CallsAhead]:
        """For calls of one function that are made and sent while the server is at earlier ones.

        They are not tried again: which of them were made is not known where the server is away.
        """
        with self._connected() as connection:
            yield CallsAhead(self, name, connection)


class CallsAhead:
    """Calls of one function on one connection, in order, whose replies have not been read yet."""

    def __init__(self, functions: Functions, name: str, connection: Any) -> None:
        self._functions = functions
        self._name = name
        self._connection = connection
        self._calls = deque[Call]()

    def __len__(self) -> int:
        return len(self._calls)

    def send(self, call: Call) -> None:
        functions = self._functions
        command = (*functions._command(self._name), *functions._arguments(call))
        # A check of health would take a reply that is on its way for its own.
        self._connection.send_command(*command, check_health=not self._calls)
        self._calls.append(call)

    def replies(self) -> list[Any]:
        """To the first call; to all that were sent, where the server had no such function.

        Raises what the server says of the call.
        """
        try:
            reply = self._connection.read_response()
            self._calls.popleft()
            return [reply]
        except ResponseError as error:
            if not is_missing(error):
                raise self._functions._refused(self._name, error) from error
        # A server that was restarted or flushed: the calls did nothing. They are made again before
        # any further one is, for they are made in order.
        again = [*self._calls]
        self._calls.clear()
        for _ in again[1:]:
            with suppress(ResponseError):
                self._connection.read_response()
        return [self._functions._loaded(self._name, call) for call in again]
