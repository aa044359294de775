"""The page of a sweep: rows, Pareto fronts, and the cheapest deployment of each load."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.number_format import number
from kernelsight.present.figures.files import figures_of
from kernelsight.present.page import MOST_ROWS, Figure, Page, Rows, Table, pairs, queried
from kernelsight.present.scatter import front_lines
from kernelsight.scenario.objectives import METRICS, PRICE, cheapest, interval_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

FIGURES = (
    *("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "e2e_p99_ms", "request_throughput"),
    *("output_throughput", "goodput", "output_throughput_per_gpu", "output_throughput_per_user", "peak_kv_share"),
)


def sweep_figures(columns: Sequence[str], constant: Sequence[str]) -> tuple[Figure, ...]:
    """Return the figures of a sweep; ``columns``: of the table sweep, ``constant``: those with the same value."""
    flags = [name for name in columns[2 : list(columns).index("status")] if name not in constant]
    added_columns = list(columns)[list(columns).index("idle_s") + 1 :]
    shown = ["scenario_id", *flags, "status", *(name for name in FIGURES if name in columns), *added_columns]
    select_list = ", ".join(f'"{name}"' for name in shown if name not in constant or name in ("scenario_id", "status"))
    table = f"select {select_list}\nfrom sweep\norder by output_throughput_per_gpu desc nulls last\nlimit {MOST_ROWS}"
    return (
        *figures_of("sweep").values(),
        Figure("Scenarios", f"At most {MOST_ROWS:,} rows; a click on a head sorts.", table, wide=True),
    )


# significant digits of imprecise values: ends of intervals, prices of tokens
ROUGH = 3
SHOWN = (
    *("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "output_throughput", "goodput"),
    *("output_throughput_per_gpu", "output_throughput_per_user", "cost_per_million_tokens", "meets_slo"),
)
HEADERS = {
    "tensor_parallel_size": "TP",
    "pipeline_parallel_size": "PP",
    "data_parallel_size": "DP",
    "request_rate": "req/s",
    "max_concurrency": "concurrency",
    "max_num_batched_tokens": "step tokens",
    "max_num_seqs": "seats",
    "max_request_rate": "highest req/s",
    "rate_low": "low",
    "rate_high": "high",
    "rate_if_slow": "if slow",
    "rate_if_fast": "if fast",
    "output_throughput": "tok/s",
    "output_throughput_per_gpu": "tok/s/GPU",
    "output_throughput_per_user": "tok/s/user",
    "goodput": "good req/s",
    "cost_per_million_tokens": "$/M tokens",
    "energy_per_output_token_j": "J/token",
    "meets_slo": "meets SLO",
}
# columns of --find-rate
FOUND = ("max_request_rate", "rate_low", "rate_high", "rate_if_slow", "rate_if_fast", "steady")
# further columns with --find-rate, after the statistics of the objectives
BESIDE_RATES = ("output_throughput_per_gpu", "cost_per_million_tokens", "meets_slo")
# columns that are no flags although rows differ in them: a price follows from its GPU, a rate from its search
NO_FLAGS = (*FOUND, PRICE)
MOST_SHOWN, MOST_LOADS = 40, 8
# flags that distinguish loads, as for Pareto fronts: not rate and concurrency
LOADS = (
    *("trace", "lengths_from", "length_distribution", "input_len", "output_len", "range_ratio", "input_len_cv"),
    *("output_len_cv", "prefix_len", "num_prefixes", "num_adapters", "adapter_zipf", "num_turns", "think_time_s"),
    "think_time_cv",
)
KINDS = ("", "input_", "output_")


def sweep_page(
    table: pa.Table,
    fronts: Mapping[str, pa.Table],
    slo: Collection[str] = (),
    at_rate: float | None = None,
    session: Callable[[], Session] | None = None,
) -> Page:
    """Return the page of the rows of a sweep, or of its highest rates.

    ``fronts``: ``pareto_front`` and ``energy_front`` of a sweep; ``slo``: columns of the objectives; ``at_rate``:
    requests/s that the cheapest deployment has to serve; ``session``: opens that of the sweep, for figures.
    """
    rows = table.to_pylist()
    front_rows = {name: fronts[name].to_pylist() if name in fronts else [] for name in ("pareto_front", "energy_front")}
    faults = [row for row in rows if row["completed"] == 0 and row["requests"] == 0]
    answer = {"scenarios": len(rows), "served": len(rows) - len(faults), "faults": len(faults)}
    flags, columns = _columns_shown(rows, slo)
    best: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
    if slo and (PRICE in table.column_names or at_rate is not None):
        answer["cheapest"] = cheapest(table, at_rate)
        best = _cheapest_of_each_load(table, [name for name in flags if name in LOADS], at_rate)
        if len(best) > 1:
            answer["cheapest_by_load"] = [{**load, "cheapest": deployment} for load, deployment in best]
    title = f"{len(rows):,} scenario{'s' if len(rows) != 1 else ''}"
    # an unset request rate is an infinite one: last
    ranked = sorted(
        rows, key=lambda row: [((row[name] is not None) != (name == "request_rate"), row[name] or 0) for name in flags]
    )
    shown = [("", ranked, columns)]
    axes = {name: HEADERS[name] for name in ("output_throughput_per_user", "output_throughput_per_gpu")}
    if len(rows) > 1:
        with_energy = [*columns, "energy_per_output_token_j"]
        shown += [
            ("Pareto front, tokens/s per GPU against tokens/s per user", front_rows["pareto_front"], columns),
            ("Energy front, J per output token against tokens/s per user", front_rows["energy_front"], with_energy),
        ]
    more = "more; -o FILE keeps all, --format csv prints them"
    return Page(
        title,
        {**answer, **front_rows, "rows": rows},
        sentences=[f"{title}, {answer['served']:,} served, {answer['faults']:,} cannot run"],
        figures=tuple if session is None else lambda: _drawn(session(), rows),
        tables=[
            Table(
                name,
                [_shown(row, names) for row in _with_defaults(listed[:MOST_SHOWN], flags)],
                more=more,
                count=len(listed),
                lines=front_lines(rows, listed, axes) if name and listed is front_rows["pareto_front"] else (),
                drawn=not name,
            )
            for name, listed, names in shown
        ],
        evidence=[
            Table(lines=_evidence(rows)),
            Table(lines=_cheapest_lines(best, flags, at_rate) if best else ()),
        ],
    )


def _drawn(session: Session, rows: Rows) -> list[Figure]:
    """Return the figures of a sweep: fronts, and all scenarios with the columns in which they differ."""
    names = list(rows[0])
    constant = [name for name in names if len({str(row[name]) for row in rows}) == 1]
    same = {name: rows[0][name] for name in names[2 : names.index("status")] if name in constant}
    return [*queried(session, sweep_figures(names, constant)), Figure("The same in all", "", rows=pairs(same))]


def _evidence(rows: Rows) -> list[str]:
    """Return the sentences on the tiers of kernel latencies."""
    tiers = sorted({row["tier"] for row in rows if row.get("tier") and row["completed"]})
    if not tiers:
        return []
    interval_note = " (in brackets: 90 % intervals)" if "ttft_p99_low_ms" in rows[0] else ""
    lines = [f"kernel latencies: {', '.join(tiers)}{interval_note}"]
    if "unmeasured-vendor" in tiers:
        unmeasured = sorted({row["gpu"] for row in rows if row["tier"] == "unmeasured-vendor" and "gpu" in row})
        lines.append(
            f"many kernels were measured on no GPU of the maker of {', '.join(unmeasured)}: general constants "
            "stand in, and may be off by a factor of 4"
        )
    return lines


def _cheapest_of_each_load(
    table: pa.Table, load: list[str], rate: float | None
) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Return each load and its cheapest deployment, because another one may be cheapest at another load."""
    import pyarrow.compute as pc

    pairs = dict.fromkeys(zip(*(table[name].to_pylist() for name in load), strict=True)) if load else {(): None}
    by_load = []
    for values in pairs:
        rows = table
        for name, value in zip(load, values, strict=True):
            column = rows[name]
            rows = rows.filter(pc.is_null(column) if value is None else pc.equal(column, value))
        by_load.append((dict(zip(load, values, strict=True)), cheapest(rows, rate)))
    return by_load


