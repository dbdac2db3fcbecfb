"""The key `notify`: which events of a job go to which destinations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_serializer,
)

from supervisor.errors import closest
from supervisor.job.fields import LONGEST_URL, ItemFault, inside, is_address
from supervisor.job.keys import AddressKey, KeyGroup, joined
from supervisor.job.secrets import FORMS, MASK, TOKEN, malformed, masked_url


class Event(StrEnum):
    """What a destination may ask for; the first eight are events of jobs."""

    FAILED = "failed"
    RECOVERED = "recovered"
    MISSED = "missed"
    OVERLAPPED = "overlapped"
    LATE = "late"
    SKIPPED = "skipped"
    DUE_BY = "due_by"
    LOST = "lost"
    SCHEDULE_REJECTED = "schedule_rejected"
    NO_BEAT = "no_beat"
    REDIS_UNAVAILABLE = "redis_unavailable"
    DAILY = "daily"
    TEST = "test"


#: Those of no job, which go where SUPERVISOR_NOTIFY says.
SERVICE_EVENTS = frozenset(
    {Event.SCHEDULE_REJECTED, Event.NO_BEAT, Event.REDIS_UNAVAILABLE, Event.DAILY, Event.TEST}
)
JOB_EVENTS = frozenset(Event) - SERVICE_EVENTS

#: A late start is reported by `missed` and `due_by` where it matters.
DEFAULT_EVENTS = JOB_EVENTS - {Event.LATE}


class Destination(BaseModel):
    """Where notices of a job go, and which."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    url: str = Field(min_length=1, repr=False)
    """An address, or a reference to one such as ${SLACK_URL}; a secret."""
    events: frozenset[Event] = DEFAULT_EVENTS
    """Which events are sent there."""
    secret: str | None = Field(default=None, repr=False)
    """What a webhook is signed with, or a reference to it."""

    @field_serializer("events")
    def _in_order(self, events: frozenset[Event]) -> list[str]:
        return [event.value for event in Event if event in events]


def events_of(destinations: Sequence[Destination]) -> tuple[str, ...]:
    """The events of a job that any of the destinations asks for, in order."""
    events = frozenset().union(*(each.events for each in destinations)) & JOB_EVENTS
    return tuple(event.value for event in Event if event in events)


MOST_DESTINATIONS = 10

#: `mailto://`, `slack://`: what sends them knows more.
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://[^\s]+")

#: Parameters of an address that Apprise gets. It has others, which read files or ask other servers.
PARAMETERS = {
    **dict.fromkeys(
        ("mailto", "mailtos"),
        ("from", "to", "cc", "bcc", "reply", "name", "user", "pass", "smtp", "mode", "overflow"),
    ),
    "slack": ("to", "footer", "image", "blocks", "timestamp", "overflow"),
    "pagerduty": ("region", "group", "class", "component", "source", "overflow"),
    "https": ("api-version", "sp", "sv", "sig", "overflow"),
}

#: Hosts of services whose addresses look like webhooks and are left to Apprise.
OF_SERVICES = re.compile(
    r"(^|\.)(hooks\.slack|logic\.azure|api\.powerplatform|webhook\.office)\.com$"
)

WEBHOOKS = ("https://", "http://")

SUCH_AS = "such as [${SLACK_URL}]"

#: What `{url: ..., events: ..., secret: ...}` may have.
DESTINATION_KEYS = tuple(Destination.model_fields)

EVENT_WORDS = [event.value for event in Event if event in JOB_EVENTS]


