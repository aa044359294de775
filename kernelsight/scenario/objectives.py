"""Service-level objectives (SLO, goodput): parsing, checks by scenario, and the cheapest deployment that meets them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.errors import InvalidInput, UnknownName, unknown
from kernelsight.files.numbers import is_number
from kernelsight.scenario.units import milliseconds_of

if TYPE_CHECKING:
    import pyarrow as pa

METRICS = ("ttft", "tpot", "itl", "e2e", "queue")
STATISTICS = ("mean", "p50", "p90", "p99")
STATISTIC = re.compile(rf"(?P<metric>{'|'.join(METRICS)})_(mean|p(?P<percent>\d{{1,2}}(\.\d{{1,6}})?))_ms")
PRICE = "price_per_gpu_hour"
# a shorter bound on a first token, without a unit, is taken for one in seconds
LEAST_MS = 3.0
# columns of costs: the whole price over input, output or all tokens
COSTS = {
    "input": "cost_per_million_input_tokens",
    "output": "cost_per_million_output_tokens",
    "all": "cost_per_million_tokens",
}
GOODPUT = {"ttft": "goodput_ttft_ms", "tpot": "goodput_tpot_ms", "e2el": "goodput_e2el_ms"}


def parse_objectives(words: list[str]) -> dict[str, float]:
    """Return goodput objectives per request, ms, from arguments of --goodput such as ttft:200.

    >>> parse_objectives(["ttft:200", "tpot:50"])
    {'goodput_ttft_ms': 200.0, 'goodput_tpot_ms': 50.0}
    """
    objectives = {}
    for word in words:
        name, _, value = word.partition(":")
        milliseconds = milliseconds_of(value)
        if name not in GOODPUT or not 0 < milliseconds < float("inf"):
            raise InvalidInput(
                f"--goodput {word!r} is not valid; give ttft:MS, tpot:MS or e2el:MS with a positive number."
            )
        if GOODPUT[name] in objectives:
            raise InvalidInput(f"--goodput has {name} twice; give it once.")
        objectives[GOODPUT[name]] = milliseconds
    return objectives


class Objective(NamedTuple):
    """An upper bound in ms on a statistic of a latency: percentile ``percent``, or None: the mean."""

    metric: str
    percent: float | None
    most_ms: float

    @property
    def column(self) -> str:
        """The column of ``scenario_summary`` with this statistic: ttft_p99_ms."""
        return f"{self.metric}_{'mean' if self.percent is None else f'p{self.percent:.15g}'}_ms"

    @property
    def share(self) -> float:
        """The share of requests that may exceed it; 0 for a mean."""
        return 0.0 if self.percent is None else round(1.0 - self.percent / 100.0, 12)

    def __str__(self) -> str:
        name, _, statistic = self.column.removesuffix("_ms").partition("_")
        return f"{name.upper()} {statistic} of {self.most_ms:,.10g} ms"


def objective_of(column: str, most_ms: float) -> Objective:
    """Return the objective on a column such as ttft_p99_ms or tpot_mean_ms; UnknownName for any other.

    >>> objective_of("ttft_p99.9_ms", 500.0)
    Objective(metric='ttft', percent=99.9, most_ms=500.0)
    """
    match = STATISTIC.fullmatch(column)
    percent = match and match["percent"]
    if not match and STATISTIC.fullmatch(f"{column}_ms"):
        raise UnknownName(f"unknown latency statistic {column!r}. Did you mean {column}_ms?")
    if not match or (percent and not 0.0 < float(percent) < 100.0):
        examples = [f"{metric}_{statistic}_ms" for metric in METRICS for statistic in STATISTICS]
        raise unknown("latency statistic", column, examples, "Any percentile is known: ttft_p99.9_ms.")
    return Objective(match["metric"], float(percent) if percent else None, float(most_ms))


def stated_slo(slo: Any) -> dict[str, float]:
    """Return the upper bounds in ms by summary column, from a mapping or from text as --slo takes it.

    InvalidInput: neither of these.

    >>> stated_slo("ttft_p95:1000 tpot_p99:40"), stated_slo({"ttft_p95_ms": 1000.0})
    ({'ttft_p95_ms': 1000.0, 'tpot_p99_ms': 40.0}, {'ttft_p95_ms': 1000.0})
    """
    if isinstance(slo, str):
        return parse_slo(slo.split())
    if isinstance(slo, Sequence) and all(isinstance(word, str) for word in slo):
        return parse_slo(list(slo))
    if not isinstance(slo, Mapping):
        raise InvalidInput(f"the objectives are {slo!r}; give a mapping such as {{'ttft_p99_ms': 500.0}}.")
    return dict(slo)


def objectives_of(slo: Mapping[str, float]) -> list[Objective]:
    """Return the objectives of a mapping from columns to bounds in ms; InvalidInput: empty, or no positive number."""
    if not slo:
        raise InvalidInput("no objective is given; give at least one, such as ttft_p99:500.")
    for name, most in slo.items():
        if not is_number(most) or most <= 0:
            raise InvalidInput(f"the objective on {name} is {most!r}; give a positive number of milliseconds.")
    return [objective_of(name, most) for name, most in slo.items()]


def objective_rows(slo: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return objectives as rows of the column ``slo`` of a table; InvalidInput: no positive number.

    >>> objective_rows({"ttft_p95_ms": 400})
    [{'statistic': 'ttft_p95_ms', 'most_ms': 400.0}]
    """
    pairs = zip(slo, objectives_of(slo), strict=True)
    return [{"statistic": name, "most_ms": objective.most_ms} for name, objective in pairs]


