"""Jobs -> the ports that beat has to reach to tell their `ping_url` of runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

from supervisor.job.references import TOKEN
from supervisor.job.spec import JobSpec

USUAL = {"http": 80, "https": 443}

#: Stands for a reference: no address has this port, so that one that is not known is seen.
UNKNOWN = "0"


def ping_ports(specs: Iterable[JobSpec]) -> tuple[int, ...]:
    """In ascending order; none where no job has a `ping_url`."""
    found = (ports_of(spec.ping_url) for spec in specs if spec.ping_url)
    return tuple(sorted({port for ports in found for port in ports}))


def ports_of(written: str) -> Iterator[int]:
    """Where a reference stands for the port, or for the whole address, the usual ones."""
    if TOKEN.match(written):
        yield from USUAL.values()
        return
    parts = urlsplit(TOKEN.sub(UNKNOWN, written))
    if parts.port == int(UNKNOWN):
        yield from USUAL.values()
    else:
        yield parts.port or USUAL[parts.scheme]
