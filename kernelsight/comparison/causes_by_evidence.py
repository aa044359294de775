"""Causes of a log's misses, in the order of evidence: incidents, occupancy, load, then signatures of other causes.

What the log itself shows comes before what replays suggest: an outage, a change or an incident is not explained by a
setting, nor a queue before a full batch by kernels. A cause of the whole log is what replays explain to the size of
chance; where that is nothing (a server unlike the simulated one), the best fit of the log's signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kernelsight.comparison.cause_selection import MOST_NAMED, is_believed
from kernelsight.comparison.compared_log import ComparedLog, compared_logs, rows_of
from kernelsight.comparison.errors import (
    METRICS,
    are_as_claimed,
    errors_of,
    interval_factors,
    measured_by_metric,
    predicted_of,
)
from kernelsight.comparison.factors import STEP_MS
from kernelsight.comparison.incidents import Incident, incidents_of
from kernelsight.comparison.log_replayer import LogReplayer, Sample
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.observed_limits import BUDGETS, budget_limit, caches_nothing, seats_limit
from kernelsight.comparison.replay import Replayed, Variant
from kernelsight.comparison.replayed_log import base_of
from kernelsight.comparison.signature_causes import (
    AGREES,
    LEAST_FACTOR,
    MOST_FACTOR,
    PARALLEL,
    CandidateCause,
    Cause,
    Signature,
    best_fitting,
    closed_forms,
    signature,
)
from kernelsight.dataflow.blas import one_blas_thread
from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.dataflow.session import Session
from kernelsight.scenario.alternatives import alternatives

# host time that is longer by more than three prior standard deviations is no error of the model either
MOST_HOST_MS = 3.0 * STEP_MS
LEAST_QUIET = 60
# the load is a cause if it differs from its description by this share of E2E
LEAST_LOAD = 0.03
# settings that the signature shows
SETTINGS = {"enable_prefix_caching", "enforce_eager", "quantization", "tensor_parallel_size"}
# causes explain a log entirely if they leave at most this mean square of relative residuals
MISSES_NOTHING = 0.015**2
# kinds of causes within the prediction's own uncertainty, and the mean error that is within it
UNCERTAIN, NEAR = ("part", "front_end"), 0.05
# columns of log_incidents in the order of the fields of Incident
INCIDENT = ("kind", "name", "from_s", "to_s", "value", "events", "lost_s")


def causes_of(
    log: ComparedLog,
    base: Replayed,
    incidents: Sequence[Incident],
    load_ms: float,
    fitted: Sequence[Mapping[str, Any]],
    intervals: Mapping[str, tuple[float, float]],
    session: Session,
) -> list[Cause]:
    """Return the causes of one log, the most important first; none where log and prediction agree.

    ``load_ms``: mean E2E with the load as sent, less that with the load as described, ms; ``fitted``: rows of
    ``fitted_causes``; ``intervals``: factors of the prediction's 90 % interval by metric. Where these cover what was
    measured and the bias is small, kernels, host and front end differ within the prediction's own uncertainty: they are
    not reported, unless they explain the log entirely.
    """
    if not log.enough:
        return []
    causes_so_far = [cause_of_incident(incident, log.measured) for incident in incidents]
    seats = seats_limit(log, base) if not causes_so_far else None
    if seats is not None:
        return [Cause("setting", "max_num_seqs", float(seats))]
    budget = budget_limit(log, base) if not causes_so_far else None
    if budget is not None:
        return [Cause("setting", "max_num_batched_tokens", float(budget))]
    if caches_nothing(log.measured, base):
        return [*causes_so_far, Cause("setting", "enable_prefix_caching", "false")]
    e2e = log.measured.e2e_ms[log.measured.ok & np.isfinite(log.measured.e2e_ms)]
    if e2e.size and abs(load_ms) >= LEAST_LOAD * e2e.mean() and log.question.stated:
        causes_so_far.append(_load_cause(log))
    causes = _accepted(fitted, log)
    if not causes:
        quiet = quiet_requests(log.measured, incidents)
        whole_log_cause = _log_wide_cause(log, base, quiet, session) if quiet.sum() >= LEAST_QUIET else None
        causes = [whole_log_cause] if whole_log_cause else []
    whole_miss = bool(fitted) and all(row["left"] <= MISSES_NOTHING for row in fitted)
    if all(cause.kind in UNCERTAIN for cause in causes) and not whole_miss and _is_as_claimed(log, base, intervals):
        return causes_so_far
    return [*causes_so_far, *causes]


def _is_as_claimed(log: ComparedLog, base: Replayed, intervals: Mapping[str, tuple[float, float]]) -> bool:
    """Whether the bias (of E2E, else TPOT, else TTFT) is below NEAR and the prediction's intervals are calibrated."""
    measured_ms, predicted_ms = measured_by_metric(log.measured), predicted_of(base, log.measured.output_tokens)
    errors = [errors_of(measured_ms[metric], predicted_ms[metric], intervals.get(metric)) for metric in METRICS]
    main_errors = next((metric_errors for metric_errors in reversed(errors) if metric_errors["n"]), None)
    return main_errors is not None and abs(main_errors["bias"]) < NEAR and are_as_claimed(errors)


