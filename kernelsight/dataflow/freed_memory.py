"""Returns freed memory from glibc to the system (malloc_trim): it retains hundreds of bytes a row of a long table."""

from __future__ import annotations

import ctypes
import sys

# mallopt's parameter: allocations of this size or more are returned once freed; its initial value, in bytes
M_MMAP_THRESHOLD = -3
LARGE = 128 << 10


def return_freed_memory() -> None:
    """Return freed memory to the system now, and from now on that of long arrays as soon as they are freed.

    By default glibc raises the threshold up to 32 MB with each larger array that is freed. A call takes milliseconds,
    so call it between large tables only. It does nothing where the C library has no such function.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        library.mallopt(M_MMAP_THRESHOLD, LARGE)
        library.malloc_trim(0)
