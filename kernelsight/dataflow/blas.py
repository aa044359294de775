"""Limits BLAS to one thread: for small matrix products its threads wait for each other longer than they compute."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_lock = threading.Lock()
_state: dict[str, Any] = {"inside": 0}


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run BLAS single-threaded inside the block, nested and concurrent use included; restore the setting at the end.

    On two busy cores a product of 64 x 64 and 64 x 1024 took thirty times the CPU time with two BLAS threads.
    """
    with _lock:
        if _state["inside"] == 0:
            _state["limit"] = _controller("scipy.linalg" in sys.modules).limit(limits=1, user_api="blas")
        _state["inside"] += 1
    try:
        yield
    finally:
        with _lock:
            _state["inside"] -= 1
            if _state["inside"] == 0:
                _state.pop("limit").restore_original_limits()


@cache
def _controller(with_scipy: bool) -> Any:
    """Return what limits the BLAS libraries that are loaded: numpy's, and SciPy's own once it is there."""
    import numpy  # noqa: F401  only libraries that are already loaded can be limited
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
