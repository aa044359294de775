"""Two logs of one service, an earlier and a later one: the tables of what changed between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import contracts
from kernelsight.comparison.compared_log import of_logs
from kernelsight.comparison.errors import METRICS, measured_by_metric, predicted_of
from kernelsight.comparison.log_changes import Changes, LogPair, changes_between
from kernelsight.comparison.log_worlds import LogWorlds
from kernelsight.comparison.measured_requests import Measured, measured_of
from kernelsight.comparison.power import mean_power, measured_power
from kernelsight.comparison.question import Question, question_of
from kernelsight.comparison.replay import Replayed, Variant, load_of_log
from kernelsight.comparison.sample import in_turn
from kernelsight.dataflow.rows import as_table
from kernelsight.dataflow.session import Session
from kernelsight.errors import InvalidInput

TABLES = ("log_changes", "change_causes", "change_latencies")
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
# gaps between the tokens of a stream that holds one token a chunk
MOST_TOKENS_A_CHUNK = 1.01


def requests_of(question: Question, requests: pa.Table, logs: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the requests of the earlier and of the later log, each with its own time line.

    InvalidInput: one of them has none.
    """
    pair = []
    for name, ids in (("earlier", question.baseline or ()), ("later", question.log_ids)):
        one_log = question._replace(log_ids=ids)
        taken = in_turn(of_logs(requests, one_log), of_logs(logs, one_log))
        if not taken.num_rows:
            raise InvalidInput(
                f"the {name} log holds no requests with a prompt length; give logs of requests to --log and --baseline."
            )
        pair.append(taken)
    return pair[0], pair[1]


def change_tables(comparisons: pa.Table, tables: Mapping[str, pa.Table], session: Session) -> dict[str, pa.Table]:
    """Return the TABLES of comparisons with a baseline; ``tables``: production_requests, _logs, _settings, _windows."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for row in comparisons.to_pylist():
        question = question_of(row)
        if question.baseline is None:
            continue
        requests = requests_of(question, tables["production_requests"], tables["production_logs"])
        measured = [measured_of(part) for part in requests]
        beside = [
            {name: of_logs(table, question._replace(log_ids=ids)) for name, table in tables.items()}
            for ids in (question.baseline, question.log_ids)
        ]
        settings = [_settings(part["production_settings"]) for part in beside]
        power = [
            mean_power(measured_power(part, each, others), each)
            for part, each, others in zip(requests, measured, beside, strict=True)
        ]
        gaps = requests[1]["chunk_gaps_ms"]
        pair = LogPair(*measured, (settings[0], settings[1]), gaps, (power[0], power[1]))
        changes = changes_between(pair, _replays(question, requests, session) if question.flags else None)
        for name, part in _rows(changes, requests, measured).items():
            rows[name] += [{"comparison_id": row["comparison_id"], **each} for each in part]
    return {name: as_table(contracts()[name], part) for name, part in rows.items()}


def _replays(question: Question, requests: Sequence[pa.Table], session: Session) -> Any:
    """Return what replays both logs on the deployment."""

    def replay() -> tuple[Replayed, Replayed]:
        variant = [Variant(question.flags)]
        one, other = (
            LogWorlds(session, load_of_log(log_requests)).serve(variant, with_parts=False)[0]
            for log_requests in requests
        )
        return one, other

    return replay


def _settings(settings: pa.Table) -> dict[str, str]:
    return {row["setting"]: row["found"] for row in settings.to_pylist() if row["found"] is not None}


def _rows(
    changes: Changes, requests: Sequence[pa.Table], measured: Sequence[Measured]
) -> dict[str, list[dict[str, Any]]]:
    causes = []
    for place, one in enumerate(changes.causes):
        word = one.value if isinstance(one.value, str) else None
        causes.append({**one._asdict(), "place": place, "value": None if word is not None else one.value, "word": word})
    return {
        "log_changes": [{"place": place, **row} for place, row in enumerate(changes.rows)],
        "change_causes": causes,
        "change_latencies": _latencies(requests, measured, changes.base),
    }


def _latencies(
    requests: Sequence[pa.Table], measured: Sequence[Measured], base: Replayed | None
) -> list[dict[str, Any]]:
    """Return means and percentiles of both logs, and the means that the earlier engine would have had."""
    times = [measured_by_metric(one) for one in measured]
    expected = predicted_of(base, measured[1].output_tokens) if base else {}
    values = {f"{name}_ms": [sides[name] for sides in times] for name in METRICS}
    values["itl_ms"] = [_gaps(sides) for sides in requests]
    rows = []
    for metric, sides in values.items():
        known = [each[np.isfinite(each)] for each in sides]
        if not any(each.size for each in known):
            continue
        theirs = expected.get(metric.removesuffix("_ms"))
        with_mean = float(np.nanmean(theirs)) if theirs is not None and np.isfinite(theirs).any() else None
        means = [float(each.mean()) if each.size else None for each in known]
        rows.append(
            {"metric": metric, "statistic": "mean", "before": means[0], "after": means[1], "expected": with_mean}
        )
        for name, share in PERCENTILES.items():
            pair = [float(np.quantile(each, share, method="nearest")) if each.size else None for each in known]
            rows.append({"metric": metric, "statistic": name, "before": pair[0], "after": pair[1]})
    return rows


def _gaps(requests: pa.Table) -> np.ndarray:
    """Return the gaps between tokens of a log, ms."""
    single = pc.less(pc.fill_null(requests["tokens_per_chunk"], 1.0), MOST_TOKENS_A_CHUNK)
    gaps = requests.filter(pc.and_(single, pc.equal(requests["status"], "ok")))["chunk_gaps_ms"]
    return pc.list_flatten(gaps).to_numpy().astype(float)
