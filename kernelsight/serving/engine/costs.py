"""Step time: GPU time from cost surfaces with the knots that it uses, host time, inter-token gaps."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine import host
from kernelsight.serving.engine.compiled import inlined
from kernelsight.serving.engine.records import BIN_WIDTH, FOREVER

host_times = inlined(host.host_times)


@inlined
def knot_below(costs: np.ndarray, part: np.void, y: float, hint: int) -> int:
    """Index of the y knot below ``y``, at most the last but one; ``hint``: the index found before."""
    last = part.y_size - 2
    if last < 1:
        return 0
    at = part.y_at
    low = min(hint, last)
    if costs[at + low] <= y or low == 0:
        if low == last or y < costs[at + low + 1]:
            return low
        if low + 1 == last or y < costs[at + low + 2]:
            return low + 1
    low, high = 0, last
    while low < high:
        middle = (low + high + 1) // 2
        if costs[at + middle] <= y:
            low = middle
        else:
            high = middle - 1
    return low


@inlined
def line_at(costs: np.ndarray, part: np.void, x: int, j: int) -> tuple:
    """(value at y knot ``j``, slope above it) of a surface at one x; the last segment is extrapolated."""
    corner = part.at + int(costs[part.x_at + x]) * part.y_size + j
    share = costs[part.share_at + x]
    right = part.y_size if share != 0.0 else 0
    low = (1.0 - share) * costs[corner] + share * costs[corner + right]
    if part.y_size < 2:
        return low, 0.0
    high = (1.0 - share) * costs[corner + 1] + share * costs[corner + right + 1]
    return low, (high - low) / (costs[part.y_at + j + 1] - costs[part.y_at + j])


@inlined
def surface_us(costs: np.ndarray, part: np.void, x: int, y: float, j: int) -> float:
    """Bilinear value of a surface at a whole x, with the y knot ``j`` below; 0 for an absent part."""
    if part.y_size == 0:
        return 0.0
    low, slope = line_at(costs, part, x, j)
    return low + slope * (y - costs[part.y_at + j])


@inlined
def spend(engine: np.void, costs: np.ndarray, layout: np.void, weights: np.ndarray, at: int, times: float) -> None:
    """Add ``times`` uses of the cost at ``at`` to the weights of one phase, and its energy to the engine's."""
    weights[at] += times
    engine.energy_j += times * costs[layout.energy_at + at]


@inlined
def add_use(
    engine: np.void,
    costs: np.ndarray,
    layout: np.void,
    weights: np.ndarray,
    part: np.void,
    x: int,
    y: float,
    j: int,
    times: float,
) -> None:
    """Add ``times`` steps at (x, y) to the weights of the four knots around it; linear, so y may be a mean over steps.

    ``weights`` are those of one phase, laid out as ``costs``.
    """
    if part.y_size == 0:
        return
    corner = part.at + int(costs[part.x_at + x]) * part.y_size + j
    share = costs[part.share_at + x]
    right = part.y_size if share != 0.0 else 0
    upper = 0
    above = 0.0
    if part.y_size > 1:
        upper = 1
        above = (y - costs[part.y_at + j]) / (costs[part.y_at + j + 1] - costs[part.y_at + j])
    spend(engine, costs, layout, weights, corner, times * (1.0 - share) * (1.0 - above))
    spend(engine, costs, layout, weights, corner + right, times * share * (1.0 - above))
    spend(engine, costs, layout, weights, corner + upper, times * (1.0 - share) * above)
    spend(engine, costs, layout, weights, corner + right + upper, times * share * above)


@inlined
def steps_to_next_knot(costs: np.ndarray, part: np.void, j: int, y: float, slope: float) -> float:
    """Steps, with ``y`` growing by ``slope`` per step, until ``y`` passes the next knot; at least 1."""
    if part.y_size < 2 or slope <= 0.0 or j >= part.y_size - 2:
        return FOREVER
    return max(np.ceil((costs[part.y_at + j + 1] - y) / slope), 1.0)


