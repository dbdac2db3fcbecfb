"""flaky-fetch: fails for an honest reason part of the time, and is tried again.

It reads the listing that `checksum-docs` rewrites in place. In the middle of that the JSON breaks
off, which is the error you find with `supervisor show`; two seconds later it is whole.
"""

from __future__ import annotations

import json

from celery import shared_task

from examples.checksums import LISTING
from examples.storage import directory, write_atomically
from examples.witness import witness


@shared_task(name="examples.flaky_fetch")
def flaky_fetch() -> int:
    """Takes over the listing when it is complete; returns how many files it names."""
    with witness("flaky-fetch"):
        listing = json.loads((directory() / LISTING).read_text())
        lines = "".join(f"{sha256}  {path}\n" for path, sha256 in listing)
        write_atomically(directory() / "fetched.sha256", lines.encode())
        return len(listing)
