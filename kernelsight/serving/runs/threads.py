"""Spreads calls of the compiled loop over threads; the loop releases the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Job = TypeVar("Job")
Made = TypeVar("Made")


def over_threads(work: Callable[[Job], Made], jobs: Sequence[Job], threads: int | None = None) -> list[Made]:
    """Return the result of ``work`` for each job, in order; ``threads``: the number of cores by default.

    >>> over_threads(abs, [-1, 2, -3])
    [1, 2, 3]
    """
    count = min(len(jobs), threads or os.cpu_count() or 1)
    if count <= 1:  # starting a thread takes longer than simulating a short load
        return [work(job) for job in jobs]
    with ThreadPoolExecutor(count) as workers:
        return list(workers.map(work, jobs))
