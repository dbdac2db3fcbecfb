"""Child processes that do not outlive their parent, however it ends."""

from __future__ import annotations

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """To be run in a child: the kernel sends it SIGTERM when the thread that began it is gone.

    Linux only; elsewhere a child of a process that was killed has to be ended by hand.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
