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


def beside_cut(xp: Any, whole_us: Any, flops: Any, gpu: Columns) -> Any:
    """Return the time of tensor work on a part whose tensor rate was cut; ``whole_us``: what it takes on a whole one.

    What a kernel loses to operand feed, issue, softmax and clocks is a share of the rate that its multiprocessor was
    built to feed. The longer tensor time of the cut part hides it: sqrt(whole^2 + cut^2 - peak^2), ``whole_us`` itself
    where nothing was cut, and near the peak's time of the cut part where most was.
    """
    cut_us, peak_us = flops / gpu["math_flops_per_us"], flops / gpu["uncut_flops_per_us"]
    return xp.sqrt(whole_us * whole_us + (cut_us * cut_us - peak_us * peak_us))


def power_mean(xp: Any, first: Any, second: Any, exponent: float) -> Any:
    """(first^p + second^p)^(1/p): the larger of two times, softly; at least the larger, at most their sum."""
    larger = xp.maximum(first, second)
    smaller = xp.minimum(first, second)
    # dividing by the larger keeps the powers finite for any size
    return larger * (1.0 + (smaller / larger) ** exponent) ** (1.0 / exponent)
