"""Where notices go: the key `notify`, and the setting SUPERVISOR_NOTIFY.

An address is a secret, and no message repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from supervisor.errors import NotConfigured, closest
from supervisor.job.faults import ItemFault, inside
from supervisor.job.fields import LONGEST_URL, is_address
from supervisor.job.notices import DEFAULT_EVENTS, JOB_EVENTS, SERVICE_EVENTS, Destination, Event
from supervisor.job.secrets import FORMS, TOKEN, malformed
from supervisor.settings import NOTIFY

MOST_DESTINATIONS = 10

#: `mailto://`, `slack://`: whoever sends knows more of them.
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s]+")

SUCH_AS = "such as [${SLACK_URL}]"

#: What `{url: ..., events: ..., secret: ...}` may have.
DESTINATION_KEYS = tuple(Destination.model_fields)

EVENT_WORDS = [event.value for event in Event if event in JOB_EVENTS]


def _destinations(given: Any) -> list[Destination]:
    """All that is wrong, each at its own line; an address is a secret and not repeated."""
    if not isinstance(given, list | tuple):
        raise inside([ItemFault((), "not a list of addresses", SUCH_AS)])
    if len(given) > MOST_DESTINATIONS:
        what = f"{len(given)} addresses; {MOST_DESTINATIONS} are allowed"
        raise inside([ItemFault((), what)])
    found: list[Destination] = []
    faults: list[ItemFault] = []
    for number, item in enumerate(given):
        keys = {"url": item} if isinstance(item, str) else item
        wrong = [] if isinstance(item, Destination) else [*_destination_faults(keys, number)]
        destination = item if isinstance(item, Destination) else None
        if destination is None and not wrong:
            destination = Destination.model_validate(keys)
        if destination and destination.url in [each.url for each in found]:
            hint = "give it once, with all its events"
            wrong = [ItemFault((number,), "the same address as one before it", hint)]
        if destination:
            found.append(destination)
        faults += wrong
    if faults:
        raise inside(faults)
    return found


def _destination_faults(keys: Any, number: int) -> Iterator[ItemFault]:
    if not isinstance(keys, dict) or "url" not in keys:
        hint = "such as ${SLACK_URL}, or {url: ${SLACK_URL}, events: [failed]}"
        yield ItemFault((number,), "neither an address nor a mapping with 'url'", hint)
        return
    for key in keys:
        if key not in DESTINATION_KEYS:
            hint = closest(key, DESTINATION_KEYS) or f"known are {', '.join(DESTINATION_KEYS)}"
            yield ItemFault((number, key), f"unknown key {key!r:.40}", hint)
    for key in ("url", "secret"):
        if isinstance(text := keys.get(key), str) and malformed(text):
            yield ItemFault((number, key), f"{key!r} has a reference that is none", FORMS)
            return
    if not is_destination(keys["url"]):
        what = "not an address such as https://host/path or mailtos://..., or ${NAME}"
        yield ItemFault((number, "url"), what)
    if keys.get("secret") is not None:
        yield from _secret_faults(keys, number)
    if "events" in keys:
        yield from _event_faults(keys["events"], number)


def _secret_faults(keys: Mapping[str, Any], number: int) -> Iterator[ItemFault]:
    secret, url = keys["secret"], keys["url"]
    if not isinstance(secret, str) or not 0 < len(secret) <= LONGEST_URL:
        yield ItemFault((number, "secret"), "'secret' is not text", "such as ${HOOK_SECRET}")
    elif isinstance(url, str) and not url.startswith(("http://", "https://", "${")):
        hint = "leave it out: the address has the service's own key"
        yield ItemFault((number, "secret"), "'secret' signs http and https addresses alone", hint)


def _event_faults(events: Any, number: int) -> Iterator[ItemFault]:
    if not isinstance(events, list | tuple | Set) or not events:
        hint = f"known are {', '.join(EVENT_WORDS)}"
        yield ItemFault((number, "events"), "'events' is not a list of events", hint)
        return
    for place, event in enumerate(events):
        if event in list(Event) and event not in EVENT_WORDS:
            hint = "SUPERVISOR_NOTIFY says where it is told"
            yield ItemFault((number, "events", place), f"{event!r} is no event of a job", hint)
        elif event not in EVENT_WORDS:
            what = f"{event!r:.40} is not one of {', '.join(EVENT_WORDS)}"
            yield ItemFault((number, "events", place), what, closest(event, EVENT_WORDS))
    if all(event == Event.RECOVERED for event in events):
        hint = "with what it is the end of, such as [failed, recovered]"
        yield ItemFault((number, "events"), "'recovered' alone is never told", hint)


def is_destination(written: Any) -> bool:
    """Of what a reference stands for nothing is known; it may be the whole address."""
    if not isinstance(written, str) or len(written) > LONGEST_URL or not written.isprintable():
        return False
    if TOKEN.match(written):
        return not re.search(r"\s", written)
    if written.startswith(("http:", "https:")):
        return is_address(TOKEN.sub("1", written))
    return bool(ADDRESS.fullmatch(written))


def _written(destinations: tuple[Destination, ...]) -> list[Any]:
    """As a schedule file has them: an address alone where it says nothing more."""
    written: list[Any] = []
    for each in destinations:
        keys = each.model_dump(mode="json", exclude_none=True)
        if each.events == DEFAULT_EVENTS:
            keys.pop("events")
        written.append(keys if len(keys) > 1 else each.url)
    return written


_ADDRESS = {"type": "string", "minLength": 1, "maxLength": LONGEST_URL}
_EVENTS = {
    "type": "array",
    "minItems": 1,
    "items": {"enum": EVENT_WORDS},
}

Notify = Annotated[
    tuple[Destination, ...],
    BeforeValidator(_destinations),
    PlainSerializer(_written, return_type=list[Any]),
    WithJsonSchema(
        {
            "type": "array",
            "maxItems": MOST_DESTINATIONS,
            "items": {
                "anyOf": [
                    _ADDRESS,
                    {
                        "type": "object",
                        "required": ["url"],
                        "additionalProperties": False,
                        "properties": {"url": _ADDRESS, "events": _EVENTS, "secret": _ADDRESS},
                    },
                ]
            },
        }
    ),
]

# What is told of the service itself.

#: Between two addresses; a comma inside of one, as of several recipients, is a part of it.
BETWEEN = re.compile(r",(?=[A-Za-z][A-Za-z0-9+.-]*://|\$\{)")


def service_destinations(environ: Mapping[str, str]) -> tuple[Destination, ...]:
    """Those of SUPERVISOR_NOTIFY, which get what is told of no job. Raises NotConfigured."""
    words = [word.strip(",") for word in environ.get(NOTIFY, "").split()]
    urls = [url for word in words for url in BETWEEN.split(word) if url]
    for number, url in enumerate(urls, 1):
        if malformed(url) or not is_destination(url):
            what = "is neither such as https://host/path or mailtos://... nor a reference"
            raise NotConfigured(f"{NOTIFY}: address {number} {what} ({FORMS})")
    events = SERVICE_EVENTS | {Event.RECOVERED}
    return tuple(Destination(url=url, events=events) for url in urls)