def _destinations(given: Any) -> list[Destination]:
    """Raises all faults, each at its own line. An address is a secret and is not repeated."""
    if not isinstance(given, list | tuple):
        raise inside([ItemFault((), "not a list of addresses", SUCH_AS)])
    if len(given) > MOST_DESTINATIONS:
        what = f"{len(given)} addresses; {MOST_DESTINATIONS} are allowed"
        raise inside([ItemFault((), what)])
    destinations: list[Destination] = []
    faults: list[ItemFault] = []
    for number, item in enumerate(given):
        keys = {"url": item} if isinstance(item, str) else item
        wrong = [] if isinstance(item, Destination) else [*_destination_faults(keys, number)]
        destination = item if isinstance(item, Destination) else None
        if destination is None and not wrong:
            destination = Destination.model_validate(keys)
        if destination and destination.url in [each.url for each in destinations]:
            hint = "give it once, with all its events"
            wrong = [ItemFault((number,), "the same address as one before it", hint)]
        if destination:
            destinations.append(destination)
        faults += wrong
    if faults:
        raise inside(faults)
    return destinations


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
    if what := destination_fault(keys["url"]):
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
            hint = "SUPERVISOR_NOTIFY says where it is sent"
            yield ItemFault((number, "events", place), f"{event!r} is no event of a job", hint)
        elif event not in EVENT_WORDS:
            what = f"{event!r:.40} is not one of {', '.join(EVENT_WORDS)}"
            yield ItemFault((number, "events", place), what, closest(event, EVENT_WORDS))
    if all(event == Event.RECOVERED for event in events):
        hint = "with what it is the end of, such as [failed, recovered]"
        yield ItemFault((number, "events"), "'recovered' alone is never sent", hint)


def is_webhook(url: str) -> bool:
    """Whether the address is a plain webhook, and not that of a service that Apprise knows."""
    return url.startswith(WEBHOOKS) and not OF_SERVICES.search(urlsplit(url).hostname or "")


def destination_fault(written: Any) -> str | None:
    """What is wrong with an address, without repeating it; None if nothing is.

    A reference at its beginning may stand for a whole address, which is looked at when it is known.
    """
    wrong = "not an address such as https://host/path or mailtos://..., or ${NAME}"
    if not isinstance(written, str) or len(written) > LONGEST_URL or not written.isprintable():
        return wrong
    if TOKEN.match(written):
        return wrong if re.search(r"\s", written) else None
    text = TOKEN.sub("1", written)
    match = ADDRESS.fullmatch(text)
    service = match[1].lower() if match else ""
    if match is None or (service.startswith("http") and not is_address(text)):
        return wrong
    if not decoded(text).isprintable():
        return "an address with an encoded control character"
    if is_webhook(text):
        return None
    if service not in PARAMETERS:
        return f"not an address of https, http, {', '.join([*PARAMETERS][:-1])}"
    if parameters_of(text) <= {*PARAMETERS[service]}:
        return None
    return f"an address with a parameter other than {', '.join(PARAMETERS[service])}"


def decoded(text: str) -> str:
    """The text without percent-encoding, however often it was encoded."""
    while (once := unquote(text)) != text:
        text = once
    return text


def parameters_of(url: str) -> set[str]:
    """The names of the address's parameters as Apprise reads them: a semicolon ends one, too."""
    query = url.partition("?")[2]
    names = (part.partition("=")[0] for part in re.split("[&;]", query) if part)
    return {decoded(name).lower().strip() for name in names}


def _written(destinations: tuple[Destination, ...]) -> list[Any]:
    """The destinations as a schedule file has them; one with nothing but an address is a text."""
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


class NoticeKeys(KeyGroup):
    notify: Annotated[Notify, Field(repr=False)] = ()
    """Where notices go when it fails, misses a run or recovers: addresses, with events."""

    @property
    def notified_events(self) -> str:
        """Words of the events that `notify` asks for, as the ledger's functions look for them."""
        return " ".join(events_of(self.notify))

    @property
    def own_rules(self) -> dict[str, str]:
        return joined(super().own_rules, {"notify": self.notified_events})


# What may be shown of it.


def masked_destinations(written: Sequence[Any]) -> list[Any]:
    """The destinations of `notify`, as a schedule file has them, with masked secrets."""
    return [
        {key: masked_part(key, value) for key, value in item.items()}
        if isinstance(item, dict)
        else masked_url(item)
        for item in written
    ]


def masked_part(key: str, value: Any) -> Any:
    if key == "secret":
        return value if TOKEN.fullmatch(value) else MASK
    return masked_url(value) if key == "url" else value


ADDRESS_KEY = AddressKey(
    "notify",
    texts=lambda destinations: [[each.url, each.secret] for each in destinations],
    mask=masked_destinations,
)
