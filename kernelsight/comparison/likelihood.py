"""Likelihood of PARAMETERS given a log's engine steps and profiled kernels, without its requests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from kernelsight.comparison.factors import PARAMETERS
from kernelsight.comparison.observed_steps import ObservedSteps
from kernelsight.comparison.replay import KERNELS, NO_LOAD, part_of
from kernelsight.dataflow.session import Session
from kernelsight.scenario.plan import give_plan, plan_rows
from kernelsight.serving.costs.cuda_graphs import step_padding
from kernelsight.serving.engine.host import host_of, host_times

HOST = PARAMETERS.index("host")
# repeats of one step differ by this standard deviation (of a logarithm) at least; errors of similar step shapes are
# correlated, so that the effective number of observations is limited
LEAST_SD, MOST_INDEPENDENT = 0.02, 100.0
HUBER, ITERATIONS, WIDE = 1.5, 20, 9.0
LARGEST_MOVE = 0.5
# matrix products of more tokens are compute bound, as in knot_corrections
FEW_TOKENS = 256
# standard deviation (of a logarithm) of a context that the log does not state, and of launch time, which no parameter
# corrects
CONTEXT_SD, LAUNCH_SD = 0.3, 0.3
# a step waits for launches if they take this share of its GPU time
NEARLY = 0.9
_TIMES = """
select latencies.deployment_id, latencies.step_shape_id, latencies.family,
       latencies.name in ('lm_head', 'logits') or latencies.family = 'sampling' as of_logits,
       sum(latencies.count * latencies.latency_us) as us
from kernel_latencies as latencies group by all
"""


class Evidence(NamedTuple):
    """Log likelihood of PARAMETERS for one deployment, quadratic around ``at``.

    ``precision``, ``gradient``: of the log likelihood there; ``misfit``: sum of squared residuals there, in standard
    deviations; ``sd``: standard deviation of the logarithm of a step's time.
    """

    at: np.ndarray
    precision: np.ndarray
    gradient: np.ndarray
    misfit: float
    sd: float

    def pull(self, values: np.ndarray) -> np.ndarray:
        """Return the gradient of the log likelihood at other values."""
        return self.gradient - self.precision @ (values - self.at)

    def misfit_at(self, values: np.ndarray) -> float:
        """Return the sum of squared residuals, in standard deviations, at other values.

        >>> one = Evidence(np.zeros(2), np.diag([4.0, 0.0]), np.zeros(2), 1.0, 0.02)
        >>> one.misfit_at(np.array([1.0, 9.0]))
        5.0
        """
        shift = values - self.at
        return float(max(self.misfit - 2.0 * self.gradient @ shift + shift @ self.precision @ shift, 0.0))


class Predicted(NamedTuple):
    """Predicted time of each step shape on one deployment, us: step = ``exposed`` + max(``hidden``, GPU time).

    ``kernels``: GPU time by KERNELS, shape [shapes, KERNELS]; ``rest``: GPU time of other kernels, less what overlaps;
    ``hidden``, ``exposed``: host time that can and cannot overlap with kernels.
    """

    kernels: np.ndarray
    rest: np.ndarray
    hidden: np.ndarray
    exposed: np.ndarray


class StepLikelihoods:
    """Likelihoods of PARAMETERS by deployment given the observed steps, computed on demand and cached."""

    def __init__(self, session: Session, observations: ObservedSteps, prior: np.ndarray) -> None:
        self._session, self._observations, self._prior = session, observations, prior
        self._cache: dict[str, Evidence | None] = {}
        self._sd: float | None = None

    def of_deployments(self, flags: Sequence[Mapping[str, Any]]) -> list[Evidence | None]:
        """Return the likelihood for each deployment; None for one that cannot be planned.

        The noise that the first deployment leaves is the standard deviation for all later ones.
        """
        names = [repr(sorted(named_flags.items(), key=lambda item: item[0])) for named_flags in flags]
        missing = {name: named_flags for name, named_flags in zip(names, flags, strict=True) if name not in self._cache}
        if missing:
            for name, times in zip(missing, self._predict(list(missing.values())), strict=True):
                result = None if times is None else likelihood(self._observations, times, self._prior, self._sd)
                if result is not None and self._sd is None:
                    self._sd = result.sd
                self._cache[name] = result
        return [self._cache[name] for name in names]

    def _predict(self, flags: Sequence[Mapping[str, Any]]) -> list[Predicted | None]:
        with self._session.fork() as fork:
            plan = plan_rows(fork, [{**NO_LOAD, **named_flags} for named_flags in flags], on_fault="collect", origin="")
            names = [None if row is None else row["deployment_id"] for row in plan.scenarios]
            deployment_ids = set(names) - {None}
            if not deployment_ids:
                return [None] * len(flags)
            give_plan(fork, plan.deployments_of(plan.planned), plan.planned)
            rows = {
                deployment_id: _by_deployment(fork, deployment_id)
                for deployment_id in ("kv_layout", "deployment_settings", "host_settings")
            }
            engine_steps, profiled_steps = (
                self._observations.shapes[: self._observations.steps],
                self._observations.shapes[self._observations.steps :],
            )
            times, totals = _priced(fork, engine_steps, deployment_ids, rows)
            # a profile times each kernel, on whatever stream it runs
            fusions = fork.table("engine_fusions")
            fork.give("engine_fusions", fusions.filter(pc.not_equal(fusions["operation"], "shared_experts")))
            times, totals = (
                a + b for a, b in zip((times, totals), _priced(fork, profiled_steps, deployment_ids, rows), strict=True)
            )
        count = len(self._observations.shapes)
        predicted = {
            deployment_id: Predicted(np.zeros((count, len(KERNELS))), *np.zeros((3, count)))
            for deployment_id in deployment_ids
        }
        for row in times:
            shape = self._observations.shapes[row["step_shape_id"]]
            kernel = part_of(
                row["family"], "decode" if row["of_logits"] or shape["tokens"] <= FEW_TOKENS else "prefill"
            )
            if kernel and row["deployment_id"] in predicted:
                predicted[row["deployment_id"]].kernels[row["step_shape_id"], KERNELS.index(kernel)] += row["us"]
        for row in totals:
            deployment_id, shape_id = row["deployment_id"], row["step_shape_id"]
            if deployment_id in predicted:
                host = host_of(
                    rows["host_settings"][deployment_id], rows["deployment_settings"][deployment_id], row["launches"]
                )
                shape = self._observations.shapes[shape_id]
                requests = shape["decode_requests"] + shape["prefill_requests"]
                hidden, exposed, _ = host_times(requests, shape["tokens"], shape["prefill_requests"], host)
                predicted[deployment_id].hidden[shape_id], predicted[deployment_id].exposed[shape_id] = hidden, exposed
                predicted[deployment_id].rest[shape_id] = (
                    row["gpu_us"] - predicted[deployment_id].kernels[shape_id].sum()
                )
        return [None if deployment_id is None else predicted[deployment_id] for deployment_id in names]


def _priced(
    session: Session,
    steps: Sequence[Mapping[str, Any]],
    deployment_ids: Collection[str],
    rows: Mapping[str, Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return kernel times by family, us, and rows of ``step_totals``, for each step on each deployment.

    ``rows``: rows of kv_layout and deployment_settings by deployment.
    """
    if not steps:
        return [], []
    shapes = [
        _shape(row, name, rows["kv_layout"][name]["window_tokens"], rows["deployment_settings"][name])
        for name in sorted(deployment_ids)
        for row in steps
    ]
    session.give("step_shapes", shapes)
    return session.query(_TIMES).to_pylist(), session.table("step_totals").to_pylist()


