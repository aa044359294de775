"""Explanation of a log: causes and factors fitted on the first part of its time, corrections scored on the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.comparison.cause_selection import explain, is_believed
from kernelsight.comparison.cause_sizes import GROUPS, State
from kernelsight.comparison.compared_log import ComparedLog, compared_logs, rows_of, tables_beside
from kernelsight.comparison.errors import METRICS, errors_of, measured_by_metric, predicted_of
from kernelsight.comparison.factors import (
    PARAMETERS,
    Estimate,
    estimate,
    kernel_spread,
    prior_covariance,
    relative_residuals,
    variant_of,
)
from kernelsight.comparison.likelihood import StepLikelihoods
from kernelsight.comparison.log_replayer import LogReplayer, Sample
from kernelsight.comparison.observed_limits import is_limited, seats_to_confirm
from kernelsight.comparison.observed_steps import ObservedSteps, observed_steps_of, typical_context
from kernelsight.comparison.replay import KERNELS, REPLAYED_PARTS, Replayed, Variant
from kernelsight.comparison.replayed_log import base_of, explained_table, joined
from kernelsight.comparison.residuals import NOTHING, group_residuals, similar
from kernelsight.comparison.settings import contradictions
from kernelsight.comparison.signature_causes import LEAST_FACTOR, MOST_FACTOR
from kernelsight.dataflow.blas import one_blas_thread
from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.dataflow.session import Session
from kernelsight.number_format import percent
from kernelsight.scenario.alternatives import alternatives
from kernelsight.scenario.corrections import fingerprint

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader

# the kinds of corrections that are scored
SCORED = ("uncorrected", "one_factor", "corrected")


class Explanation(NamedTuple):
    """Causes, factors and corrections of one log.

    ``state``: the chosen causes, replayed on the whole log; ``ranked``: the loss of each setting alone, best first;
    ``loss``: of the deployment as stated, a mean square of relative residuals; ``fitted``: all PARAMETERS at once, None
    if nothing was fitted; ``values``: the PARAMETERS that corrections are made of; ``scores``: held-out errors by kind
    of correction and metric; ``steps``: the engine steps and kernels that were used.
    """

    state: State
    ranked: Sequence[tuple[str, float]]
    loss: float
    fitted: Estimate | None
    values: np.ndarray
    scores: Mapping[str, Mapping[str, Mapping[str, float | None]]]
    steps: ObservedSteps | None

    @property
    def explained(self) -> float:
        """The share of the loss that the causes explain."""
        return 1.0 - self.state.residuals.loss / self.loss if self.loss else 0.0

    @property
    def is_believed(self) -> bool:
        """Whether the causes explain enough of the loss; see ``causes.is_believed``."""
        return is_believed(**self.believed_by)

    @property
    def believed_by(self) -> dict[str, Any]:
        """The arguments of ``causes.is_believed``, which are columns of ``fitted_causes``."""
        return {
            "explained": self.explained,
            "chance": bool(self.state.residuals.is_chance),
            "left": self.state.residuals.loss,
        }

    @property
    def is_better(self) -> bool:
        """Whether corrections beat one factor per metric on held-out time: sum of median errors over the metrics."""
        if not self.scores:
            return False

        def total(name: str) -> float:
            return sum(value for score in self.scores[name].values() if (value := score["median_ape"]) is not None)

        return total("corrected") < min(total("one_factor"), total("uncorrected"))


@reads(
    *("production_logs", "production_steps", "production_kernels", "production_windows", "production_settings"),
    *("step_costs", "knot_corrections", "kernel_latencies", "step_totals"),
)
@produces(
    *("explained_replays", "fitted_causes", "fitted_parameters", "setting_suspects", "fitted_corrections"),
    *("correction_scores", "log_evidence"),
)
def explanation_tables(
    comparisons: pa.Table,
    log_settings: pa.Table,
    compared_requests: pa.Table,
    log_replays: pa.Table,
    log_incidents: pa.Table,
    *,
    read: Reader,
    fork: Callable[[], Session],
) -> dict[str, Any]:
    """Explanation of each log by replays: other settings, factors on kernels, host time, front-end time.

    A log with an incident is not fitted: what is fitted before a change does not hold after it.
    """
    tables: dict[str, Any] = {name: [] for name in explanation_tables.produces}
    replays = []
    with one_blas_thread(), fork() as session:
        for log in compared_logs(comparisons, log_settings, compared_requests, tables_beside(read)):
            base = base_of(log_replays, log.comparison_id)
            has_incident = rows_of(log_incidents, log.comparison_id).num_rows > 0
            explanation = explained(log, base, session, has_incident or is_limited(log, base))
            for name, values in _rows(log, explanation, session).items():
                tables[name] += [{"comparison_id": log.comparison_id, **value} for value in values]
            if explanation.state.causes:
                replays.append(explained_table(log, explanation.state.replayed))
    return tables | {"explained_replays": joined("explained_replays", replays)}


def explained(log: ComparedLog, base: Replayed, session: Session, is_explained: bool = False) -> Explanation:
    """Return the explanation of a log; one without causes where the log is too short or the question wants none.

    ``base``: the replay as stated; ``is_explained``: the log itself shows what happened, so that nothing is fitted.
    """
    question, nothing = log.question, np.zeros(len(PARAMETERS))
    if not log.enough or is_explained or question.fit == "none":
        unexplained = State(question.flags, nothing, (), base, NOTHING)
        return Explanation(unexplained, [], 0.0, None, nothing, {}, None)
    rows = log.sample_rows
    replays = LogReplayer(session, log.load)
    sample = Sample(replays, log.measured, rows)
    chosen, prior = log.fitted_on[rows], _prior(log, session)
    observed_steps = _observed_steps(log)
    steps = StepLikelihoods(session, observed_steps, prior) if observed_steps.shapes else None
    settings = alternatives(log.settings, question.flags) if question.suspects == "all" else []
    settings += [(f"max_num_seqs={seats}", {"max_num_seqs": seats}) for seats in seats_to_confirm(log, base)]
    as_stated = sample.serve([Variant(question.flags)])[0]
    likelihoods_of = steps.of_deployments if steps else None
    state, ranked = explain(
        sample.serve, question.flags, as_stated, sample.measured, chosen, prior, settings, likelihoods_of
    )
    state = _on_whole_log(state, base, replays)
    likelihoods = steps.of_deployments([state.flags]) if steps else ()
    fitted = estimate(
        sample.serve, [state.flags], sample.measured, chosen, prior, iterations=4, likelihoods=likelihoods
    )[0]  # fmt: skip
    values = _better_values(sample, chosen, state, fitted)
    residuals = relative_residuals(sample.measured, as_stated)
    loss = group_residuals(residuals[:, chosen], similar(sample.measured, chosen)).loss
    scores = _scores(log, base, state, values, replays)
    return Explanation(state, ranked, loss, fitted, values, scores, observed_steps)


def _prior(log: ComparedLog, session: Session) -> np.ndarray:
    """Return the prior covariance of PARAMETERS; with ``fit`` "host" kernels are held at their prediction."""
    prior = prior_covariance(kernel_spread(session, log.question.flags, log.measured))
    if log.question.fit == "host":
        kernels = slice(0, len(KERNELS))
        prior[kernels, kernels] = np.eye(len(KERNELS)) * 1e-12
    return prior


def _observed_steps(log: ComparedLog) -> ObservedSteps:
    """Return the engine steps and kernels that the log holds of the fitted part of its time."""
    fitted_share = 1.0 - log.question.hold_out
    until_s = fitted_share * float(np.ptp(log.measured.sent_s))
    return observed_steps_of(log.tables, log.settings, until_s, fitted_share, typical_context(log.measured))


def _on_whole_log(state: State, base: Replayed, replays: LogReplayer) -> State:
    """Return the explanation with a replay of the whole log, which keeps only the parts of its causes."""
    if not state.causes:
        return state._replace(replayed=base)
    part_names = [
        name for name, value in zip(PARAMETERS, state.values, strict=True) if value and name in REPLAYED_PARTS
    ]
    (replayed,) = replays.serve([variant_of(state.flags, state.values)], with_parts=bool(part_names))
    return state._replace(replayed=replayed.only(part_names))


def _better_values(sample: Sample, chosen: np.ndarray, state: State, fitted: Estimate) -> np.ndarray:
    """Return values of PARAMETERS: of the causes alone, unless all factors fit the first part more than 5 % better."""
    by_causes = sample.serve([variant_of(state.flags, state.values)])[0]
    measured_ms = measured_by_metric(sample.measured)

    def error(replayed: Replayed) -> float:
        predicted_ms = predicted_of(replayed, sample.measured.output_tokens)
        scores = [
            errors_of(np.where(chosen, measured_ms[name], np.nan), predicted_ms[name])["median_ape"] for name in METRICS
        ]
        return sum(score for score in scores if score is not None)

    return state.values if error(by_causes) <= 1.05 * error(fitted.replayed) else fitted.values


def _scores(
    log: ComparedLog, base: Replayed, state: State, values: np.ndarray, replays: LogReplayer
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return median error and bias on held-out time by kind of correction (SCORED) and metric."""
    output, chosen = log.measured.output_tokens, log.fitted_on
    held_out = log.measured.ok & ~chosen
    measured_ms, predicted_ms = measured_by_metric(log.measured), predicted_of(base, output)
    served = state.replayed
    if values is not state.values:  # a million requests take seconds to replay again
        (served,) = replays.serve([variant_of(state.flags, values)], with_parts=False)
    corrected = predicted_of(served, output)
    scores: dict[str, dict[str, dict[str, float | None]]] = {name: {} for name in SCORED}
    for name, metric in ((name, metric) for name in SCORED for metric in METRICS):
        ratios = np.where(chosen, measured_ms[metric] / predicted_ms[metric], np.nan)
        factor = float(np.nanmedian(ratios)) if np.isfinite(ratios).any() else 1.0
        by_kind = {"uncorrected": predicted_ms, "corrected": corrected}.get(name, {})
        score = errors_of(
            np.where(held_out, measured_ms[metric], np.nan), by_kind.get(metric, predicted_ms[metric] * factor)
        )
        scores[name][metric] = {key: score[key] for key in ("median_ape", "bias")}
    return scores


