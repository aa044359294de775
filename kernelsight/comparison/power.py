"""GPU power over the time of a log: measured by an exporter or the log itself, and predicted by its replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.comparison.compared_log import ComparedLog, compared_logs, tables_beside
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import Variant, give_log
from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.dataflow.session import Session

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader

# a log's time line is its own if its first request starts within this many seconds of where it should
ALIGNED_S = 30.0
# share of the time from the first request to the end of the last that measured power has to cover
LEAST_COVERED = 0.8


class Series(NamedTuple):
    """Measured mean power of some GPUs in spans that do not overlap, shape [spans]; seconds on the replay's time line.

    ``gpus``: number of GPUs measured together, None if unknown.
    """

    start_s: np.ndarray
    end_s: np.ndarray
    power_w: np.ndarray
    gpus: int | None

    def joules(self, at_s: np.ndarray) -> np.ndarray:
        """Return the energy until each moment, J, from the first span on; 0 between measured spans."""
        edges = np.stack([self.start_s, self.end_s], axis=1).ravel()
        energy_j = np.stack([np.zeros(self.power_w.size), self.power_w * (self.end_s - self.start_s)], axis=1).ravel()
        return np.interp(at_s, edges, np.cumsum(energy_j))

    def seconds(self, at_s: np.ndarray) -> np.ndarray:
        """Return the measured seconds until each moment."""
        return self._replace(power_w=np.ones(self.power_w.size)).joules(at_s)


class MeanPower(NamedTuple):
    """Mean power of all measured GPUs while requests were served, W, and its standard error; ``gpus``: their number."""

    power_w: float
    error_w: float
    gpus: int | None


@reads("production_logs", "production_windows", "power_over_time", "scenario_energy")
@produces("power_vs_production")
def power_rows(
    comparisons: pa.Table,
    log_settings: pa.Table,
    compared_requests: pa.Table,
    *,
    read: Reader,
    fork: Callable[[], Session],
) -> list[dict[str, Any]]:
    """GPU power over time of each log, measured and predicted; logs without measured power are not simulated.

    Windows of the replay that are covered by measurements from end to end.
    """
    rows: list[dict[str, Any]] = []
    with fork() as session:
        for log in compared_logs(comparisons, log_settings, compared_requests, tables_beside(read)):
            if series := measured_power(log.requests, log.measured, log.tables):
                rows += [{"comparison_id": log.comparison_id, **row} for row in _beside_replay(log, series, session)]
    return rows


def measured_power(requests: pa.Table, measured: Measured, tables: Mapping[str, pa.Table]) -> list[Series]:
    """Return measured power: of the requests' column ``power_w``, else one series per machine with its GPUs.

    ``tables``: production_windows and production_logs of the log. Empty if no power was measured.
    """
    power = requests["power_w"].combine_chunks()
    if power.null_count < len(power) - 1:
        is_known = power.is_valid().to_numpy(zero_copy_only=False)
        at_s, power_w = measured.sent_s[is_known], power.drop_null().to_numpy()
        is_span_start = np.append(np.diff(at_s) > 0.0, False)
        return [Series(at_s[is_span_start], np.append(at_s[1:], 0.0)[is_span_start], power_w[is_span_start], None)]
    windows = tables["production_windows"]
    windows = windows.filter(pc.and_(pc.is_valid(windows["power_w"]), pc.is_valid(windows["end_s"])))
    series: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in windows.sort_by("start_s").to_pylist():
        series.setdefault((row["log_id"], row["replica"]), []).append(row)
    offset_s = _offsets_s(requests, measured.sent_s, tables["production_logs"])
    return (
        [] if offset_s is None else [_series(rows, offset_s.get(log_id, 0.0)) for (log_id, _), rows in series.items()]
    )


def mean_power(series: Sequence[Series], measured: Measured) -> MeanPower | None:
    """Return mean power from the first request to the end of the last; None if less than LEAST_COVERED was measured."""
    span = _served_s(measured)
    if not series or not np.ptp(span) > 0.0:
        return None
    power_w, variance = 0.0, 0.0
    for gpu_series in series:
        seconds, joules = (float(np.diff(cumulated(span))[0]) for cumulated in (gpu_series.seconds, gpu_series.joules))
        if seconds < LEAST_COVERED * float(np.ptp(span)) or seconds <= 0.0:
            return None
        span_w = gpu_series.power_w[(gpu_series.end_s > span[0]) & (gpu_series.start_s < span[1])]
        power_w += joules / seconds
        variance += float(span_w.var() / span_w.size)
    gpus = (
        None
        if any(gpu_series.gpus is None for gpu_series in series)
        else sum(gpu_series.gpus or 0 for gpu_series in series)
    )
    return MeanPower(power_w, variance**0.5, gpus)


def span_s(measured: Measured) -> float:
    """Return the seconds from the first request to the end of the last one."""
    return float(np.ptp(_served_s(measured)))


def _served_s(measured: Measured) -> np.ndarray:
    """Return the moments, s, at which the first request was sent and the last one ended, shape [2]."""
    ends_s = (measured.sent_s + measured.e2e_ms / 1e3)[measured.ok]
    ends_s = ends_s[np.isfinite(ends_s)]
    return np.array([float(measured.sent_s[measured.ok].min()), float(ends_s.max())]) if ends_s.size else np.zeros(2)


def _series(rows: Sequence[Mapping[str, Any]], offset_s: float) -> Series:
    """Return rows of ``production_windows`` of one machine as a series, ``offset_s`` later."""
    columns = (np.array([row[name] for row in rows], float) for name in ("start_s", "end_s", "power_w"))
    start_s, end_s, power_w = columns
    return Series(start_s + offset_s, end_s + offset_s, power_w, max(row["power_gpus"] or 0 for row in rows))


def _offsets_s(requests: pa.Table, at_s: np.ndarray, logs: pa.Table) -> dict[str, float] | None:
    """Return the offset of each log's time line from the replay's, s; empty if a single log has no unix times.

    None: logs of requests do not lie on one time line, as the replay leaves out the time between them.
    """
    starts = {row["log_id"]: row["start_unix_s"] for row in logs.to_pylist()}
    names = requests["log_id"].to_numpy()
    first_s = {name: float(at_s[names == name].min()) for name in dict.fromkeys(names.tolist())}
    start_times = [starts.get(name) for name in first_s]
    if None in start_times:
        return {} if len(first_s) == 1 else None
    offset_s = {name: start - min(start_times) for name, start in starts.items() if start is not None}
    return offset_s if all(abs(first_s[name] - offset_s[name]) <= ALIGNED_S for name in first_s) else None


def _beside_replay(log: ComparedLog, series: Sequence[Series], session: Session) -> list[dict[str, Any]]:
    """Return rows of ``power_vs_production`` of one log; none if its replay has no power."""
    with session.fork() as fork:
        if not give_log(fork, log.load, [Variant(log.question.flags)]):
            return []
        windows = fork.table("power_over_time").to_pylist()
        energy = fork.table("scenario_energy").to_pylist()
    if not windows or energy[0]["mean_power_w"] is None:
        return []
    edges = np.array([[row["start_s"], row["end_s"]] for row in windows])
    spans = np.diff(edges, axis=1).ravel()
    covered = [
        np.diff(gpu_series.seconds(edges), axis=1).ravel() >= spans - 1e-6 * np.maximum(spans, 1.0)
        for gpu_series in series
    ]
    usable = np.logical_and.reduce(covered) & (spans > 0.0)
    measured_w = sum(np.diff(gpu_series.joules(edges), axis=1).ravel() for gpu_series in series) / np.maximum(
        spans, 1e-9
    )
    gpus = (
        None
        if any(gpu_series.gpus is None for gpu_series in series)
        else sum(gpu_series.gpus or 0 for gpu_series in series)
    )
    low, high = (energy[0][f"mean_power_w_{end}"] / energy[0]["mean_power_w"] for end in ("low", "high"))
    return [
        {
            "start_s": windows[index]["start_s"],
            "end_s": windows[index]["end_s"],
            "gpus": energy[0]["gpus"],
            "measured_gpus": gpus,
            "measured_w": float(measured_w[index]),
            "predicted_w": windows[index]["power_w"],
            "predicted_low_w": windows[index]["power_w"] * low,
            "predicted_high_w": windows[index]["power_w"] * high,
        }
        for index in np.flatnonzero(usable).tolist()
    ]


def power_answer(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean power, measured and predicted, W, over the measured time; empty if none was measured.

    ``rows``: of ``power_vs_production``. ``error`` is None if another number of GPUs was measured than is deployed.
    """
    if not rows:
        return {}
    seconds = [row["end_s"] - row["start_s"] for row in rows]

    def mean(name: str) -> float:
        return sum(row[name] * span for row, span in zip(rows, seconds, strict=True)) / sum(seconds)

    first_row = rows[0]
    measured, predicted = mean("measured_w"), mean("predicted_w")
    comparable = first_row["measured_gpus"] in (None, first_row["gpus"]) and measured > 0.0
    return {
        "measured": measured,
        "predicted": predicted,
        "low": mean("predicted_low_w"),
        "high": mean("predicted_high_w"),
        "error": predicted / measured - 1.0 if comparable else None,
        "gpus": first_row["gpus"],
        "measured_gpus": first_row["measured_gpus"],
        "seconds": sum(seconds),
    }


def other_gpus(power: Mapping[str, Any] | None) -> list[str]:
    """Return one sentence if measured power is not comparable: of another number of GPUs than is deployed."""
    if not power or power["measured_gpus"] in (None, power["gpus"]):
        return []
    return [
        f"power of {power['measured_gpus']:,} GPUs was measured, and the deployment has {power['gpus']:,}: query those "
        "of the deployment alone (labels Hostname, gpu, UUID)"
    ]
