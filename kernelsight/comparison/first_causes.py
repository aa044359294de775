"""Causes in the order of evidence: time, then occupancy, then the load, then what signatures say of settings and parts.

What the log itself shows comes before what replays suggest: an outage, a change or an incident is not explained by a
setting, nor a queue behind seats by kernels. A cause of the whole log is named only if its signature fits, and only if
it was chosen on the first part of the time and holds on the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.comparison.causes import MOST_NAMED, is_believed
from kernelsight.comparison.compared_log import ComparedLog, rows_of
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
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.observed_limits import budget_limit, caches_nothing, seats_limit
from kernelsight.comparison.replay import Replayed, Variant
from kernelsight.comparison.replayed_log import base_of
from kernelsight.comparison.signature import PROMPT_TOKEN_US, REQUEST_MS, Signature, signature
from kernelsight.comparison.step_budget import BUDGETS
from kernelsight.dataflow.rows import as_table
from kernelsight.dataflow.session import Session
from kernelsight.errors import KernelSightError
from kernelsight.scenario.alternatives import alternatives

# a smaller misfit of the signature is agreement
AGREES = 6.0
# a cause has to leave at most this share of the misfit, and no more than this, or very little of a large misfit
MOST_LEFT, FITS, LEAST_LEFT = 0.4, 8.0, 0.12
LEAST_HOST_MS = 0.5
# factors on all kernels outside are no error of the model: another setting, or another machine
LEAST_FACTOR, MOST_FACTOR = 0.68, 1.45
# likewise a host that takes longer by three standard deviations of what is expected of a prediction
MOST_HOST_MS = 3.0 * STEP_MS
LEAST_QUIET = 60
# a longer load than described is a cause from this share of E2E
LEAST_LOAD = 0.03
# requests that settings are replayed on
MOST_REPLAYED = 1500
SETTINGS = ("enable_prefix_caching", "enforce_eager", "quantization", "tensor_parallel_size", "max_num_batched_tokens")
# what a cause has to explain more than a setting does: one that has a size, one that is an error of the model, and
# another number of GPUs, which people know best
SIZED, MODEL, PARALLEL = 1.5, 4.0, 2.0
# causes explain a log whole where they leave no more of relative residuals, squared
MISSES_NOTHING = 0.015**2
# kinds of causes that the prediction itself is uncertain of, and a mean error that is none of its faults
UNCERTAIN, NEAR = ("part", "front_end"), 0.05
# columns of log_incidents as the fields of Incident
INCIDENT = ("kind", "name", "from_s", "to_s", "value", "events", "lost_s")


class Cause(NamedTuple):
    """One cause as the table ``causes`` states it; ``value``: a number, or the word of a setting."""

    kind: str
    name: str
    value: float | str | None = None
    from_s: float | None = None
    to_s: float | None = None
    share: float | None = None


class Explained(NamedTuple):
    """A cause, what it leaves of a signature's misfit, and what it has to explain more than others."""

    cause: Cause
    misfit: float
    penalty: float = 0.0


def causes_of(
    log: ComparedLog,
    base: Replayed,
    incidents: Sequence[Incident],
    load_ms: float,
    fitted: Sequence[Mapping[str, Any]],
    intervals: Mapping[str, tuple[float, float]],
    session: Session,
) -> list[Cause]:
    """Return the causes of one log, the first one first; none where log and prediction agree.

    ``load_ms``: how much longer E2E is with the load as sent than as described; ``fitted``: rows of ``fitted_causes``;
    ``intervals``: factors of the prediction's 90 % interval by metric. Where these hold what was measured, and
    the mean is near, kernels, host and front end differ by no more than the prediction says of itself: they are not
    named, unless they explain the log whole.
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
    """Whether no metric of a log is far off in the mean, and the prediction's intervals hold what was measured."""
    real, ours = measured_by_metric(log.measured), predicted_of(base, log.measured.output_tokens)
    errors = [errors_of(real[metric], ours[metric], intervals.get(metric)) for metric in METRICS]
    main_errors = next((metric_errors for metric_errors in reversed(errors) if metric_errors["n"]), None)
    return main_errors is not None and abs(main_errors["bias"]) < NEAR and are_as_claimed(errors)


def _accepted(fitted: Sequence[Mapping[str, Any]], log: ComparedLog) -> list[Cause]:
    """Return the causes that replays fitted where they explain nearly everything and none is absurd; else none."""
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
            server = log.measured.from_server or row["cause"] == "host"
            name = row["cause"] if server else "client"
            causes.append(Cause("part" if name == "host" else "front_end", name, row["added_ms"]))
    return causes


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def cause_of_incident(incident: Incident, measured: Measured) -> Cause:
    """Return an incident as a cause, with the share of all requests' time that it took."""
    share = share_of_time(incident.lost_s, measured)
    return Cause(incident.kind, incident.name, incident.value, incident.from_s, incident.to_s, share)


def share_of_time(lost_s: float, measured: Measured) -> float:
    """Return which share of all requests' time was lost."""
    spent = float(np.nansum(np.where(measured.ok, measured.e2e_ms, 0.0))) / 1e3
    return lost_s / spent if spent else 0.0


