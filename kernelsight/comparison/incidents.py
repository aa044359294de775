"""Events of a log: outages, pauses, incidents (slower for a while) and changes (slower to the end)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.comparison.lost_time import lost_time
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import Replayed
from kernelsight.comparison.speed import Speed, speed_of

# no token for so long, where requests were there and the replay has tokens, is an outage
OUTAGE_S = 5.0
# moments at which everything may stop, and the shortest stop that differs from noise, seconds
STOP_WIDTH_S, LEAST_STOP_S, SPAN_S = 0.25, 0.12, 120.0
# a stop is a pause where this share of what is lost around it is lost at once
AT_ONCE, AROUND_S = 0.6, 3.0
# pauses are named where they take this share of what requests took longer than predicted
LEAST_OF_MISS = 0.2
# smallest change of the logarithm of the speed that counts, and its smallest number of standard errors
LEAST_CHANGE, LEAST_Z = 0.06, 6.0
# windows in a row err together, as if there were fewer of them
TOGETHER = 5.0
LEAST_WINDOWS, MOST_BOXES = 4, 3
# windows in whose median a change shows, and noise does not
SMOOTH = 13
# slower steps of everything delay also the fastest requests; other load does not
SAME_SHIFT = 0.55
EDGE_S = 15.0
# requests whose steps are looked at on either side of a change
MOST_LOOKED_AT = 400
# spans of two minutes that stops are looked for in
MOST_SPANS = 6


class Incident(NamedTuple):
    """One event: ``kind`` change or incident, ``name`` gpu, pause, restart or other_load; moments in seconds.

    ``value``: the factor, or seconds of a pause or an outage; ``events``: how many there were; ``lost_s``: seconds of
    requests that were lost, which says which event is the largest.
    """

    kind: str
    name: str
    from_s: float
    to_s: float
    value: float
    events: int
    lost_s: float


def incidents_of(measured: Measured, base: Replayed, gaps: pa.ChunkedArray | None = None) -> list[Incident]:
    """Return the events of a log, those that lost most first; ``gaps``: ``chunk_gaps_ms`` of its requests."""
    lost = lost_time(measured, base)
    if lost is None:
        return []
    speed = speed_of(measured, base, lost)
    outages = _outages(measured, base)
    pauses = [] if outages else _pauses(measured, base)
    boxes = []
    if not pauses:
        boxes = _boxes(speed, [(one.from_s, one.to_s) for one in outages])
    incidents = [*outages, *pauses, *(_named(box, speed, measured, base, gaps) for box in boxes)]
    if outages:  # what follows on an outage is its backlog
        incidents = [one for one in incidents if one.name == "restart" or one.to_s < outages[0].from_s]
    return sorted((one._replace(lost_s=float(one.lost_s)) for one in incidents), key=lambda one: -abs(one.lost_s))


def _outages(measured: Measured, base: Replayed) -> list[Incident]:
    """Return intervals in which no request got a token though some were there, and in which the replay has tokens."""
    done = measured.ok & np.isfinite(measured.e2e_ms)
    first = (measured.sent_s + np.nan_to_num(measured.ttft_ms) / 1e3)[done]
    last = (measured.sent_s + measured.e2e_ms / 1e3)[done]
    moments = np.unique(np.concatenate([first, last]))
    ours = np.sort(base.finish_ns[base.served]) / 1e9
    outages = []
    for place in np.flatnonzero(np.diff(moments) > OUTAGE_S):
        begin, end = float(moments[place]), float(moments[place + 1])
        predicted = np.searchsorted(ours, end) - np.searchsorted(ours, begin)
        sent = np.count_nonzero((measured.sent_s >= begin) & (measured.sent_s < end - 1.0))
        # one long answer alone gives no first or last token for long
        if predicted >= 5 and sent >= 3:
            outages.append(Incident("incident", "restart", begin, end, end - begin, 1, (end - begin) * max(sent, 1)))
    return outages


def _pauses(measured: Measured, base: Replayed) -> list[Incident]:
    """Return the stops of everything: requests that were decoding at one moment are late by as much."""
    begin = measured.sent_s + np.nan_to_num(measured.ttft_ms) / 1e3
    real, ours = measured.decode_ms / 1e3, (base.finish_ns - base.first_ns) / 1e9
    rows = np.flatnonzero(measured.ok & base.served & np.isfinite(real) & (real > 0.0) & (ours > 0.0))
    if rows.size < 30:
        return []
    begin, real, ours = begin[rows], real[rows], ours[rows]
    level = float(np.median(real / ours))
    late = real - level * ours
    moments, stops = _stops(begin, begin + real, late, 0.02 * real + 0.01)
    if not moments.size:
        return []
    near = np.abs(moments[:, None] - moments[None, :])
    at_once = (stops * (near <= 2 * STOP_WIDTH_S)).sum(axis=1)
    around = (stops * (near <= AROUND_S)).sum(axis=1)
    highest = np.array([stops[row].max() for row in (near <= AROUND_S)])
    chosen = (stops >= highest) & (at_once >= LEAST_STOP_S) & (at_once >= AT_ONCE * around)
    if not chosen.any() or at_once[chosen].sum() < 0.5 * stops.sum():
        return []
    hit = int(sum(((begin < at) & (begin + real > at)).sum() for at in moments[chosen]))
    value = float(np.median(at_once[chosen]))
    excess_s = abs(float(np.nansum(measured.e2e_ms[rows] - base.e2e_ms[rows]))) / 1e3
    # of a long log stops are looked for in some spans alone
    looked_at = min(MOST_SPANS * SPAN_S / max(float(np.ptp(begin)), 1e-9), 1.0)
    if value * hit < LEAST_OF_MISS * excess_s * looked_at:
        return []
    from_s, to_s = float(moments[chosen].min()), float(moments[chosen].max()) + value
    return [Incident("incident", "pause", from_s, to_s, value, int(chosen.sum()), value * hit)]


def _stops(begin: np.ndarray, end: np.ndarray, late: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return moments, and how long everything stopped at each: nonnegative least squares, in spans of two minutes."""
    from scipy.optimize import nnls

    stops, starts = [], np.arange(begin.min(), end.max(), SPAN_S)
    for start in starts[:: -(-starts.size // MOST_SPANS)]:
        inside_span = (begin < start + SPAN_S) & (end > start)
        edges = np.arange(start, min(start + SPAN_S, end.max()), STOP_WIDTH_S) + STOP_WIDTH_S / 2
        if inside_span.sum() < 10 or not edges.size:
            continue
        inside = ((begin[inside_span, None] < edges) & (end[inside_span, None] > edges)).astype(float) / sd[
            inside_span, None
        ]
        sizes = nnls(inside, late[inside_span] / sd[inside_span], maxiter=20 * edges.size)[0]
        stops += [(at, size) for at, size in zip(edges, sizes, strict=True) if size > 0.02]
    moments, sizes = (np.array([one[place] for one in stops]) for place in (0, 1))
    return moments, sizes


class _Box(NamedTuple):
    first: int
    last: int
    log_factor: float


def _boxes(speed: Speed, without: list[tuple[float, float]]) -> list[_Box]:
    """Return the spans of time in which the speed was another one, the clearest first; they do not overlap."""
    known = np.flatnonzero(np.isfinite(speed.log_factor))
    for begin, end in without:
        known = known[(speed.start_s[known] < begin) | (speed.start_s[known] > end)]
    values = speed.log_factor[known].copy()
    boxes: list[_Box] = []
    for _ in range(MOST_BOXES):
        if values.size < 4 * LEAST_WINDOWS:
            break
        box = _clearest(values)
        if box is None:
            break
        first, last, size = box
        boxes.append(_Box(int(known[first]), int(known[last - 1]), size))
        values[first:last] -= size
    # what is found within or beside a larger change is its edge, or the backlog that it left
    margin = int(np.ceil(EDGE_S / speed.width_s))
    chosen: list[_Box] = []
    for box in boxes:
        if all(box.last < one.first - margin or box.first > one.last + margin for one in chosen):
            chosen.append(box)
    return chosen


def _clearest(values: np.ndarray) -> tuple[int, int, float] | None:
    """Return the box whose mean differs from the rest most clearly; None where none is clear."""
    count = values.size
    sums = np.concatenate([[0.0], np.cumsum(values)])
    first, last = np.triu_indices(count + 1, LEAST_WINDOWS)
    size = last - first
    rest = count - size
    keep = rest >= max(LEAST_WINDOWS, count // 10)
    first, last, size, rest = first[keep], last[keep], size[keep], rest[keep]
    inside = sums[last] - sums[first]
    difference = inside / size - (sums[-1] - inside) / rest
    beside = np.lib.stride_tricks.sliding_window_view(np.pad(values, SMOOTH // 2, mode="edge"), SMOOTH)
    noise = max(1.5 * 1.4826 * float(np.median(np.abs(values - np.median(beside, axis=1)))), 0.02)
    z = np.abs(difference) / (noise * np.sqrt(TOGETHER * (1.0 / size + 1.0 / rest)))
    best = int(np.argmax(z))
    if z[best] < LEAST_Z or abs(difference[best]) < LEAST_CHANGE:
        return None
    return int(first[best]), int(last[best]), float(difference[best])


def _named(box: _Box, speed: Speed, measured: Measured, base: Replayed, gaps: pa.ChunkedArray | None) -> Incident:
    """Return what a box is: a change where it lasts to the end; the GPU, or other load beside the log's."""
    begin, end = float(speed.start_s[box.first]), float(speed.start_s[box.last] + speed.width_s)
    known = speed.start_s[np.isfinite(speed.log_factor)]
    if begin - known[0] < 2.0 * speed.width_s:
        # faster from its end on: it was the beginning that was slow
        change, begin, factor = True, end, -box.log_factor
        end = float(known[-1])
    else:
        change, factor = end > known[-1] - 0.04 * (known[-1] - known[0]), box.log_factor
    inside = (measured.sent_s >= begin) & (measured.sent_s < end) & measured.ok & base.served
    outside = ((measured.sent_s < begin - 2.0) | (measured.sent_s > end + 10.0)) & measured.ok & base.served
    other = factor > 0.0 and _is_other_load(factor, (begin, end), inside, outside, measured, base, gaps)
    lost_s = float(speed.running[box.first : box.last + 1].sum() * speed.width_s * -np.expm1(-factor))
    kind = "change" if change else "incident"
    return Incident(kind, "other_load" if other else "gpu", begin, end, float(np.exp(factor)), 1, lost_s)


def _is_other_load(
    factor: float, span: tuple[float, float], inside: np.ndarray, outside: np.ndarray, measured: Measured,
    base: Replayed, gaps: pa.ChunkedArray | None,
) -> bool:  # fmt: skip
    """Whether the fastest steps are as fast as before: others' prompts lie between, the GPU itself is not slower."""
    if gaps is not None and gaps.null_count < len(gaps):
        fastest = [_fastest_step(measured, gaps, where, span) for where, span in ((None, span), (outside, None))]
        if min(fastest) > 0.0:
            return bool(np.log(fastest[0] / fastest[1]) < 0.7 * factor)
    miss = measured.ttft_ms - base.ttft_ms
    first, rest = (miss[where & np.isfinite(miss)] for where in (inside, outside))
    if first.size < 10 or rest.size < 10:
        return False
    shift = float(np.quantile(first, 0.1) - np.quantile(rest, 0.1))
    # a slow front end before the engine is no slower for its GPU
    real = measured.ttft_ms[outside & np.isfinite(measured.ttft_ms)]
    took = min(float(np.quantile(each, 0.1)) for each in (real, base.ttft_ms[outside]))
    return shift < SAME_SHIFT * np.expm1(factor) * took


def _fastest_step(
    measured: Measured, gaps: pa.ChunkedArray, where: np.ndarray | None, span: tuple[float, float] | None
) -> float:
    """Return the 5th percentile of the gaps between tokens, of some requests or within a span of time; 0 for none."""
    first = measured.sent_s + np.nan_to_num(measured.ttft_ms) / 1e3
    last = measured.sent_s + np.nan_to_num(measured.e2e_ms) / 1e3
    rows = np.flatnonzero(measured.ok & ((first < span[1]) & (last > span[0]) if span else where))
    values = []
    for row in rows[:: max(rows.size // MOST_LOOKED_AT, 1)]:
        request_gaps = gaps[int(row)].values
        if request_gaps is None or not len(request_gaps):
            continue
        request_gaps = request_gaps.to_numpy()
        at = first[row] + np.cumsum(request_gaps) / 1e3
        values.append(request_gaps if span is None else request_gaps[(at > span[0]) & (at < span[1])])
    together = np.concatenate(values) if values else np.zeros(0)
    together = together[together > 0.05]  # tokens of one chunk come together
    return float(np.quantile(together, 0.05)) if together.size else 0.0
