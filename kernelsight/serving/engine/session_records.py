"""Sessions of a load in the loop's records: which requests wait for which, and which share a slot."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine.inputs import Waits
from kernelsight.serving.engine.records import EDGE, FOREVER, NOBODY


def put_waits(requests: np.ndarray, waits: Waits | None) -> np.ndarray:
    """Set the dependencies in REQUEST records; return the EDGE records, edges from one request contiguous.

    Edges from a session's first request begin with those to its other requests that wait for none.
    """
    if waits is None:
        return np.zeros(0, EDGE)
    n = requests.size
    first = first_of_session(waits, n)
    requests["waits_for"] = np.bincount(waits.request, minlength=n)
    further_firsts = np.flatnonzero((requests["waits_for"] == 0) & (first != np.arange(n)))
    beside = np.bincount(first[further_firsts], minlength=n)
    sources = np.concatenate([first[further_firsts], waits.after])
    order = np.lexsort(
        (np.concatenate([further_firsts, waits.request]), np.arange(sources.size) >= further_firsts.size, sources)
    )
    edges = np.zeros(order.size, EDGE)
    edges["to"] = np.concatenate([further_firsts, waits.request])[order]
    edges["pause_us"] = np.concatenate([np.zeros(further_firsts.size), waits.pause_us])[order]
    counts = np.bincount(sources, minlength=n)
    requests["edge_count"], requests["edge_at"], requests["beside"] = counts, np.cumsum(counts) - counts, beside
    requests["follows"] = requests["waits_for"] > 0
    requests["follows"][further_firsts] = True
    requests["ready_us"] = -FOREVER
    members = np.bincount(first, minlength=n)
    requests["first_of"] = np.where(members[first] > 1, first, NOBODY)
    requests["left"] = members
    return edges


def first_of_session(waits: Waits, n: int) -> np.ndarray:
    """Return, for each of n requests, the first of its session (connected component) that waits for no other.

    >>> first_of_session(Waits(np.array([2, 3]), np.array([0, 2]), np.zeros(2)), 5).tolist()
    [0, 1, 0, 0, 4]
    """
    lowest = np.arange(n)
    while True:
        lowest_before = lowest.copy()
        lower = np.minimum(lowest[waits.request], lowest[waits.after])
        # where two components are connected, both take the lower label
        for ends in (waits.request, waits.after):
            np.minimum.at(lowest, lowest_before[ends], lower)
            np.minimum.at(lowest, ends, lower)
        lowest = lowest[lowest]
        if np.array_equal(lowest, lowest_before):
            break
    begins = np.setdiff1d(np.arange(n), waits.request)
    first = np.full(n, n)
    np.minimum.at(first, lowest[begins], begins)
    return first[lowest]