def quiet_requests(measured: Measured, incidents: Sequence[Incident]) -> np.ndarray:
    """Return the requests that no incident touches: those that say what the whole log is like."""
    sent, end = measured.sent_s, measured.last_s
    quiet = measured.ok.copy()
    for incident in incidents:
        if incident.name != "pause":  # a median does not see them
            backlog = 0.5 * (incident.to_s - incident.from_s) + 5.0
            quiet &= (end < incident.from_s) | (sent > incident.to_s + backlog)
    return quiet


def _load_cause(log: ComparedLog) -> Cause:
    """Return what of the load is furthest from how it was described."""
    described, measured = log.question.stated or {}, log.measured
    span = max(float(np.ptp(measured.sent_s)), 1e-9)
    measured_and_described = {
        "prompt_tokens": (float(measured.prompt_tokens.mean()), described.get("input_len")),
        "output_tokens": (float(measured.output_tokens[measured.ok].mean()), described.get("output_len")),
        "request_rate": ((measured.sent_s.size - 1) / span, described.get("request_rate")),
    }
    factors = {
        name: real / described_value
        for name, (real, described_value) in measured_and_described.items()
        if isinstance(described_value, int | float) and described_value > 0
    }
    name = max(factors, key=lambda figure: abs(np.log(factors[figure])), default="requests")
    return Cause("load", name, factors.get(name))


def _log_wide_cause(log: ComparedLog, base: Replayed, quiet: np.ndarray, session: Session) -> Cause | None:
    """Return the cause that explains what quiet requests have in common, and later ones too; None: agreement."""
    early, late = quiet & log.fitted_on, quiet & ~log.fitted_on
    observed = signature(log.measured, base, early)
    if not observed.misfit > AGREES:
        return None
    closed = [_less_likely(candidate) for candidate in closed_forms(observed, log.measured.from_server)]
    replayed = _replayed(log, early, late, session) if log.question.suspects == "all" else []
    eager = next((candidate for candidate, _ in replayed if candidate.cause.name == "enforce_eager"), None)
    candidates = [*closed, *(candidate for candidate, _ in replayed)]
    best = best_fitting(candidates, observed)
    if best is None:
        return _eager_by_size(observed, eager, replayed, log)
    if late.sum() >= LEAST_QUIET and not _holds_later(best, observed, log, base, late, dict(replayed)):
        return None
    if best.cause.name == "host":
        return _eager_by_size(observed, eager, replayed, log) or best.cause
    return best.cause


def _less_likely(candidate: Explained) -> Explained:
    """Return a cause with what it has to explain more, as predictions of host time seldom are off by so much."""
    value = candidate.cause.value
    if candidate.cause.name != "host" or not isinstance(value, float):
        return candidate
    return candidate._replace(penalty=candidate.penalty + (value / STEP_MS) ** 2)


def best_fitting(candidates: Sequence[Explained], observed: Signature) -> Explained | None:
    """Return the candidate that fits a signature best; None where none leaves little enough of it."""
    most = max(min(FITS, MOST_LEFT * observed.misfit), LEAST_LEFT * observed.misfit, AGREES / 2)
    fitting = [candidate for candidate in candidates if candidate.misfit <= most]
    return min(fitting, key=lambda candidate: candidate.misfit + candidate.penalty, default=None)


def closed_forms(observed: Signature, from_server: bool) -> list[Explained]:
    """Return the causes whose effect on the signature is known without a replay, at their best sizes."""
    before = "front_end" if from_server else "client"
    request, prompt, tpot = observed[:3]
    explained = []

    def misfit_of(request_ms: float, prompt_us: float, tpot_ms: float) -> float:
        return observed._replace(request_ms=request_ms, prompt_token_us=prompt_us, tpot_ms=tpot_ms).misfit

    if np.isfinite(prompt) and prompt > PROMPT_TOKEN_US:
        value = Cause("front_end", "per_prompt_token_us", prompt)
        explained.append(Explained(value, misfit_of(request, 0.0, tpot), SIZED))
    if np.isfinite(request) and abs(request) > 1.5 * REQUEST_MS:
        explained.append(Explained(Cause("front_end", before, request), misfit_of(0.0, prompt, tpot), SIZED))
    if np.isfinite(tpot) and observed.predicted[2] > 0:
        if tpot > -LEAST_HOST_MS:  # a host cannot take less than nothing
            # every step takes as much longer: one before the first token
            explained.append(Explained(Cause("part", "host", tpot), misfit_of(request - tpot, prompt, 0.0), MODEL))
        factor = 1.0 + tpot / observed.predicted[2]
        if LEAST_FACTOR <= factor <= MOST_FACTOR:
            moved = prompt - (factor - 1.0) * observed.predicted[1]
            explained.append(Explained(Cause("part", "gpu", factor), misfit_of(request, moved, 0.0), MODEL))
    return explained