def _accepted(fitted: Sequence[Mapping[str, Any]], log: ComparedLog) -> list[Cause]:
    """Return the fitted causes if they explain enough and none has an implausible size; otherwise none."""
    if len(fitted) > MOST_NAMED:
        return []
    causes = []
    for row in sorted(fitted, key=lambda fitted_row: fitted_row["place"]):
        if not is_believed(row["explained"], row["chance"], row["left"]):
            return []
        if row["factor"] is not None:
            if not LEAST_FACTOR <= row["factor"] <= MOST_FACTOR:
                return []
            causes.append(Cause("part", row["cause"], row["factor"]))
        elif row["value"] is not None:
            causes.append(Cause("setting", row["cause"], _number_or_word(row["value"])))
        else:
            if row["cause"] == "host" and row["added_ms"] > MOST_HOST_MS:
                return []
            is_server_side = log.measured.from_server or row["cause"] == "host"
            name = row["cause"] if is_server_side else "client"
            causes.append(Cause("part" if name == "host" else "front_end", name, row["added_ms"]))
    return causes


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def cause_of_incident(incident: Incident, measured: Measured) -> Cause:
    """Return an incident as a cause, with the share of all requests' E2E time that it took."""
    share = share_of_time(incident.lost_s, measured)
    return Cause(incident.kind, incident.name, incident.value, incident.from_s, incident.to_s, share)


def share_of_time(lost_s: float, measured: Measured) -> float:
    """Return the lost seconds as a share of the sum of all requests' E2E times; 0 without such times."""
    spent = float(np.nansum(np.where(measured.ok, measured.e2e_ms, 0.0))) / 1e3
    return lost_s / spent if spent else 0.0


def quiet_requests(measured: Measured, incidents: Sequence[Incident]) -> np.ndarray:
    """Return the mask of requests outside all incidents and their backlogs, shape [requests]."""
    sent, end = measured.sent_s, measured.last_s
    quiet = measured.ok.copy()
    for incident in incidents:
        if incident.name != "pause":  # pauses do not move a median
            backlog = 0.5 * (incident.to_s - incident.from_s) + 5.0
            quiet &= (end < incident.from_s) | (sent > incident.to_s + backlog)
    return quiet


def _load_cause(log: ComparedLog) -> Cause:
    """Return the figure of the load that differs most from its description, with the factor between them."""
    described, measured = log.question.stated or {}, log.measured
    span = max(float(np.ptp(measured.sent_s)), 1e-9)
    measured_and_described = {
        "prompt_tokens": (float(measured.prompt_tokens.mean()), described.get("input_len")),
        "output_tokens": (float(measured.output_tokens[measured.ok].mean()), described.get("output_len")),
        "request_rate": ((measured.sent_s.size - 1) / span, described.get("request_rate")),
    }
    factors = {
        name: measured_value / described_value
        for name, (measured_value, described_value) in measured_and_described.items()
        if isinstance(described_value, int | float) and described_value > 0
    }
    name = max(factors, key=lambda figure: abs(np.log(factors[figure])), default="requests")
    return Cause("load", name, factors.get(name))


def _log_wide_cause(log: ComparedLog, base: Replayed, quiet: np.ndarray, session: Session) -> Cause | None:
    """Return the cause that fits the signature of the quiet requests of the fitted part best; None: none fits.

    ``quiet``: mask of requests outside incidents. Candidates are sizes with closed forms, and settings by their replay.
    """
    early = quiet & log.fitted_on
    observed = signature(log.measured, base, early)
    if not observed.misfit > AGREES:
        return None
    candidates = [_less_likely(candidate) for candidate in closed_forms(observed, log.measured.from_server)]
    if log.question.suspects == "all":
        candidates += _settings(log, early, session)
    best = best_fitting(candidates, observed)
    if (best is None or best.cause.name == "host") and _launches_without_graphs(candidates, observed, log):
        return Cause("setting", "enforce_eager", "true")
    return best.cause if best else None


