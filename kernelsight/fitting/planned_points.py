"""Which few calls of each kernel to measure: those that lower the expected error of served calls most.

Greedy: the next call is the one whose measurement takes most off the sum of weight x standard deviation over the
kernel's calls, by the covariance of :mod:`kernelsight.kernels.points`: calls in which constants count that no other
point shows. It sees where calls lie, never how long they took. Sums of variances choose the calls at the ends of a
kernel's range, and leave 0.3 points of error more; points planned for all kernels of a family together leave no less.
"""

from __future__ import annotations

import numpy as np

from kernelsight.kernels.points import PARTS, Parts, Places, covariance, prior_variance

# calls of one kernel among which points are chosen, and which they are chosen for
MOST_CALLS = 200


def planned(where: Places, weight: np.ndarray, per_kernel: int, parts: Parts = PARTS) -> np.ndarray:
    """Return the positions of up to ``per_kernel`` calls of each kernel, in the order in which they help.

    ``weight``: what an error of each call costs; calls without weight are chosen where a kernel has no others.
    """
    chosen: list[int] = []
    for rows in _kernels(where):
        served = rows[weight[rows] > 0]
        rows = _drawn(served if served.size else rows)
        costs = weight[rows] if served.size else np.ones(rows.size)
        chosen += rows[_greedy(covariance(where.at(rows), where.at(rows), parts), costs, per_kernel, parts)].tolist()
    return np.array(chosen, dtype=int)


def deviation_after(where: Places, points: np.ndarray, parts: Parts = PARTS) -> np.ndarray:
    """Return the standard deviation of each call's log error once points are measured, by the same covariance."""
    variance = prior_variance(where, parts)
    if points.size:
        shared = covariance(where, where.at(points), parts)
        among = shared[points] + parts.noise**2 * np.eye(points.size)
        variance = variance - np.einsum("ij,ji->i", shared, np.linalg.solve(among, shared.T))
    return np.sqrt(np.maximum(variance, 0.0))


def random_points(where: Places, weight: np.ndarray, per_kernel: int) -> np.ndarray:
    """Return the positions of as many calls of each kernel, drawn at random: what a plan is compared with."""
    random = np.random.default_rng(0)
    chosen: list[int] = []
    for rows in _kernels(where):
        served = rows[weight[rows] > 0]
        rows = served if served.size else rows
        chosen += random.choice(rows, min(per_kernel, rows.size), replace=False).tolist()
    return np.array(chosen, dtype=int)


def _kernels(where: Places) -> list[np.ndarray]:
    """Return the positions of each kernel's calls, kernels in the order of their names."""
    _, kernel = np.unique(where.kernels().astype(str), return_inverse=True)
    order = np.argsort(kernel, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(kernel[order])) + 1) if order.size else []


def _drawn(rows: np.ndarray) -> np.ndarray:
    """At most MOST_CALLS of the rows, drawn at random: an even step through a grid would meet few of its sizes."""
    if rows.size <= MOST_CALLS:
        return rows
    return np.sort(np.random.default_rng(0).choice(rows, MOST_CALLS, replace=False))


def _greedy(among: np.ndarray, weight: np.ndarray, most: int, parts: Parts) -> list[int]:
    chosen: list[int] = []
    for _ in range(min(most, weight.size)):
        variance = np.maximum(np.diag(among), 0.0)
        measured = variance + parts.noise**2
        after = np.maximum(variance[:, None] - among**2 / measured, 0.0)
        gain = weight @ (np.sqrt(variance)[:, None] - np.sqrt(after))
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        among = among - np.outer(among[:, best], among[best]) / measured[best]
    return chosen
