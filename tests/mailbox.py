"""A real mail server on this machine that keeps what it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope

from tests.ports import free_port


class Mailbox:
    """url: of a notice that goes there. says: what each recipient is answered with."""

    def __init__(self, port: int) -> None:
        self.url = f"mailto://127.0.0.1:{port}?from=beat@jobs.test&to=ops@jobs.test"
        self.mails: list[EmailMessage] = []
        self.says = "250 OK"

    async def handle_RCPT(
        self, _server: Any, _session: Any, envelope: Envelope, address: str, _options: Any
    ) -> str:
        if self.says.startswith("250"):
            envelope.rcpt_tos.append(address)
        return self.says

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        mail = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        return "250 OK"


@contextmanager
def receiving_mail() -> Iterator[Mailbox]:
    port = free_port()
    mailbox = Mailbox(port)
    server = Controller(mailbox, hostname="127.0.0.1", port=port)
    server.start()
    try:
        yield mailbox
    finally:
        server.stop()