def _rows(log: ComparedLog, explanation: Explanation, session: Session) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the TABLES by name, without those of ``explained_replays``."""
    sd, prior_sd = (explanation.fitted.sd, explanation.fitted.prior_sd) if explanation.fitted else (None, None)
    parameters = [
        {"parameter": name, "value": float(explanation.state.values[number])}
        | ({"sd": float(sd[number]), "prior_sd": float(prior_sd[number])} if sd is not None else {})
        for number, name in enumerate(PARAMETERS)
    ]
    held_out = int((log.measured.ok & ~log.fitted_on).sum())
    scores = [
        {"corrections": name, "metric": metric, "held_out": held_out, **score}
        for name, by_metric in explanation.scores.items()
        for metric, score in by_metric.items()
    ]
    return {
        "fitted_causes": [
            {"place": index, **explanation.believed_by, **_cause_row(explanation.state, name)}
            for index, name in enumerate(explanation.state.causes)
        ],
        "fitted_parameters": parameters,
        "setting_suspects": _suspects(log, explanation, session),
        "fitted_corrections": _corrections(log, explanation),
        "correction_scores": scores,
        "log_evidence": _evidence(explanation.steps),
    }


def _cause_row(state: State, name: str) -> dict[str, Any]:
    """Return the columns of ``fitted_causes`` that hold a cause: its name, and a value, factor or added ms."""
    if name not in GROUPS:
        setting, _, value = name.partition("=")
        return {"cause": setting, "value": value}
    size = float(state.values[PARAMETERS.index(GROUPS[name][0])])
    return {"cause": name, "added_ms": size} if name in ("host", "front_end") else {
        "cause": name, "factor": float(np.exp(size))
    }  # fmt: skip


def _suspects(log: ComparedLog, explanation: Explanation, session: Session) -> list[dict[str, Any]]:
    """Return rows of ``setting_suspects``: contradicted settings first, then by the share of the loss they explain."""
    tables = {**log.tables, "production_requests": log.requests}
    rows = contradictions(session, log.settings, tables) if log.question.suspects == "all" else []
    for name, loss in explanation.ranked:
        setting, _, value = name.partition("=")
        gain = 1.0 - loss / explanation.loss if explanation.loss else 0.0
        likely = name in explanation.state.causes and explanation.is_believed
        if likely or gain > 0.1:
            stated = log.settings.get({"tensor_parallel_size": "tp"}.get(setting, setting))
            row = {"setting": setting, "stated": None if stated is None else str(stated), "value": value}
            rows.append({**row, "gain": gain, "evidence": "likely" if likely else "undecided"})
    return sorted(rows, key=lambda row: ("impossible", "likely", "undecided").index(row["evidence"]))


def _corrections(log: ComparedLog, explanation: Explanation) -> list[dict[str, Any]]:
    """Return rows of ``fitted_corrections``; none if they do not hold on held-out time or a factor is implausible."""
    factors = np.exp(explanation.values[: len(KERNELS)])
    if not explanation.is_better or factors.min() < LEAST_FACTOR or factors.max() > MOST_FACTOR:
        return []
    before, after = (explanation.scores[name]["e2e"]["median_ape"] for name in ("uncorrected", "corrected"))
    shared = {
        "n": int(log.fitted_on.sum()), "fitted_on": f"first {percent(1 - log.question.hold_out)} of the log",
        "held_out_before": before, "held_out_after": after, "fingerprint": fingerprint(log.settings),
    }  # fmt: skip
    return [{**row, **shared} for row in variant_of(explanation.state.flags, explanation.values).corrections()]


def _evidence(observed_steps: ObservedSteps | None) -> list[dict[str, Any]]:
    """Return rows of ``log_evidence``: counts of engine steps and kernels, and sentences on what was not used."""
    if observed_steps is None:
        return []
    rows: list[dict[str, Any]] = [
        {"evidence": name, "n": getattr(observed_steps, name)} for name in ("steps", "kernels")
    ]
    rows += [{"evidence": "not_used", "sentence": sentence} for sentence in observed_steps.unused]
    return [{"place": index, **row} for index, row in enumerate(rows)]