def _launches_without_graphs(candidates: Sequence[CandidateCause], observed: Signature, log: ComparedLog) -> bool:
    """Whether decode steps are slower by launches without a CUDA graph, by a size that replays do not know."""
    eager = next((candidate for candidate in candidates if candidate.cause.name == "enforce_eager"), None)
    if eager is None or not np.isfinite(observed.tpot_ms) or log.settings.get("graph_max_tokens") == 0:
        return False
    slowdown = observed.tpot_ms / observed.predicted[2]
    slope = observed.prompt_token_us / max(observed.predicted[1], 1e-9)
    # a slower GPU would make prompts slower too
    return bool(slowdown > 0.15 and slope < 0.5 * slowdown and eager.misfit < observed.misfit)


def _settings(log: ComparedLog, early: np.ndarray, session: Session) -> list[CandidateCause]:
    """Return settings one step from the stated ones and every usual step budget, with the misfit of their replays."""
    sample = Sample(LogReplayer(session, log.load), log.measured, log.sample_rows)
    changes = [change for _, change in alternatives(log.settings, log.question.flags) if set(change) <= SETTINGS]
    budget = log.settings["max_num_batched_tokens"]
    changes += [{"max_num_batched_tokens": size} for size in BUDGETS if size != budget]
    replays = sample.serve([Variant({**log.question.flags, **change}) for change in changes], with_parts=False)
    candidates = []
    for change, replayed in zip(changes, replays, strict=True):
        if replayed.served.any():
            ((name, value),) = change.items()
            misfit = signature(sample.measured, replayed, early[sample.rows]).misfit
            word = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else float(value)
            penalty = PARALLEL + misfit if name == "tensor_parallel_size" else 0.0
            candidates.append(CandidateCause(Cause("setting", name, word), misfit, penalty))
    return candidates


def _less_likely(candidate: CandidateCause) -> CandidateCause:
    """Return the candidate with a penalty for long host times: their square in prior standard deviations STEP_MS."""
    value = candidate.cause.value
    if candidate.cause.name != "host" or not isinstance(value, float):
        return candidate
    return candidate._replace(penalty=candidate.penalty + (value / STEP_MS) ** 2)


@reads("step_costs", "knot_corrections")
@produces("causes")
def cause_rows(
    comparisons: pa.Table,
    log_settings: pa.Table,
    compared_requests: pa.Table,
    log_replays: pa.Table,
    log_incidents: pa.Table,
    log_intervals: pa.Table,
    fitted_causes: pa.Table,
    miss_by_part: pa.Table,
    *,
    fork: Callable[[], Session],
) -> list[dict[str, Any]]:
    """Causes of each log's misses, in the order of evidence: incidents, occupancy, load, settings, front end, parts."""
    rows = []
    with one_blas_thread(), fork() as session:
        for log in compared_logs(comparisons, log_settings, compared_requests):
            events, intervals, fitted, parts = (
                rows_of(table, log.comparison_id).to_pylist()
                for table in (log_incidents.sort_by("place"), log_intervals, fitted_causes, miss_by_part)
            )
            incidents = [Incident(*(row[name] for name in INCIDENT)) for row in events]
            load_ms = next(row["miss_ms"] for row in parts if row["part"] == "workload")
            base, factors = base_of(log_replays, log.comparison_id), interval_factors(intervals)
            causes = causes_of(log, base, incidents, load_ms, fitted, factors, session)
            rows += [{"comparison_id": log.comparison_id, **cause.as_row(n)} for n, cause in enumerate(causes)]
    return rows


@produces("log_incidents")
def incident_rows(
    comparisons: pa.Table, log_settings: pa.Table, compared_requests: pa.Table, log_replays: pa.Table
) -> list[dict[str, Any]]:
    """Incidents of each log: outages, pauses, and spans of time in which the engine was slower than predicted."""
    with one_blas_thread():
        return [
            {"comparison_id": log.comparison_id, "place": index, **dict(zip(INCIDENT, incident, strict=True))}
            for log in compared_logs(comparisons, log_settings, compared_requests)
            if log.enough
            for index, incident in enumerate(
                incidents_of(log.measured, base_of(log_replays, log.comparison_id), log.requests["chunk_gaps_ms"])
            )
        ]