def _replayed(
    log: ComparedLog, early: np.ndarray, late: np.ndarray, session: Session
) -> list[tuple[Explained, Signature]]:
    """Return the settings that may differ, with what their replays leave of the first part and of the rest."""
    rows = log.sample_rows[:MOST_REPLAYED]
    late_rows = np.flatnonzero(late)[: MOST_REPLAYED // 2]
    replayed_rows = np.union1d(rows, np.arange(late_rows.min(), late_rows.max() + 1)) if late_rows.size else rows
    changes = _changes(log)
    variants = [Variant({**log.question.flags, **change}) for change in changes]
    try:
        served = LogReplayer(session, log.load).serve(variants, replayed_rows, with_parts=False)
    except KernelSightError:
        return []
    measured = type(log.measured)(
        *(value[replayed_rows] if isinstance(value, np.ndarray) else value for value in log.measured)
    )
    explained = []
    for change, replayed in zip(changes, served, strict=True):
        if not replayed.served.any():
            continue
        ((name, value),) = change.items()
        early_signature, late_signature = (
            signature(measured, replayed, where[replayed_rows]) for where in (early, late)
        )
        word = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else float(value)
        penalty = PARALLEL + early_signature.misfit if name == "tensor_parallel_size" else 0.0
        explained.append((Explained(Cause("setting", name, word), early_signature.misfit, penalty), late_signature))
    return explained


def _changes(log: ComparedLog) -> list[dict[str, Any]]:
    """Return the settings that are tried: those one step away, and every usual step budget."""
    one_step = [change for _, change in alternatives(log.settings, log.question.flags)]
    neighbours = [change for change in one_step if set(change) <= set(SETTINGS) - {"max_num_batched_tokens"}]
    budget = log.settings["max_num_batched_tokens"]
    return neighbours + [{"max_num_batched_tokens": size} for size in BUDGETS if size != budget]


def _holds_later(
    best: Explained, observed: Signature, log: ComparedLog, base: Replayed, late: np.ndarray,
    late_signatures: Mapping[Explained, Signature],
) -> bool:  # fmt: skip
    """Whether a cause that was chosen on the first part of the time leaves less than nothing does on the rest."""
    after = signature(log.measured, base, late)
    if best in late_signatures:
        return late_signatures[best].misfit < after.misfit
    return lasts(best, after, log.measured.from_server)


def lasts(best: Explained, after: Signature, from_server: bool) -> bool:
    """Whether a cause with a closed form leaves less of a later signature than nothing does."""
    same_cause = [candidate for candidate in closed_forms(after, from_server) if candidate.cause[:2] == best.cause[:2]]
    return bool(same_cause) and same_cause[0].misfit < after.misfit


def cause_table(logs: Sequence[ComparedLog], tables: Mapping[str, pa.Table], session: Session) -> pa.Table:
    """Return ``causes``; ``tables``: log_replays, log_incidents, log_intervals, fitted_causes, miss_by_part."""
    rows = []
    for log in logs:
        log_tables = {
            name: rows_of(table, log.comparison_id) for name, table in tables.items() if name != "log_replays"
        }
        incidents = [
            Incident(*(row[name] for name in INCIDENT))
            for row in log_tables["log_incidents"].sort_by("place").to_pylist()
        ]
        load_ms = next(row["miss_ms"] for row in log_tables["miss_by_part"].to_pylist() if row["part"] == "workload")
        base, fitted = base_of(tables["log_replays"], log.comparison_id), log_tables["fitted_causes"].to_pylist()
        intervals = interval_factors(log_tables["log_intervals"].to_pylist())
        for index, cause in enumerate(causes_of(log, base, incidents, load_ms, fitted, intervals, session)):
            word = cause.value if isinstance(cause.value, str) else None
            value = None if isinstance(cause.value, str) else cause.value
            shared = {"comparison_id": log.comparison_id, "place": index, "value": value, "word": word}
            rows.append(cause._asdict() | shared)
    return as_table(contracts()["causes"], rows)


def incident_table(logs: Sequence[ComparedLog], log_replays: pa.Table) -> pa.Table:
    """Return ``log_incidents``."""
    rows = [
        {"comparison_id": log.comparison_id, "place": index, **dict(zip(INCIDENT, incident, strict=True))}
        for log in logs
        if log.enough
        for index, incident in enumerate(
            incidents_of(log.measured, base_of(log_replays, log.comparison_id), log.requests["chunk_gaps_ms"])
        )
    ]
    return as_table(contracts()["log_incidents"], rows)


def _eager_by_size(
    observed: Signature, eager: Explained | None, replayed: Sequence[tuple[Explained, Signature]], log: ComparedLog
) -> Cause | None:
    """Return eager execution where every step takes as much longer as launches do that no graph replays."""
    if eager is None or not np.isfinite(observed.tpot_ms) or log.settings.get("graph_max_tokens") == 0:
        return None
    misfit = next(candidate.misfit for candidate, _ in replayed if candidate is eager)
    slowdown = observed.tpot_ms / observed.predicted[2]
    slope = observed.prompt_token_us / max(observed.predicted[1], 1e-9)
    # a slower GPU would make prompts slower too
    if slowdown > 0.15 and slope < 0.5 * slowdown and misfit < observed.misfit:
        return Cause("setting", "enforce_eager", "true")
    return None
