"""Memory that was freed and that the C library keeps for itself: hundreds of bytes a row of a long table."""

from __future__ import annotations

import ctypes
import sys

# number of the setting of the C library from which size on memory is returned; the size that it begins with, bytes
M_MMAP_THRESHOLD = -3
LARGE = 128 << 10


def return_freed_memory() -> None:
    """Return freed memory to the system now, and from now on that of long arrays once they are freed.

    Otherwise glibc raises the size from which it does so to 32 MB with each larger array that is freed. It takes
    milliseconds, so that it is for places between large tables only, and only where the C library can.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        library.mallopt(M_MMAP_THRESHOLD, LARGE)
        library.malloc_trim(0)