def _cheapest_lines(
    best: list[tuple[dict[str, Any], dict[str, Any] | None]], flags: list[str], rate: float | None
) -> list[str]:
    """Return a line for each load with its cheapest deployment."""
    lines = []
    for load, deployment in best[:MOST_LOADS]:
        (load_values,) = _with_defaults([load], list(load))
        where = ", ".join(f"{name} {value}" for name, value in load_values.items())
        sentence = _cheapest_sentence(deployment, [name for name in flags if name not in load], rate)
        lines.append(f"{where}: {sentence}" if where else sentence)
    return lines + ([f"... and {len(best) - MOST_LOADS:,} more loads"] if len(best) > MOST_LOADS else [])


def _cheapest_sentence(row: dict[str, Any] | None, flags: list[str], rate: float | None) -> str:
    """Return a sentence on the cheapest deployment."""
    if row is None:
        return "no deployment meets the objectives"
    flag_text = ", ".join(f"{name} {row[name]}" for name in flags if row[name] is not None and name != PRICE)
    instances = f"{row['instances']:,} instance{'s' if row['instances'] > 1 else ''}"
    deployment = f"{instances} of {flag_text}" if flag_text else instances
    at_rate = "" if rate is None else f" for {rate:g} requests/s"
    if "price_per_hour" not in row:
        how = "no prices are given; --prices GPU=DOLLARS ranks by cost"
        return f"fewest GPUs{at_rate}: {deployment}, {row['gpus_needed']:,} GPUs ({how})"
    costs = [
        f"{number(row[f'cost_per_million_{kind}tokens'], ROUGH)} $/M {kind.replace('_', ' ')}tokens" for kind in KINDS
    ]
    return f"lowest cost per token{at_rate}: {deployment}, {number(row['price_per_hour'])} $/h, {', '.join(costs)}"


