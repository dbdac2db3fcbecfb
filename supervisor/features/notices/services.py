"""Sends a notice: to a webhook, signed; to mail, Slack, Teams and PagerDuty through Apprise.

An address with `https://` or `http://` is a webhook, in the form of Standard Webhooks
(standardwebhooks.com), except those of Slack, Teams and the like. These and all others are left to
Apprise, which the extra `notify` installs. References are resolved to the address and the secret in
this process.

Apprise says whether a service took the message, and not why not. It logs that. These lines are kept
out of the app's log, as they may contain the service's key; the HTTP status is read from them.
"""

from __future__ import annotations

import binascii
import hmac
import json
import logging
import os
import re
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from hashlib import sha256
from importlib.util import find_spec
from typing import Any

from supervisor.errors import SecretMissing
from supervisor.features.notices.keys import (
    WEBHOOKS,
    Destination,
    Event,
    destination_fault,
    is_webhook,
)
from supervisor.features.notices.rules import Notice, body, title
from supervisor.features.outbound.answer import Answer
from supervisor.features.outbound.http import TIMEOUT_SECONDS, USER_AGENT, answer_to, post
from supervisor.job.secrets import TOKEN, resolved
from supervisor.job.spec import JobSpec
from supervisor.settings import NOTIFY_SECRET
from supervisor.times import render_moment

#: A secret with this prefix is base64, as in Standard Webhooks; any other is text.
IN_BASE64 = "whsec_"

MISSING = (
    "notices to mail, Slack, Teams, PagerDuty and the like are sent through Apprise, which is not"
    " installed here: pip install 'celery-beat-supervisor[notify]'"
)


def send(
    destination: Destination, notice: Notice, environ: Mapping[str, str] = os.environ
) -> tuple[Answer, str]:
    """The answer, and the reason in words without addresses and secrets.

    A secret that is missing in this process makes its service unavailable: it may be set later.
    """
    try:
        url = str(resolved(destination.url, environ))
        secret = resolved(destination.secret or environ.get(NOTIFY_SECRET) or "", environ)
        if TOKEN.match(url):
            raise SecretMissing("notify", "what it stands for is no address")
        if what := destination_fault(url):
            raise SecretMissing("notify", f"what it stands for is {what}")
    except SecretMissing as missing:
        return Answer.UNAVAILABLE, str(missing)
    if is_webhook(url) or (destination.secret and url.startswith(WEBHOOKS)):
        return _post(url, secret, notice)
    if find_spec("apprise") is None:
        return Answer.UNAVAILABLE, MISSING
    service = _service(url)
    if service is not None and service.schema == "pagerduty" and notice.event is Event.DAILY:
        return Answer.UNWANTED, ""  # it would open an incident
    if service is not None:
        return _notify(service, notice)
    return Answer.REFUSED, f"Apprise cannot use this address: {url.partition('://')[0]}://***"


def missing_extra(
    destinations: Iterable[Destination], environ: Mapping[str, str] = os.environ
) -> str | None:
    """A sentence that says so if one of them needs Apprise, and it is not installed; else None."""
    if find_spec("apprise") is not None:
        return None
    for each in destinations:
        url = each.url
        with suppress(SecretMissing):
            url = str(resolved(url, environ))
        if not (TOKEN.match(url) or each.secret or is_webhook(url)):
            return MISSING
    return None


def warnings(specs: Iterable[JobSpec]) -> Iterator[str]:
    """What this environment lacks to send the notices of these jobs."""
    if missing := missing_extra(to for spec in specs for to in spec.notify):
        yield missing


# A webhook.


def _post(url: str, secret: str, notice: Notice) -> tuple[Answer, str]:
    content = webhook_body(notice)
    headers = {"Content-Type": "application/json", "Idempotency-Key": notice.key}
    try:
        headers |= signed(content, notice.key, int(time.time()), secret)
    except binascii.Error:
        return Answer.UNAVAILABLE, f"the secret is not base64 behind {IN_BASE64}"
    return post(url, content, headers)


