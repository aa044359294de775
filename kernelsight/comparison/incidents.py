"""Incidents of a log: outages, pauses, slower for a while (incident) and slower to the end (change)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.comparison.lost_time import lost_time
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import Replayed
from kernelsight.comparison.speed import Speed, speed_of

# outage: no first or last token for this long, though requests are in flight and the replay has tokens
OUTAGE_S = 5.0
# spacing of moments at which all requests may stop, the shortest stop that differs from noise, length of a fit, seconds
STOP_WIDTH_S, LEAST_STOP_S, SPAN_S = 0.25, 0.12, 120.0
# a stop is a pause if this share of the time lost within AROUND_S of it is lost at once
AT_ONCE, AROUND_S = 0.6, 3.0
# pauses are reported if they make this share of the time that requests took longer than predicted
LEAST_OF_MISS = 0.2
# smallest change of the logarithm of the speed that counts, and its smallest number of standard errors
LEAST_CHANGE, LEAST_Z = 0.06, 6.0
# windows in a row are correlated: the effective number is smaller by this factor
CORRELATED = 5.0
LEAST_WINDOWS, MOST_BOXES = 4, 3
# windows of the running median that noise is measured against
SMOOTH = 13
# a slower GPU delays the fastest requests too, by this share of the slowdown at least; other load does not
SAME_SHIFT = 0.55
EDGE_S = 15.0
# requests whose gaps between tokens are read on either side of a change
MOST_LOOKED_AT = 400
# spans of SPAN_S seconds that are searched for stops
MOST_SPANS = 6


class Incident(NamedTuple):
    """One event: ``kind`` change or incident, ``name`` gpu, pause, restart or other_load; moments in seconds.

    ``value``: factor on time, or seconds of a pause or an outage; ``events``: number of pauses or outages; ``lost_s``:
    seconds lost, summed over requests, by which events are ranked.
    """

    kind: str
    name: str
    from_s: float
    to_s: float
    value: float
    events: int
    lost_s: float


def incidents_of(measured: Measured, base: Replayed, gaps: pa.ChunkedArray | None = None) -> list[Incident]:
    """Return the events of a log, those that lost most time first.

    ``base``: its replay; ``gaps``: ``chunk_gaps_ms`` of its requests, which distinguish a slower GPU from other load.
    """
    lost = lost_time(measured, base)
    if lost is None:
        return []
    speed = speed_of(measured, base, lost)
    outages = _outages(measured, base)
    pauses = [] if outages else _pauses(measured, base)
    boxes = []
    if not pauses:
        boxes = _boxes(speed, [(incident.from_s, incident.to_s) for incident in outages])
    spans = [_incident_of(box, speed, measured, base, gaps) for box in boxes]
    incidents = [*outages, *pauses, *(span for span in spans if span is not None)]
    if outages:  # slow requests after an outage are its backlog
        incidents = [
            incident for incident in incidents if incident.name == "restart" or incident.to_s < outages[0].from_s
        ]
    return sorted(
        (incident._replace(lost_s=float(incident.lost_s)) for incident in incidents),
        key=lambda incident: -abs(incident.lost_s),
    )


def _outages(measured: Measured, base: Replayed) -> list[Incident]:
    """Return outages: intervals without a first or last token though requests were sent and the replay has tokens."""
    answered = measured.ok & np.isfinite(measured.e2e_ms)
    first_s = measured.first_s[answered]
    last_s = (measured.sent_s + measured.e2e_ms / 1e3)[answered]
    moments = np.unique(np.concatenate([first_s, last_s]))
    predicted_ends_s = np.sort(base.finish_ns[base.served]) / 1e9
    outages = []
    for index in np.flatnonzero(np.diff(moments) > OUTAGE_S):
        begin, end = float(moments[index]), float(moments[index + 1])
        predicted = np.searchsorted(predicted_ends_s, end) - np.searchsorted(predicted_ends_s, begin)
        sent = np.count_nonzero((measured.sent_s >= begin) & (measured.sent_s < end - 1.0))
        # one long answer alone gives no first or last token for long
        if predicted >= 5 and sent >= 3:
            outages.append(Incident("incident", "restart", begin, end, end - begin, 1, (end - begin) * max(sent, 1)))
    return outages


def _pauses(measured: Measured, base: Replayed) -> list[Incident]:
    """Return the pauses of a log as one event: moments at which all decoding requests are late by the same time."""
    begin = measured.first_s
    measured_s, predicted_s = measured.decode_ms / 1e3, (base.finish_ns - base.first_ns) / 1e9
    rows = np.flatnonzero(
        measured.ok & base.served & np.isfinite(measured_s) & (measured_s > 0.0) & (predicted_s > 0.0)
    )
    if rows.size < 30:
        return []
    begin, measured_s, predicted_s = begin[rows], measured_s[rows], predicted_s[rows]
    level = float(np.median(measured_s / predicted_s))
    late = measured_s - level * predicted_s
    moments, stops = _stops(begin, begin + measured_s, late, 0.02 * measured_s + 0.01)
    if not moments.size:
        return []
    distance_s = np.abs(moments[:, None] - moments[None, :])
    at_once = (stops * (distance_s <= 2 * STOP_WIDTH_S)).sum(axis=1)
    around = (stops * (distance_s <= AROUND_S)).sum(axis=1)
    highest = np.array([stops[row].max() for row in (distance_s <= AROUND_S)])
    chosen = (stops >= highest) & (at_once >= LEAST_STOP_S) & (at_once >= AT_ONCE * around)
    chosen &= at_once > _longest_prompts(moments, at_once, measured, base) / AT_ONCE
    if not chosen.any() or at_once[chosen].sum() < 0.5 * stops.sum():
        return []
    hit_requests = int(sum(((begin < moment) & (begin + measured_s > moment)).sum() for moment in moments[chosen]))
    stop_s = float(np.median(at_once[chosen]))
    excess_s = abs(float(np.nansum(measured.e2e_ms[rows] - base.e2e_ms[rows]))) / 1e3
    # in a long log only some spans are searched for stops
    looked_at = min(MOST_SPANS * SPAN_S / max(float(np.ptp(begin)), 1e-9), 1.0)
    if stop_s * hit_requests < LEAST_OF_MISS * excess_s * looked_at:
        return []
    from_s, to_s = float(moments[chosen].min()), float(moments[chosen].max()) + stop_s
    return [Incident("incident", "pause", from_s, to_s, stop_s, int(chosen.sum()), stop_s * hit_requests)]


def _longest_prompts(moments: np.ndarray, stops: np.ndarray, measured: Measured, base: Replayed) -> np.ndarray:
    """Return the longest predicted prefill among the log's prompts that end at each moment, s, shape [moments].

    ``stops``: seconds of the stop at each moment, within which a prompt ends that explains it.
    """
    rows = np.flatnonzero(measured.ok & base.served & np.isfinite(measured.first_s))
    rows = rows[np.argsort(measured.first_s[rows])]
    prefill_s = (base.first_ns - base.scheduled_ns)[rows] / 1e9
    ends = (moments - 2 * STOP_WIDTH_S, moments + stops + 2 * STOP_WIDTH_S)
    spans = zip(*(np.searchsorted(measured.first_s[rows], end) for end in ends), strict=True)
    return np.array([prefill_s[start:stop].max(initial=0.0) for start, stop in spans])


def _stops(begin: np.ndarray, end: np.ndarray, late: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return moments and the length of the stop at each, s: nonnegative least squares in spans of SPAN_S seconds.

    ``begin``, ``end``: of each request's decode, s; ``late``: its lateness, s; ``sd``: standard deviation of that, s.
    """
    from scipy.optimize import nnls

    stops, starts = [], np.arange(begin.min(), end.max(), SPAN_S)
    for start in starts[:: -(-starts.size // MOST_SPANS)]:
        in_span = (begin < start + SPAN_S) & (end > start)
        edges = np.arange(start, min(start + SPAN_S, end.max()), STOP_WIDTH_S) + STOP_WIDTH_S / 2
        if in_span.sum() < 10 or not edges.size:
            continue
        inside = ((begin[in_span, None] < edges) & (end[in_span, None] > edges)).astype(float) / sd[in_span, None]
        sizes = nnls(inside, late[in_span] / sd[in_span], maxiter=20 * edges.size)[0]
        stops += [(moment, size) for moment, size in zip(edges, sizes, strict=True) if size > 0.02]
    moments, sizes = (np.array([stop[column] for stop in stops]) for column in (0, 1))
    return moments, sizes


class _Box(NamedTuple):
    """Windows of a log, from ``first`` to ``last``, whose speed differs by ``log_factor``."""

    first: int
    last: int
    log_factor: float


def _boxes(speed: Speed, outages: list[tuple[float, float]]) -> list[_Box]:
    """Return the spans of windows with another speed, the most significant first, without overlap."""
    measured_windows = np.flatnonzero(np.isfinite(speed.log_factor))
    for begin, end in outages:
        measured_windows = measured_windows[
            (speed.start_s[measured_windows] < begin) | (speed.start_s[measured_windows] > end)
        ]
    values = speed.log_factor[measured_windows].copy()
    boxes: list[_Box] = []
    for _ in range(MOST_BOXES):
        if values.size < 4 * LEAST_WINDOWS:
            break
        box = _clearest(values)
        if box is None:
            break
        start, stop, size = box
        boxes.append(_Box(int(measured_windows[start]), int(measured_windows[stop - 1]), size))
        values[start:stop] -= size
    # a span within or next to a more significant one is its edge, or its backlog
    margin = int(np.ceil(EDGE_S / speed.width_s))
    chosen: list[_Box] = []
    for box in boxes:
        if all(box.last < other_box.first - margin or box.first > other_box.last + margin for other_box in chosen):
            chosen.append(box)
    return chosen


def _clearest(values: np.ndarray) -> tuple[int, int, float] | None:
    """Return (start, stop, difference) of the span with the largest z score against the rest; None if not significant.

    ``values``: logarithms of speed by window.
    """
    count = values.size
    sums = np.concatenate([[0.0], np.cumsum(values)])
    starts, stops = np.triu_indices(count + 1, LEAST_WINDOWS)
    inside_count = stops - starts
    outside = count - inside_count
    keep = outside >= max(LEAST_WINDOWS, count // 10)
    starts, stops, inside_count, outside = starts[keep], stops[keep], inside_count[keep], outside[keep]
    inside_sum = sums[stops] - sums[starts]
    difference = inside_sum / inside_count - (sums[-1] - inside_sum) / outside
    neighbours = np.lib.stride_tricks.sliding_window_view(np.pad(values, SMOOTH // 2, mode="edge"), SMOOTH)
    noise = max(1.5 * 1.4826 * float(np.median(np.abs(values - np.median(neighbours, axis=1)))), 0.02)
    z = np.abs(difference) / (noise * np.sqrt(CORRELATED * (1.0 / inside_count + 1.0 / outside)))
    best = int(np.argmax(z))
    if z[best] < LEAST_Z or abs(difference[best]) < LEAST_CHANGE:
        return None
    return int(starts[best]), int(stops[best]), float(difference[best])


def _incident_of(
    box: _Box, speed: Speed, measured: Measured, base: Replayed, gaps: pa.ChunkedArray | None
) -> Incident | None:
    """Return a span as an event: a change if it lasts to the end, else an incident; of the GPU, or of other load.

    None: the GPU would be slower, but first tokens came sooner after their prompts than outside of the span.
    """
    begin, end = float(speed.start_s[box.first]), float(speed.start_s[box.last] + speed.width_s)
    measured_s = speed.start_s[np.isfinite(speed.log_factor)]
    if begin - measured_s[0] < 2.0 * speed.width_s:
        # a slow beginning is a change to faster at its end
        change, begin, factor = True, end, -box.log_factor
        end = float(measured_s[-1])
    else:
        change, factor = end > measured_s[-1] - 0.04 * (measured_s[-1] - measured_s[0]), box.log_factor
    inside = (measured.sent_s >= begin) & (measured.sent_s < end) & measured.ok & base.served
    outside = ((measured.sent_s < begin - 2.0) | (measured.sent_s > end + 10.0)) & measured.ok & base.served
    is_other_load = factor > 0.0 and _is_other_load(factor, (begin, end), inside, outside, measured, base, gaps)
    if factor > 0.0 and not is_other_load and _sooner(inside, outside, measured, base):
        return None
    lost_s = float(speed.running[box.first : box.last + 1].sum() * speed.width_s * -np.expm1(-factor))
    kind = "change" if change else "incident"
    return Incident(kind, "other_load" if is_other_load else "gpu", begin, end, float(np.exp(factor)), 1, lost_s)


def _sooner(inside: np.ndarray, outside: np.ndarray, measured: Measured, base: Replayed) -> bool:
    """Whether TTFT, over that predicted, is lower inside of a span than outside, by LEAST_CHANGE at least."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.log(measured.ttft_ms / base.ttft_ms)
    parts = [log_ratio[is_part & np.isfinite(log_ratio)] for is_part in (inside, outside)]
    return min(part.size for part in parts) >= 10 and float(np.median(parts[0]) - np.median(parts[1])) < -LEAST_CHANGE


def _is_other_load(
    factor: float, span: tuple[float, float], inside: np.ndarray, outside: np.ndarray, measured: Measured,
    base: Replayed, gaps: pa.ChunkedArray | None,
) -> bool:  # fmt: skip
    """Whether the fastest steps are as fast as before: prompts of other load lie between, the GPU is not slower.

    ``factor``: logarithm of the slowdown; ``span``: of the event, s; ``inside``, ``outside``: masks of requests.
    """
    if gaps is not None and gaps.null_count < len(gaps):
        fastest = [_fastest_step(measured, gaps, is_part, span) for is_part, span in ((None, span), (outside, None))]
        if min(fastest) > 0.0:
            return bool(np.log(fastest[0] / fastest[1]) < 0.7 * factor)
    miss = measured.ttft_ms - base.ttft_ms
    inside_miss, outside_miss = (miss[is_part & np.isfinite(miss)] for is_part in (inside, outside))
    if inside_miss.size < 10 or outside_miss.size < 10:
        return False
    shift = float(np.quantile(inside_miss, 0.1) - np.quantile(outside_miss, 0.1))
    # front-end time before the engine does not grow with a slower GPU
    measured_ttft_ms = measured.ttft_ms[outside & np.isfinite(measured.ttft_ms)]
    fast_ttft_ms = min(float(np.quantile(ttft_ms, 0.1)) for ttft_ms in (measured_ttft_ms, base.ttft_ms[outside]))
    return shift < SAME_SHIFT * np.expm1(factor) * fast_ttft_ms


def _fastest_step(
    measured: Measured, gaps: pa.ChunkedArray, is_part: np.ndarray | None, span: tuple[float, float] | None
) -> float:
    """Return the 5th percentile of gaps between tokens, ms, of masked requests or within a span; 0 without gaps."""
    first_s, last_s = measured.first_s, measured.last_s
    rows = np.flatnonzero(measured.ok & ((first_s < span[1]) & (last_s > span[0]) if span else is_part))
    values = []
    for row in rows[:: max(rows.size // MOST_LOOKED_AT, 1)]:
        request_gaps = gaps[int(row)].values
        if request_gaps is None or not len(request_gaps):
            continue
        request_gaps = request_gaps.to_numpy()
        token_s = first_s[row] + np.cumsum(request_gaps) / 1e3
        values.append(request_gaps if span is None else request_gaps[(token_s > span[0]) & (token_s < span[1])])
    gaps_ms = np.concatenate(values) if values else np.zeros(0)
    gaps_ms = gaps_ms[gaps_ms > 0.05]  # tokens of one chunk arrive together
    return float(np.quantile(gaps_ms, 0.05)) if gaps_ms.size else 0.0