def _shown(row: Mapping[str, Any], columns: list[str]) -> dict[str, Any]:
    """Return a row with short headers and units; p99 latencies with intervals (files and JSON have all)."""
    cells = {}
    for name in columns:
        low, high = (row.get(end) for end in interval_columns(name))
        value = row[name]
        if name.endswith("p99_ms") and low is not None and high is not None:
            value = f"{number(value)} ({number(low, ROUGH)}-{number(high, ROUGH)})"
        cells[_header(name)] = value
    return cells


def _header(name: str) -> str:
    """Return the short header of a column: ``TTFT p99.9 ms`` for ttft_p99.9_ms."""
    metric, _, statistic = name.partition("_")
    if metric in METRICS and statistic.endswith("_ms"):
        return f"{metric.upper()} {statistic.removesuffix('_ms')} ms"
    return HEADERS.get(name, name)


def _with_defaults(rows: Sequence[dict[str, Any]], flags: list[str]) -> list[dict[str, Any]]:
    """Return rows with "default" for unset flags, and "inf" for an unset request rate."""
    unset = {"request_rate": "inf"}
    return [row | {name: unset.get(name, "default") for name in flags if row[name] is None} for row in rows]


def _columns_shown(rows: list[dict[str, Any]], slo: Collection[str]) -> tuple[list[str], list[str]]:
    """Return (flags that differ between rows, columns to print); columns without a value are left out.

    ``slo``: columns of the objectives. The tier is a column where rows differ in it; the status, which is a sentence
    where a deployment cannot run, is the last column, and only where one cannot.
    """
    names = list(rows[0])
    finds = "max_request_rate" in names
    flags = [name for name in names[2 : names.index("status")] if name not in NO_FLAGS]
    differing = [
        name for name in flags if len({row[name] for row in rows}) > 1 and (name != "num_prompts" or not finds)
    ]
    if not differing:
        # rows without differing flags are identified by these
        differing = [name for name in ("model", "gpu", "tensor_parallel_size") if rows[0].get(name) is not None]
    figures = (*FOUND, *slo, *BESIDE_RATES) if finds else (*SHOWN[:-1], *slo, SHOWN[-1])
    chosen = [name for name in dict.fromkeys(figures) if name in names and name not in differing]
    looked_at = [name for name in [*differing, *chosen] if any(row[name] is not None for row in rows)]
    # columns that say nothing where all rows meet the objectives
    plain = {"meets_slo", "steady"} if finds and all(row["meets_slo"] and row["steady"] for row in rows) else set()
    shown = [name for name in looked_at if name not in plain]
    shown += ["tier"] if len({row.get("tier") for row in rows if row["completed"]}) > 1 else []
    return differing, shown + (["status"] if any(row["status"] != "served" for row in rows) else [])
