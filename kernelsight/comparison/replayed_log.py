"""Tables of a log's replay (log_settings, log_replays, log_intervals, ...), written from arrays and read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.comparison.compared_log import ComparedLog, compared_logs, question_of, rows_of
from kernelsight.comparison.errors import concurrency_of, measured_by_metric, predicted_of
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.replay import (
    KERNELS,
    NO_LOAD,
    REPLAYED_PARTS,
    Replayed,
    Variant,
    give_log,
    interval_factors,
)
from kernelsight.comparison.settings import stated_settings
from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.dataflow.session import Session

# factors on all kernels whose replays give the scatter of single requests
NEIGHBOURS = (0.98, 0.99, 1.01, 1.02)
MOMENTS = ("sent", "scheduled", "first_token", "finish")


@reads("deployment_settings")
@produces("log_settings")
def settings_rows(comparisons: pa.Table, *, fork: Callable[[], Session]) -> list[dict[str, Any]]:
    """Resolved settings of the deployment of each comparison."""
    with fork() as session:
        return [
            {"comparison_id": row["comparison_id"], **stated_settings(session, question_of(row).flags, NO_LOAD)}
            for row in comparisons.to_pylist()
        ]


@reads("step_costs", "knot_corrections")
@produces("log_replays", "replayed_parts")
def replay_tables(
    comparisons: pa.Table, log_settings: pa.Table, compared_requests: pa.Table, *, fork: Callable[[], Session]
) -> dict[str, Any]:
    """Replay of each log: its own requests, simulated on the stated deployment.

    ``log_replays``: a row per request; ``replayed_parts``: mean ms of each kernel part and the host.
    """
    requests, part_rows = [], []
    with fork() as session:
        logs = compared_logs(comparisons, log_settings, compared_requests)
        replays = [LogReplayer(session, log.load).serve([Variant(log.question.flags)])[0] for log in logs]
    for log, base in zip(logs, replays, strict=True):
        usable = log.measured.ok & base.served & np.isfinite(log.measured.e2e_ms)
        means = {name: float(base.part(name)[usable].mean() / 1e6) if usable.any() else 0.0 for name in REPLAYED_PARTS}
        part_rows += [
            {"comparison_id": log.comparison_id, "part": name, "predicted_ms": mean} for name, mean in means.items()
        ]
        requests.append(_request_table(log, base))
    return {
        "log_replays": joined("log_replays", requests),
        "replayed_parts": part_rows,
    }


def _request_table(log: ComparedLog, base: Replayed) -> pa.Table:
    """Return the rows of ``log_replays`` of one log."""
    measured = log.measured
    measured_ms, predicted_ms = measured_by_metric(measured), predicted_of(base, measured.output_tokens)
    moments = (base.sent_ns, base.scheduled_ns, base.first_ns, base.finish_ns)
    columns: dict[str, Callable[[], Any]] = {
        "comparison_id": lambda: pa.repeat(log.comparison_id, log.requests.num_rows),
        **{name: lambda name=name: log.requests[name] for name in ("log_id", "request_id")},
        "sent_s": lambda: measured.sent_s,
        "prompt_tokens": lambda: measured.prompt_tokens,
        "output_tokens": lambda: measured.output_tokens.astype(int),
        "in_flight": lambda: concurrency_of(measured),
        **{f"measured_{name}_ms": lambda values=values: values for name, values in measured_ms.items()},
        **{f"predicted_{name}_ms": lambda values=values: values for name, values in predicted_ms.items()},
        "predicted_cached_tokens": lambda: base.cached_tokens,
        **{
            f"{name}_ns": lambda values=values: pa.array(values, mask=~base.served)
            for name, values in zip(MOMENTS, moments, strict=True)
        },
    }
    return table_of("log_replays", columns)


def explained_table(log: ComparedLog, replayed: Replayed) -> pa.Table:
    """Return the rows of ``explained_replays`` of one log."""

    def part(values: np.ndarray) -> Any:
        values_by_request = values.sum(axis=0)
        return values_by_request if values_by_request.size else pa.nulls(log.requests.num_rows, pa.int64())

    columns: dict[str, Callable[[], Any]] = {
        "comparison_id": lambda: pa.repeat(log.comparison_id, log.requests.num_rows),
        **{name: lambda name=name: log.requests[name] for name in ("log_id", "request_id")},
        "sent_ns": lambda: replayed.sent_ns,
        "scheduled_ns": lambda: replayed.scheduled_ns,
        "finish_ns": lambda: replayed.finish_ns,
        **{
            f"{name}_ns": lambda values=values: part(values)
            for name, values in zip(
                REPLAYED_PARTS, replayed.parts_ns or [np.zeros((1, 0))] * len(REPLAYED_PARTS), strict=True
            )
            if name in KERNELS
        },
        "steps": lambda: part(replayed.steps),
    }
    return table_of("explained_replays", columns)


def base_of(log_replays: pa.Table, comparison_id: str) -> Replayed:
    """Return the replay as stated, without parts, from its rows of ``log_replays``."""
    rows = rows_of(log_replays, comparison_id)
    no_parts = np.zeros((1, 0), np.int64)
    moments = [rows[f"{name}_ns"].fill_null(-1).to_numpy() for name in MOMENTS]
    return Replayed(rows["predicted_cached_tokens"].to_numpy(), *moments, [no_parts] * len(REPLAYED_PARTS), no_parts)


def explained_of(explained_replays: pa.Table, comparison_id: str, base: Replayed) -> Replayed:
    """Return the replay with all causes, from its rows of ``explained_replays``; ``base`` if it has none."""
    rows = rows_of(explained_replays, comparison_id)
    if not rows.num_rows:
        return base

    def part(name: str) -> np.ndarray:
        column = rows[name]
        return np.zeros((1, 0), np.int64) if column.null_count else column.to_numpy()[None, :]

    moments = {name: rows[name].to_numpy() for name in ("sent_ns", "scheduled_ns", "finish_ns")}
    parts_ns = [part(f"{name}_ns") if name in KERNELS else np.zeros((1, 0), np.int64) for name in REPLAYED_PARTS]
    return base._replace(**moments, parts_ns=parts_ns, steps=part("steps"))


@reads("scenario_intervals", "deployment_tiers", "scenario_tiers", "step_costs", "knot_corrections")
@produces("log_intervals", "log_tiers")
def interval_rows(
    comparisons: pa.Table, log_settings: pa.Table, compared_requests: pa.Table, *, fork: Callable[[], Session]
) -> dict[str, list[dict[str, Any]]]:
    """90 % prediction intervals of each log's metrics, and the tiers of the kernel model behind them."""
    with fork() as session:
        return _intervals_and_tiers(compared_logs(comparisons, log_settings, compared_requests), session)


