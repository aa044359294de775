"""Memory that was freed and that the C library keeps for itself."""

from __future__ import annotations

import ctypes
import sys


def return_freed_memory() -> None:
    """Return freed memory to the system, where the C library can: glibc keeps hundreds of bytes a row of a long table.

    It takes milliseconds, so that it is for places between large tables only.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
