"""Service-level objectives: parsing, per-scenario check, and the cheapest deployment that meets them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput, unknown

if TYPE_CHECKING:
    import pyarrow as pa

METRICS = ("ttft", "tpot", "itl", "e2e", "queue")
STATISTICS = ("mean", "p50", "p90", "p99")
PRICE = "price_per_gpu_hour"
COST = "cost_per_million_output_tokens"
GOODPUT = {"ttft": "goodput_ttft_ms", "tpot": "goodput_tpot_ms", "e2el": "goodput_e2el_ms"}


def parse_objectives(words: list[str]) -> dict[str, float]:
    """Return objectives per request from arguments such as ttft:200.

    >>> parse_objectives(["ttft:200", "tpot:50"])
    {'goodput_ttft_ms': 200.0, 'goodput_tpot_ms': 50.0}
    """
    found = {}
    for word in words:
        name, _, value = word.partition(":")
        try:
            milliseconds = float(value)
        except ValueError:
            milliseconds = float("nan")
        if name not in GOODPUT or not 0 < milliseconds < float("inf"):
            raise InvalidInput(
                f"--goodput {word!r} is not valid; give ttft:MS, tpot:MS or e2el:MS with a positive number."
            )
        if GOODPUT[name] in found:
            raise InvalidInput(f"--goodput has {name} twice; give it once.")
        found[GOODPUT[name]] = milliseconds
    return found


def parse_slo(words: list[str]) -> dict[str, float]:
    """Return the largest allowed value per summary column from arguments such as ttft_p99:200, in milliseconds.

    >>> parse_slo(["ttft_p99:200", "tpot_mean:50"])
    {'ttft_p99_ms': 200.0, 'tpot_mean_ms': 50.0}
    """
    known = [f"{metric}_{statistic}" for metric in METRICS for statistic in STATISTICS]
    found: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition(":")
        name = name.replace("e2el_", "e2e_")
        if name not in known:
            raise unknown("metric of --slo", name, known, "Give METRIC_STATISTIC:MS, such as ttft_p99:200.")
        try:
            milliseconds = float(value)
        except ValueError:
            milliseconds = math.nan
        if not 0 < milliseconds < math.inf:
            raise InvalidInput(f"--slo {word!r} has no positive number; give {name}:MS.")
        if f"{name}_ms" in found:
            raise InvalidInput(f"--slo has {name} twice; give it once.")
        found[f"{name}_ms"] = milliseconds
    return found


def meets_slo(rows: pa.Table, slo: Mapping[str, float]) -> pa.Array:
    """Return for each row of ``scenario_summary`` whether it meets every objective; false if a request was rejected.

    A metric without a value (TPOT, if all outputs have one token) counts as met.
    """
    import pyarrow.compute as pc

    kept = pc.and_(pc.greater(rows["completed"], 0), pc.equal(rows["completed"], rows["requests"]))
    for name, most in slo.items():
        kept = pc.and_(kept, pc.fill_null(pc.less_equal(rows[name], most), True))
    return kept


def with_costs(rows: pa.Table) -> pa.Table:
    """Append the cost per million output tokens if the rows have a GPU price; null if nothing was served."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if PRICE not in rows.column_names:
        return rows
    per_hour = pc.multiply(rows[PRICE], pc.cast(rows["gpus"], pa.float64()))
    tokens = pc.multiply(rows["output_throughput"], 3600.0 / 1e6)
    # zero throughput: null, not infinity
    tokens = pc.if_else(pc.equal(tokens, 0.0), pa.scalar(None, pa.float64()), tokens)
    return rows.append_column(COST, pc.divide(per_hour, tokens))


def cheapest(rows: pa.Table, rate: float | None = None) -> dict[str, Any] | None:
    """Return the row with the lowest price per hour that meets the objectives, with its ``instances`` and price.

    Without ``rate``: among a sweep's rows with meets_slo, one instance each. With ``rate`` (requests per second): among
    the rows of ``find_rates``, each with as many instances as the rate needs, sharing it evenly. None: no row does.
    InvalidInput: the grid has no price.
    """
    if PRICE not in rows.column_names:
        raise InvalidInput(f"the cheapest deployment needs prices; add the column {PRICE} to the grid.")
    found = []
    for row in rows.to_pylist():
        if row[PRICE] is None or not row["meets_slo"]:
            continue
        instances = 1 if rate is None else max(math.ceil(rate / row["max_request_rate"]), 1)
        price = instances * row["gpus"] * row[PRICE]
        found.append(row | {"instances": instances, "price_per_hour": price})
    return min(found, key=lambda row: (row["price_per_hour"], row["scenario_id"]), default=None)