def _intervals_and_tiers(logs: Sequence[ComparedLog], session: Session) -> dict[str, list[dict[str, Any]]]:
    intervals, tiers = [], []
    for log in logs:
        key, variant = {"comparison_id": log.comparison_id}, Variant(log.question.flags)
        with session.fork() as fork:
            give_log(fork, log.load, [variant])
            by_metric = interval_factors(fork.table("scenario_intervals"))
            tiers.append({**key, **fork.table("deployment_tiers").to_pylist()[0], **served_label(fork)})
        chance = chance_of_requests(log, session) if by_metric else {}
        for metric, (low, high) in by_metric.items():
            factors = {"low": low, "high": high}
            # errors of the mean and of single requests are independent: half-widths add up in squares
            factors |= {
                f"request_{name}": float(np.exp(sign * np.hypot(np.log(factor), chance[metric])))
                for (name, factor), sign in zip(list(factors.items()), (-1.0, 1.0), strict=True)
            }
            intervals.append({**key, "metric": metric, **factors})
    return {"log_intervals": intervals, "log_tiers": tiers}


def served_label(session: Session) -> dict[str, Any]:
    """Return tier and measured share of the scenario of which least was measured; nothing where none was served."""
    rows = session.table("scenario_tiers").drop_columns(["scenario_id"]).to_pylist()
    return min(rows, key=lambda row: row["measured_share"], default={})


def chance_of_requests(log: ComparedLog, session: Session) -> dict[str, float]:
    """Return by metric the 90th percentile of single requests' scatter, as a logarithm of a factor.

    Replays with steps 1 or 2 % longer or shorter form other batches: deviations of single requests from the median
    change are chance.
    """
    rows = log.sample_rows if log.sample_rows.size else np.arange(log.load.num_rows)
    variants = [Variant(log.question.flags, dict.fromkeys(KERNELS, factor)) for factor in (1.0, *NEIGHBOURS)]
    base, *neighbours = LogReplayer(session, log.load).serve(variants, rows, with_parts=False)
    output = log.measured.output_tokens[rows]
    predicted, spread = predicted_of(base, output), {}
    for metric, predicted_ms in predicted.items():
        deviations = []
        for neighbour in neighbours:
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.log(predicted_of(neighbour, output)[metric] / predicted_ms)
            ratio = ratio[np.isfinite(ratio)]
            deviations.append(np.abs(ratio - np.median(ratio)) if ratio.size else ratio)
        all_deviations = np.concatenate(deviations)
        spread[metric] = float(np.quantile(all_deviations, 0.9)) if all_deviations.size else 0.0
    return spread


def table_of(name: str, columns: Mapping[str, Callable[[], Any]]) -> pa.Table:
    """Return columns as a table of a contract; NaN becomes null where the contract allows it.

    ``columns``: functions that make the values, called one after another so that a million rows are not held twice.
    """
    contract = contracts()[name]
    arrays = {
        column.name: _array(columns[column.name](), column.arrow_type, column.nullable) for column in contract.columns
    }
    return pa.table(arrays, schema=contract.schema)


def joined(name: str, tables: Sequence[pa.Table]) -> pa.Table:
    """Return the tables of one contract concatenated; an empty table for none."""
    return pa.concat_tables(tables) if tables else contracts()[name].schema.empty_table()


def _array(values: Any, arrow_type: pa.DataType, nullable: bool) -> pa.Array:
    """Return values as one Arrow array; NaN and infinities become null if ``nullable``."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks().cast(arrow_type)
    if isinstance(values, pa.Array):
        return values.cast(arrow_type)
    if not nullable or values.dtype.kind != "f":
        return pa.array(values, arrow_type)
    return pa.array(np.nan_to_num(values), pa.float64(), mask=~np.isfinite(values)).cast(arrow_type)