def _by_deployment(session: Session, table: str) -> dict[str, dict[str, Any]]:
    return {row["deployment_id"]: row for row in session.table(table).to_pylist()}


def _shape(
    row: Mapping[str, Any], deployment_id: str, window: int | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a row of ``step_shapes``: the step padded to its CUDA graph's size, contexts cut to attention's window."""
    context, tokens = row["decode_context"], row["tokens"]
    window_context = context if context is None or not window else min(context, window)
    if tokens <= (largest := settings["graph_max_tokens"]):
        decodes_alone, with_prompts = step_padding(largest, settings)
        tokens = int((with_prompts if row["prefill_requests"] else decodes_alone)[tokens])
    return {"deployment_id": deployment_id, **row, "tokens": tokens, "decode_window_context": window_context}


def likelihood(observations: ObservedSteps, times: Predicted, prior: np.ndarray, sd: float | None = None) -> Evidence:
    """Return the likelihood of PARAMETERS: robust (Huber) least squares of logarithms of step and kernel times.

    ``times``: predicted times by step shape; ``sd``: standard deviation of the logarithms; None: that of the residuals,
    at least LEAST_SD. ``prior`` is widened here and only holds parameters that steps do not determine: it counts fully
    when requests are fitted.
    """
    precision, value = np.linalg.inv(prior * WIDE), np.zeros(len(PARAMETERS))
    kernel_us = np.where(observations.parts, times.kernels[observations.shape], 0.0)
    other_us = np.where(observations.parts.all(axis=1), times.rest[observations.shape], 0.0)
    hidden, exposed = (
        np.where(observations.with_host, noise_sd[observations.shape], 0.0)
        for noise_sd in (times.hidden, times.exposed)
    )
    for turn in range(ITERATIONS):
        spent = kernel_us * np.exp(value[: len(KERNELS)])
        gpu = spent.sum(axis=1) + other_us
        added = np.where(observations.with_host, value[HOST] * 1e3, 0.0)
        total = np.maximum(exposed + np.maximum(hidden, gpu) + added, 1.0)
        residual = observations.log_us - np.log(total)
        slope = np.zeros((total.size, len(PARAMETERS)))
        # kernels that end before the host does not change the step's time
        slope[:, : len(KERNELS)] = np.where(gpu > hidden, 1.0 / total, 0.0)[:, None] * spent
        slope[:, HOST] = np.where(observations.with_host, 1e3, 0.0) / total
        # residuals are noise only after the first half of the iterations has fitted the factors
        spread = LEAST_SD if turn < ITERATIONS // 2 else 1.4826 * float(np.median(np.abs(residual)))
        noise = sd or max(LEAST_SD, spread)
        attention = slope[:, KERNELS.index("decode_attention")]
        noise_sd = np.hypot(noise, np.where(observations.context_known, 0.0, CONTEXT_SD * attention))
        noise_sd = np.hypot(noise_sd, np.where(hidden > NEARLY * gpu, LAUNCH_SD * hidden / total, 0.0))
        huber_weight = np.minimum(1.0, HUBER * noise_sd / np.maximum(np.abs(residual), 1e-12))
        weight = huber_weight / noise_sd**2 * min(1.0, MOST_INDEPENDENT / residual.size) * (gpu > 0.0)
        information, gradient = (slope.T * weight) @ slope, (slope.T * weight) @ residual
        if turn == ITERATIONS - 1:
            break
        step = np.linalg.solve(information + precision, gradient - precision @ value)
        value = value + step * min(1.0, LARGEST_MOVE / max(np.abs(step[: len(KERNELS)]).max(), 1e-12))
    return Evidence(value, information, gradient, float((weight * residual**2).sum()), noise)
