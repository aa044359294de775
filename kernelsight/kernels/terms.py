"""What latency expressions share: the types of their columns, and the soft maximum of two times.

Every function takes ``xp`` (``numpy`` or ``jax.numpy``), the columns of its call table, the hardware columns of
:mod:`kernelsight.kernels.hardware` and its coefficients, all broadcastable float64, and returns ``(latency_us,
tiles)``. Nothing here depends on a row's neighbours, so a table alone and among others gives the same numbers, and
every expression falls or stays when a rate of the hardware rises (INV-10).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Columns = Mapping[str, Any]
Coefficients = Mapping[str, Any]


def tensor_us_per_flop(gpu: Columns, slowness: Any) -> Any:
    """Return what a FLOP takes where a kernel would take ``slowness`` times the peak's time on an uncut tensor unit.

    What a kernel loses to operand feed, issue and clocks is a share of the uncut rate, which the multiprocessor was
    built to feed; it takes as many clocks beside a tensor unit of which the vendor has cut a part.
    """
    return 1.0 / gpu["math_flops_per_us"] + (slowness - 1.0) / gpu["uncut_flops_per_us"]


def power_mean(xp: Any, first: Any, second: Any, exponent: float) -> Any:
    """(first^p + second^p)^(1/p): the larger of two times, softly; at least the larger, at most their sum."""
    larger = xp.maximum(first, second)
    smaller = xp.minimum(first, second)
    # dividing by the larger keeps the powers finite for any size
    return larger * (1.0 + (smaller / larger) ** exponent) ** (1.0 / exponent)
