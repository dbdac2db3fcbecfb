"""A plugin of pytest: each Celery app is supervised as soon as it is made.

Of a suite that makes its apps in other processes as well, this module is imported there too.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from celery import Celery

from supervisor.app import supervise

made = Celery.__init__


@wraps(made)
def made_supervised(self: Celery, *args: Any, **options: Any) -> None:
    made(self, *args, **options)
    supervise(self)


Celery.__init__ = made_supervised  # type: ignore[method-assign]
