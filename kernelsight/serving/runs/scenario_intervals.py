"""90 % intervals of the metrics that ``scenario_summary`` predicts.

Two half-widths, as logarithms, add up as squares: how far a metric moves when the scenario is simulated at the ends of
the intervals of kernels and host, and the residual scatter of measured runs (``serving_spread``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces
from kernelsight.dataflow.sums import rows_by_key, sorted_by

TIMES = tuple(f"{metric}_{name}_ms" for metric in ("ttft", "tpot", "e2e") for name in ("mean", "p50", "p90", "p99"))
RATES = {"output_throughput": "output_tokens", "request_throughput": "completed"}
METRICS = tuple(sorted((*TIMES, *RATES)))
WHOLE = METRICS.index("e2e_mean_ms")
ENDS = ("middle", "fast", "slow")
Z_90 = 1.6448536269514722


@produces("scenario_intervals")
def intervals_of(
    scenario_summary: pa.Table,
    scenarios: pa.Table,
    request_statistics_at_ends: pa.Table,
    serving_spread: pa.Table,
) -> pa.Table:
    """90 % intervals of what scenario_summary predicts: errors of kernels and host, and scatter of measured runs."""
    at_ends = {end: request_statistics_at_ends.filter(pc.equal(request_statistics_at_ends["end"], end)) for end in ENDS}
    names = at_ends[ENDS[0]]["scenario_id"].combine_chunks()
    names = names.take(pc.sort_indices(names))
    served = {end: rows_by_key(rows, "scenario_id", names) for end, rows in at_ends.items()}
    up, down = _moves({end: _figures(rows) for end, rows in served.items()})
    planned = rows_by_key(scenarios, "scenario_id", names)
    half = _halves(planned, served[ENDS[0]], serving_spread)
    with np.errstate(divide="ignore", invalid="ignore"):
        above, below = _hypotenuse(up, half), _hypotenuse(down, half)
        for rate in map(METRICS.index, RATES):
            # throughput varies inversely with E2E latency, as far as it moves at all: arrivals may determine it
            above[rate] = up[rate] / _nonzero(down[WHOLE]) * _hypotenuse(down[WHOLE], half[rate])
            below[rate] = down[rate] / _nonzero(up[WHOLE]) * _hypotenuse(up[WHOLE], half[rate])
    predicted = _columns(rows_by_key(scenario_summary, "scenario_id", names), METRICS)
    has_interval = ~np.isnan(predicted) & ~np.isnan(half) & _is_served(served)
    scenario, metric = np.nonzero(has_interval.T)
    middle = predicted.T[has_interval.T]
    low, high = (
        middle * pc.exp(pa.array(np.nan_to_num(sign * wide.T[has_interval.T]))).to_numpy()
        for sign, wide in ((-1.0, below), (1.0, above))
    )
    words = pa.array(METRICS, pa.string())
    return pa.table(
        {
            "scenario_id": names.take(pa.array(scenario)),
            "metric": words.take(pa.array(metric)),
            "predicted": middle,
            "low": low,
            "high": high,
        }
    )


def _columns(table: pa.Table, names: tuple[str, ...]) -> np.ndarray:
    """Return columns as one array of shape [columns, rows], nan for null."""
    return np.array([np.asarray(table[name].to_numpy(), float) for name in names]).reshape(len(names), table.num_rows)


def _figures(statistics: pa.Table) -> np.ndarray:
    """Return METRICS of rows of ``request_statistics``, shape [metrics, scenarios]; nan for what is unknown or 0."""
    duration_s = _nonzero(_columns(statistics, ("duration_s",))[0])
    rates = {name: _columns(statistics, (counted,))[0] / duration_s for name, counted in RATES.items()}
    times = dict(zip(TIMES, _columns(statistics, TIMES), strict=True))
    figures = np.array([(times | rates)[name] for name in METRICS])
    return np.where(figures > 0.0, figures, np.nan)


def _moves(figures: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return how far each metric moves up and down from its median at the ends, as logarithms."""
    middle = figures[ENDS[0]]
    most, least = (by.reduce(list(figures.values())) for by in (np.fmax, np.fmin))
    return _log(most / middle), _log(middle / least)


def _is_served(served: Mapping[str, pa.Table]) -> np.ndarray:
    """Return where a metric has a value at one end or more, and so has the mean E2E latency; [metrics, scenarios]."""
    has_value = np.logical_or.reduce([~np.isnan(_figures(rows)) for rows in served.values()])
    return has_value & has_value[WHOLE]


def _halves(scenarios: pa.Table, middle: pa.Table, spread: pa.Table) -> np.ndarray:
    """Return half the 90 % interval of the residual scatter of measured runs, shape [metrics, scenarios], logarithms.

    ``serving_spread`` states it by the number of users who take turns: of a closed loop with more requests than users.
    """
    max_in_flight, completed = _columns(scenarios, ("max_concurrency",))[0], _columns(middle, ("completed",))[0]
    users = np.where(completed > max_in_flight, max_in_flight, 0.0)
    halves = np.full((len(METRICS), users.size), np.nan)
    for row in sorted_by(spread, "users").to_pylist():
        rows = users >= row["users"]
        of_rates = RATES if row["metric"] == "e2e" else ()
        for number, metric in enumerate(METRICS):
            if metric in of_rates or metric.startswith(row["metric"]):
                halves[number, rows] = Z_90 * row["log_sd"]
    return halves


def _hypotenuse(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.sqrt(_square(first) + _square(second))


# powers, logarithms and exponentials by the C library: numpy's own may differ in the last bit from machine to machine
def _square(values: np.ndarray) -> np.ndarray:
    return _by_arrow(lambda flat: pc.power(flat, 2.0), values)


def _log(values: np.ndarray) -> np.ndarray:
    return _by_arrow(pc.ln, values)


def _by_arrow(function: Callable[[pa.Array], pa.Array], values: np.ndarray) -> np.ndarray:
    return function(pa.array(values.ravel())).to_numpy(zero_copy_only=False).reshape(values.shape)


def _nonzero(values: np.ndarray) -> np.ndarray:
    return np.where(values == 0.0, np.nan, values)
