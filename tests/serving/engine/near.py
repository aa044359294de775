"""Times that agree but for rounding, whole arrays of them at once."""

from __future__ import annotations

from typing import Any

import numpy as np


class near:
    """Equal to values that differ from ``expected`` by a billionth, or by ``most_us``; infinity only by itself.

    Clocks add up a few thousand terms in another order.

    >>> [1e9, 5.0] == near([1e9 + 0.5, 5.0]), [1.0, 2.0] == near([1.0, 2.1]), [1.0] == near([1.0, 1.0])
    (True, False, False)
    >>> 1.0 == near(float("inf")), float("nan") == near(float("nan"))
    (False, False)
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expected: Any, most_us: float = 1e-6) -> None:
        self.expected, self.most_us = np.asarray(expected, float), most_us

    def __eq__(self, found: object) -> bool:
        values, expected = np.asarray(found, float), self.expected
        if values.shape != expected.shape:
            return False
        with np.errstate(invalid="ignore"):  # infinity less itself
            close = np.abs(values - expected) <= np.maximum(1e-9 * np.abs(expected), self.most_us)
        return bool(np.all(close & np.isfinite(expected) | (values == expected)))

    def __repr__(self) -> str:
        return f"{self.expected.tolist()} ± {self.most_us}"