@inlined
def decode_line(
    costs: np.ndarray,
    layout: np.void,
    batch: int,
    y: float,
    j: int,
    windowed: float,
    w: int,
    slope_w: float,
    linear_us: float,
    hidden_us: float,
    exposed_us: float,
) -> tuple:
    """(steps, step time, its slope, GPU time, its slope): the next decode steps with linear times (>= 1).

    ``y``, ``windowed``: mean contexts of the batch, which grow by 1 and ``slope_w`` a step; ``j``, ``w``: knots below.
    """
    steps = steps_to_next_knot(costs, layout.decode, j, y, 1.0)
    gpu_us, gpu_slope = linear_us, 0.0
    if layout.decode.y_size > 0:
        low, gpu_slope = line_at(costs, layout.decode, batch, j)
        gpu_us += low + gpu_slope * (y - costs[layout.decode.y_at + j])
    if layout.window.y_size > 0:
        low, window_slope = line_at(costs, layout.window, batch, w)
        gpu_us += low + window_slope * (windowed - costs[layout.window.y_at + w])
        gpu_slope += window_slope * slope_w
        steps = min(steps, steps_to_next_knot(costs, layout.window, w, windowed, slope_w))
    step_us, slope = exposed_us + gpu_us, gpu_slope
    if gpu_us < hidden_us:
        step_us, slope = exposed_us + hidden_us, 0.0
    if gpu_slope != 0.0 and (gpu_us < hidden_us) == (gpu_slope > 0.0):
        # the slower of host and GPU sets the pace, until the GPU's line crosses the host's
        steps = min(steps, max(np.ceil((hidden_us - gpu_us) / gpu_slope), 1.0))
    return steps, step_us, slope, gpu_us, gpu_slope


@inlined
def gap_bin(histogram: np.ndarray, gap_us: float) -> int:
    """The logarithmic histogram bin of an inter-token gap."""
    return min(max(int(np.log(max(gap_us, 1.0)) / BIN_WIDTH), 0), histogram.size - 1)


@inlined
def add_gap_line(histogram: np.ndarray, first_us: float, slope_us: float, steps: int, count: int) -> None:
    """Add ``count`` gaps for each of ``steps`` steps with linear times to the histogram, bin by bin."""
    done = 0
    while done < steps:
        gap = first_us + slope_us * done
        number = gap_bin(histogram, gap)
        inside = steps - done
        if abs(slope_us) > 1e-12 and inside > 1:
            edge = np.exp((number + (1 if slope_us > 0.0 else 0)) * BIN_WIDTH)
            inside = min(inside, max(int((edge - gap) / slope_us), 1))
        histogram[number] += count * inside
        done += inside


@inlined
def line_time(first_us: float, slope_us: float, steps: float) -> float:
    """Total time of ``steps`` steps whose times grow linearly."""
    return steps * first_us + slope_us * steps * (steps - 1.0) / 2.0


@inlined
def steps_until(first_us: float, slope_us: float, most: int, span_us: float) -> int:
    """Fewest steps (at most ``most``) with linear times that take at least ``span_us``: a parabola's root, rounded."""
    if span_us <= 0.0:
        return 0
    steps = span_us / first_us
    if slope_us != 0.0:
        half = first_us - slope_us / 2.0
        root = half * half + 2.0 * slope_us * span_us
        steps = (np.sqrt(root) - half) / slope_us if root > 0.0 else float(most)
    found = min(max(int(steps), 0), most)
    while found > 0 and line_time(first_us, slope_us, found - 1) >= span_us:
        found -= 1
    while found < most and line_time(first_us, slope_us, found) < span_us:
        found += 1
    return found


@inlined
def cut_line(first_us: float, slope_us: float, steps: int, span_us: float, asynchronous: bool) -> tuple:
    """(steps, whether the run ends with them, whether they pass ``span_us``), of up to ``steps`` linear ones.

    The run ends after the step that passes ``span_us``; with asynchronous scheduling one step later, as that step was
    prepared already.
    """
    if span_us <= 0.0:
        return 1, True, True
    if span_us == FOREVER:
        return steps, False, False
    passing = steps_until(first_us, slope_us, steps, span_us)
    if line_time(first_us, slope_us, passing) < span_us:
        return steps, False, False
    if not asynchronous:
        return passing, True, True
    # the additional step may belong to the same segment
    return (passing + 1, True, True) if passing < steps else (passing, False, True)
