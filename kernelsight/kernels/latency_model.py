"""The latency model of a kernel family: its expression, the columns it reads, its features, and maths that all share.

An expression takes ``xp`` (``numpy`` or ``jax.numpy``), the columns of its call table, the hardware columns of
:mod:`kernelsight.kernels.hardware` and its coefficients, all broadcastable float64, and returns ``latency_us``,
``tiles`` (None where it has none) and ``floor_us``, the part of the latency that a call pays whatever its size: launch,
drain, synchronisation. It is elementwise: a row's latency does not depend on other rows. It never rises
when a rate of the hardware rises (INV-10).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kernelsight.kernels.coefficients import Coefficient

Columns = Mapping[str, Any]
Coefficients = Mapping[str, Any]


class LatencyModel(NamedTuple):
    """A family's latency model: ``expression(xp, call, gpu, at) -> (latency_us, tiles or None, floor_us)``."""

    expression: Callable[..., Any]
    reads: tuple[str, ...]  # columns of the family's call table that the view needs, beside flops and bytes
    view: Callable[..., Any]  # ``view(xp, call)``: derives what the expression reads from these columns
    coefficients: tuple[Coefficient, ...]
    spread: float  # half width of the 90 % interval as a factor, where none is fitted


class Features(NamedTuple):
    """Inputs of a family's correction; how far a call lies from a sweep is measured in ``sizes`` and ``flags``."""

    sizes: tuple[str, ...] = ()  # call columns, as log2
    flags: tuple[str, ...] = ()  # call columns, as 1 where positive
    paddings: tuple[tuple[str, float], ...] = ()  # (column, tile): octaves by which the column rounds up to whole tiles
    # products of (column, tile) that give a number of blocks: log2 of its waves, and octaves by which these round up
    grids: tuple[tuple[tuple[str, float], ...], ...] = ()


def unchanged(xp: Any, call: Any) -> Any:
    """Return the call table unchanged: the view of a family whose expression reads its columns directly."""
    return call


def with_cut_rate(xp: Any, whole_us: Any, flops: Any, gpu: Columns) -> Any:
    """Return the time of tensor work on a GPU with a cut tensor rate, microseconds; ``whole_us``: on one without a cut.

    What a kernel loses to operand feed, issue, softmax and clocks is a share of the rate that its multiprocessor was
    built to feed. The longer tensor time of a cut part hides these losses: sqrt(whole^2 + cut^2 - peak^2), ``whole_us``
    where nothing was cut, near the tensor time of the cut part where most was.
    """
    cut_us, peak_us = flops / gpu["math_flops_per_us"], flops / gpu["uncut_flops_per_us"]
    return xp.sqrt(whole_us * whole_us + (cut_us * cut_us - peak_us * peak_us))


def power_mean(xp: Any, first: Any, second: Any, exponent: float) -> Any:
    """Return the soft maximum (first^p + second^p)^(1/p) of two times: at least the larger, at most their sum."""
    larger = xp.maximum(first, second)
    smaller = xp.minimum(first, second)
    # dividing by the larger keeps the powers finite for any size
    return larger * (1.0 + (smaller / larger) ** exponent) ** (1.0 / exponent)