def webhook_body(notice: Notice) -> bytes:
    """The body of a webhook; the same each time this notice is sent."""
    data = asdict(notice) | {"title": title(notice), "text": body(notice)}
    del data["event"]
    for key in ("first_at", "last_at"):
        data[key] = render_moment(data[key])
    document = {"type": notice.event.value, "timestamp": data["last_at"], "data": data}
    return json.dumps(document).encode()


def signed(content: bytes, key: str, seconds: int, secret: str) -> dict[str, str]:
    """The headers. key: the notice's. seconds: Unix time. secret: if empty, nothing is signed.

    Raises binascii.Error for a secret that is not as its beginning says.
    """
    headers = {"webhook-id": key, "webhook-timestamp": str(seconds)}
    if not secret:
        return headers
    is_coded = secret.startswith(IN_BASE64)
    signing = b64decode(secret.removeprefix(IN_BASE64)) if is_coded else secret.encode()
    digest = hmac.digest(signing, f"{key}.{seconds}.".encode() + content, sha256)
    return {**headers, "webhook-signature": f"v1,{b64encode(digest).decode()}"}


# Apprise.


class Kept(logging.Filter):
    """Keeps what Apprise logs in our sending threads from all handlers."""

    def __init__(self) -> None:
        super().__init__()
        self._of_thread = threading.local()

    @contextmanager
    def lines(self) -> Iterator[list[str]]:
        """Collects the lines that this thread logs inside the block."""
        logging.getLogger("apprise").addFilter(self)
        self._of_thread.lines = lines = list[str]()
        try:
            yield lines
        finally:
            del self._of_thread.lines

    def filter(self, record: logging.LogRecord) -> bool:
        lines = getattr(self._of_thread, "lines", None)
        if lines is not None:
            lines.append(record.getMessage())
        return lines is None


_kept = Kept()

STATUS = re.compile(r"\berror=(\d{3})\b")

#: How a service shows it, where it has more than one way; all others are failures.
KINDS = {
    Event.RECOVERED: "success",
    **dict.fromkeys((Event.DAILY, Event.TEST), "info"),
    **dict.fromkeys((Event.LATE, Event.SKIPPED, Event.OVERLAPPED), "warning"),
}


def _service(url: str) -> Any:
    """Apprise's service for the address; None of one that it cannot use.

    The first call takes a second or two, to import Apprise: that is no fault of the service.
    """
    from apprise import Apprise, AppriseAsset, OverflowMode

    asset = AppriseAsset(
        app_id=USER_AGENT,
        app_desc="Notices",
        image_url_mask="",
        http_redirects=False,
        # In the thread that asks: those of a pool would hold up the end of the process.
        async_mode=False,
        service_timeout=0,
    )
    with _kept.lines():
        service: Any = Apprise.instantiate(url, asset=asset)
    if service is not None:
        if service.overflow_mode is OverflowMode.UPSTREAM:  # which services refuse
            service.overflow_mode = OverflowMode.TRUNCATE
        for bound in ("socket_connect_timeout", "socket_read_timeout"):
            setattr(service, bound, min(getattr(service, bound), TIMEOUT_SECONDS))
    return service


def _notify(service: Any, notice: Notice) -> tuple[Answer, str]:
    from apprise import Apprise, NotifyFormat, NotifyType

    kind = NotifyType(KINDS.get(notice.event, "failure"))
    if service.schema == "pagerduty":
        _as_incident(service, notice)
    sender = Apprise(asset=service.asset)
    sender.add(service)
    with _kept.lines() as lines:
        is_taken = sender.notify(
            body(notice), title=title(notice), notify_type=kind, body_format=NotifyFormat.TEXT
        )
    if is_taken:
        return Answer.TAKEN, ""
    status = next((match[1] for line in lines if (match := STATUS.search(line))), None)
    name = str(service.service_name)
    if status is None:
        return Answer.UNAVAILABLE, f"{name}: not taken, and Apprise does not say why"
    answer = answer_to(int(status)) if status >= "300" else Answer.UNAVAILABLE
    return answer, f"{name}: status {status}"


def _as_incident(service: Any, notice: Notice) -> None:
    """PagerDuty opens one incident, adds to it, and resolves it on recovery."""
    service.dedup = service.dedup or notice.incident
    service.action = "map"
    service.click = service.click or notice.link or None