def slo_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mapping that ``objective_rows`` wrote.

    >>> slo_of(objective_rows({"ttft_p95_ms": 400}))
    {'ttft_p95_ms': 400.0}
    """
    return {row["statistic"]: row["most_ms"] for row in rows}


def parse_slo(words: list[str]) -> dict[str, float]:
    """Return the upper bounds in ms by summary column from arguments of --slo such as ttft_p99:200 (ms) or :2s.

    Every percentile is known: ttft_p99.9:500. InvalidInput: no such words, or seconds without their unit.

    >>> parse_slo(["ttft_p99:200", "tpot_mean:50ms", "e2el_p99.90:9s"])
    {'ttft_p99_ms': 200.0, 'tpot_mean_ms': 50.0, 'e2e_p99.9_ms': 9000.0}
    """
    most: dict[str, float] = {}
    for word in words:
        name, colon, value = word.partition(":")
        if not colon and "=" in word:
            raise InvalidInput(f"--slo {word!r} has no colon; write {word.replace('=', ':', 1)}.")
        try:
            column = objective_of(f"{name.replace('e2el_', 'e2e_')}_ms", 1.0).column
        except UnknownName:
            examples = [f"{metric}_{statistic}" for metric in METRICS for statistic in STATISTICS]
            if number := re.fullmatch(r"([a-z0-9]+)_(\d[\d.]*)", name):
                examples = [f"{number[1]}_p{number[2]}"]
            hint = "Give METRIC_STATISTIC:MS with mean or any percentile, such as ttft_p99:200."
            raise unknown("metric of --slo", name, examples, hint) from None
        milliseconds = milliseconds_of(value)
        if not 0 < milliseconds < math.inf:
            raise InvalidInput(f"--slo {word!r} has no positive number; give {name}:MS, or {name}:2s.")
        if value[-1:].isdigit() and milliseconds < LEAST_MS and column.startswith(("ttft", "e2e")):
            raise InvalidInput(f"--slo {word!r} is {value} ms; give {word}s for seconds, or {word}ms if it is meant.")
        if column in most:
            raise InvalidInput(f"--slo has {name} twice; give it once.")
        most[column] = milliseconds
    return most


def meets_slo(rows: pa.Table, slo: Mapping[str, float]) -> pa.Array:
    """Return for each row of ``scenario_summary`` whether it meets every objective; false if a request was rejected.

    A metric without a value (TPOT, if all outputs have one token) counts as met.
    """
    import pyarrow.compute as pc

    meets = pc.and_(pc.greater(rows["completed"], 0), pc.equal(rows["completed"], rows["requests"]))
    for name, most in slo.items():
        meets = pc.and_(meets, pc.fill_null(pc.less_equal(rows[name], most), True))
    return meets


def with_costs(rows: pa.Table) -> pa.Table:
    """Return rows with the costs per million input, output and all tokens, where they have a GPU price.

    Each is the whole price over the tokens of its kind; null: no tokens.
    """
    import pyarrow.compute as pc

    if PRICE not in rows.column_names:
        return rows
    per_hour = pc.multiply(rows[PRICE], rows["gpus"].cast("float64"))
    throughputs = {
        "input": pc.subtract(rows["total_throughput"], rows["output_throughput"]),
        "output": rows["output_throughput"],
        "all": rows["total_throughput"],
    }
    for kind, tokens_per_s in throughputs.items():
        # zero throughput: null, not infinity
        tokens = pc.if_else(pc.greater(tokens_per_s, 0.0), pc.multiply(tokens_per_s, 3600.0 / 1e6), None)
        rows = rows.append_column(COSTS[kind], pc.divide(per_hour, tokens))
    return rows


def cheapest(rows: pa.Table, rate: float | None = None) -> dict[str, Any] | None:
    """Return the row with the lowest cost per token that meets the objectives, with its ``instances`` and their price.

    Without ``rate``: among a sweep's rows with meets_slo, one instance each, at its own throughput. With ``rate``
    (requests/s): among the rows of ``find_rates``, each with the number of whole instances that the rate needs, which
    share it evenly; costs are then those at this rate. Rows without prices: the one with the fewest GPUs (per token,
    without ``rate``). None: no row meets the objectives.
    """
    ranked = []
    for row in rows.to_pylist():
        if not row["meets_slo"] or (PRICE in row and row[PRICE] is None):
            continue
        instances = 1 if rate is None else max(math.ceil(rate / row["max_request_rate"] * (1.0 - 1e-9)), 1)
        gpus = instances * row["gpus"]
        weight = gpus * row.get(PRICE, 1.0)
        ranked.append((weight / (row["total_throughput"] if rate is None else 1.0), row["scenario_id"], instances, row))
    if not ranked:
        return None
    *_, instances, row = min(ranked, key=lambda candidate: candidate[:2])
    cheapest_row = row | {"instances": instances, "gpus_needed": instances * row["gpus"]}
    if PRICE not in row:
        return cheapest_row
    cheapest_row["price_per_hour"] = instances * row["gpus"] * row[PRICE]
    if rate is not None:
        idle_factor = instances * row["max_request_rate"] / rate
        cheapest_row |= {name: row[name] * idle_factor for name in COSTS.values() if row[name] is not None}
    return cheapest_row


def interval_columns(figure: str) -> tuple[str, str]:
    """Return the names of a figure's columns for the lower and upper end of its interval.

    >>> interval_columns("ttft_p99_ms"), interval_columns("output_throughput")
    (('ttft_p99_low_ms', 'ttft_p99_high_ms'), ('output_throughput_low', 'output_throughput_high'))
    """
    name, unit = (figure.removesuffix("_ms"), "_ms") if figure.endswith("_ms") else (figure, "")
    return f"{name}_low{unit}", f"{name}_high{unit}"
