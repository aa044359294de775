"""Factors on kernel and host time that explain a log: maximum a posteriori, with the kernels' intervals as prior.

The forward model is the replay itself: Gauss-Newton steps whose derivatives are the parts of each request's time, with
a replay after each step, so that queueing and batch sizes follow. Requests of one batch are not independent: their
effective number is how many could have been served in sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import KERNELS, NO_LOAD, REPLAYED_PARTS, Replayed, Variant, part_of
from kernelsight.dataflow.session import Session
from kernelsight.forward.forward_step import whole_step
from kernelsight.scenario.plan import give_plan, plan_rows

PARAMETERS = (*KERNELS, "host", "front_end")
# prior standard deviations: milliseconds a step, milliseconds a request
STEP_MS, REQUEST_MS = 1.5, 40.0
# prior correlation of the factors of matrix products with few and with many tokens
GEMM_CORRELATION = 0.6
# smallest standard deviation of a residual, as a share of the measured time, and in milliseconds
LEAST_SHARE, LEAST_MS = 0.01, 0.1
HUBER = 1.5
LARGEST_STEP = 0.35
ITERATIONS = 5
# step shapes of two typical steps, and the requests of the first
DECODE, PREFILL, SEQUENCES = 0, 1, 16
# standard deviation (of a logarithm) for parts whose kernels neither step launches; bounds for the others
UNKNOWN_SD, LEAST_SD, MOST_SD = 0.1, 0.04, 0.4
# standard deviations from the median to the ends of 90 % of a normal distribution
WIDTH_90 = 3.29
_INTERVALS = """
select deployment_id, family, step_shape_id, sum(count * latency_us) as us,
       sum(count * latency_us * ln(latency_p95_us / latency_p05_us)) as weighted
from kernel_latencies
where latency_us > 0 and latency_p05_us > 0
group by all order by all
"""


class Estimate(NamedTuple):
    """Posterior of PARAMETERS (logarithms of factors, then ms a step and ms a request), and the replay at its mode.

    ``values``, ``prior_sd``: shape [PARAMETERS]; ``covariance``: of the posterior, shape [PARAMETERS, PARAMETERS];
    ``loss``: Huber loss of relative residuals, shape [requests].
    """

    values: np.ndarray
    covariance: np.ndarray
    prior_sd: np.ndarray
    replayed: Replayed
    loss: np.ndarray

    @property
    def sd(self) -> np.ndarray:
        """Posterior standard deviations, shape [PARAMETERS]."""
        return np.sqrt(np.diag(self.covariance))


def variant_of(flags: Mapping[str, object], values: np.ndarray) -> Variant:
    """Return a deployment with corrections: factors on kernels, and host and front-end times in us."""
    factors = {kernel: float(np.exp(value)) for kernel, value in zip(KERNELS, values, strict=False)}
    return Variant(flags, factors, float(values[-2] * 1e3), float(values[-1] * 1e3))


def prior_covariance(kernel_sd: Mapping[str, float]) -> np.ndarray:
    """Return the prior covariance of PARAMETERS, shape [PARAMETERS, PARAMETERS].

    ``kernel_sd``: standard deviation of the logarithm of the factor on each of KERNELS.
    """
    sd = np.array([*(kernel_sd[kernel] for kernel in KERNELS), STEP_MS, REQUEST_MS])
    covariance = np.diag(sd**2)
    small, large = PARAMETERS.index("decode_gemm"), PARAMETERS.index("prefill_gemm")
    covariance[small, large] = covariance[large, small] = GEMM_CORRELATION * sd[small] * sd[large]
    return covariance


class StepLikelihood(Protocol):
    """Quadratic log likelihood of PARAMETERS from evidence beside the requests: engine steps and kernels.

    ``at``: its mode; ``precision``: there; ``misfit``: sum of squared residuals there, in standard deviations.
    """

    at: np.ndarray
    precision: np.ndarray
    misfit: float

    def pull(self, values: np.ndarray) -> np.ndarray:
        """Return the gradient of the log likelihood, shape [PARAMETERS]."""

    def misfit_at(self, values: np.ndarray) -> float:
        """Return the sum of squared residuals at ``values``, in standard deviations."""


class Observations(NamedTuple):
    """Residuals of requests and their derivatives: of TTFT, then of decode time, then of E2E.

    ``residual_ms``: shape [residuals]; ``derivative``: by PARAMETERS, shape [residuals, PARAMETERS]; ``scale_ms``:
    smallest standard deviation of each; ``weight``: of each in the fit; ``rows``: index of the request of each.
    """

    residual_ms: np.ndarray
    derivative: np.ndarray
    scale_ms: np.ndarray
    weight: np.ndarray
    rows: np.ndarray


def times_of(measured: Measured, replayed: Replayed) -> list[tuple[np.ndarray, np.ndarray, tuple[int, ...]]]:
    """Return (measured ms, predicted ms, phases) of TTFT, of decode time, and of E2E where a request has neither.

    Phases are indices of the parts of a replay: 0 before the first token, 1 after it.
    """
    decode_ms = np.where(measured.output_tokens > 1, measured.decode_ms, np.nan)
    without_parts = np.isnan(measured.ttft_ms) & np.isnan(decode_ms)
    return [
        (measured.ttft_ms, replayed.ttft_ms, (0,)),
        (decode_ms, (replayed.finish_ns - replayed.first_ns) / 1e6, (1,)),
        (np.where(without_parts, measured.e2e_ms, np.nan), replayed.e2e_ms, (0, 1)),
    ]


def observe(measured: Measured, replayed: Replayed, chosen: np.ndarray) -> Observations:
    """Return residuals and derivatives of the chosen requests; a TTFT that is mostly queueing has little weight."""
    kernels = [REPLAYED_PARTS.index(part) for part in KERNELS]
    observations = []
    for measured_ms, predicted_ms, phases in times_of(measured, replayed):
        rows = np.flatnonzero(chosen & replayed.served & np.isfinite(measured_ms) & (measured_ms > 0.0))
        derivative = np.zeros((rows.size, len(PARAMETERS)))
        for column, kernel in enumerate(kernels):
            derivative[:, column] = replayed.parts_ns[kernel][list(phases)].sum(axis=0)[rows] / 1e6
        derivative[:, -2] = replayed.steps[list(phases)].sum(axis=0)[rows]
        weight = np.ones(rows.size)
        if 0 in phases:
            derivative[:, -1] = 1.0
            waits = replayed.queue_ms[rows] / np.maximum(predicted_ms[rows], 1e-9)
            weight = 1.0 / (1.0 + (np.maximum(waits - 0.2, 0.0) / 0.2) ** 2)
        scale = np.maximum(LEAST_SHARE * measured_ms[rows], LEAST_MS)
        observations.append(Observations((measured_ms - predicted_ms)[rows], derivative, scale, weight, rows))
    return Observations(*(np.concatenate(arrays) for arrays in zip(*observations, strict=True)))


def relative_loss(measured: Measured, replayed: Replayed) -> np.ndarray:
    """Return the mean Huber loss of each request's relative residuals, shape [requests]; NaN where there are none."""
    residuals = relative_residuals(measured, replayed)
    losses = np.where(np.abs(residuals) < 0.1, residuals**2 / 0.2, np.abs(residuals) - 0.05)
    count = np.isfinite(losses).sum(axis=0)
    return np.divide(np.nansum(losses, axis=0), count, out=np.full(count.size, np.nan), where=count > 0)


def relative_residuals(measured: Measured, replayed: Replayed) -> np.ndarray:
    """Return (measured - predicted) / measured of ``times_of``, shape [3, requests]; NaN where there is none.

    Residuals are clipped to [-1, 1]; a request that the replay rejects has 1.
    """
    residuals = []
    for measured_ms, predicted_ms, _ in times_of(measured, replayed):
        with np.errstate(invalid="ignore", divide="ignore"):
            residual = np.clip((measured_ms - predicted_ms) / np.maximum(measured_ms, 1.0), -1.0, 1.0)
        residual = np.where(replayed.served, residual, 1.0)
        residuals.append(np.where(measured.ok & np.isfinite(measured_ms), residual, np.nan))
    return np.array(residuals)


def estimate(
    serve: Callable[[Sequence[Variant]], list[Replayed]],
    flags: Sequence[Mapping[str, object]],
    measured: Measured,
    chosen: np.ndarray,
    prior: np.ndarray,
    *,
    uncorrected: Sequence[Replayed] | None = None,
    iterations: int = ITERATIONS,
    likelihoods: Sequence[StepLikelihood | None] = (),
) -> list[Estimate]:
    """Return the estimate of PARAMETERS for each deployment; the replays of an iteration are made in one call.

    ``flags``: of deployments; ``chosen``: mask of the requests that are fitted, shape [requests]; ``prior``: covariance
    of PARAMETERS; ``uncorrected``: replays without corrections, if already made; ``likelihoods``: by engine steps and
    kernels, one per deployment; iterations start at their mode.
    """
    likelihood_of = list(likelihoods) or [None] * len(flags)
    values = [np.zeros(len(PARAMETERS)) if likelihood is None else likelihood.at for likelihood in likelihood_of]
    replays = (
        list(uncorrected)
        if uncorrected
        else serve([variant_of(deployment_flags, value) for deployment_flags, value in zip(flags, values, strict=True)])
    )
    best: list[Estimate | None] = [None] * len(flags)
    for turn in range(iterations + 1):
        new_values = []
        for index, (value, replayed) in enumerate(zip(values, replays, strict=True)):
            loss = relative_loss(measured, replayed)
            likelihood = likelihood_of[index]
            step_information = None if likelihood is None else (likelihood.precision, likelihood.pull(value))
            step, covariance = newton_step(
                value, observe(measured, replayed, chosen), replayed, prior, step_information
            )
            fitted = Estimate(value, covariance, np.sqrt(np.diag(prior)), replayed, loss)
            if best[index] is None or np.nanmean(loss[chosen]) < np.nanmean(best[index].loss[chosen]):
                best[index] = fitted
            new_values.append(value + limited(step))
        if turn == iterations:
            break
        values = new_values
        replays = serve(
            [variant_of(deployment_flags, value) for deployment_flags, value in zip(flags, values, strict=True)]
        )
    return best


def newton_step(
    value: np.ndarray,
    observations: Observations,
    replayed: Replayed,
    prior: np.ndarray,
    evidence: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the Gauss-Newton step to the maximum of the linearised posterior, and the posterior covariance.

    ``value``: PARAMETERS so far; ``evidence``: precision and gradient of the likelihood by steps and kernels, if any.
    """
    precision = np.linalg.inv(prior)
    if not observations.rows.size and evidence is None:
        return -value, prior
    scaled = observations.residual_ms / observations.scale_ms
    spread = 1.4826 * np.median(np.abs(scaled)) if scaled.size else 1.0
    sigma = max(1.0, min(spread, 30.0))
    huber_weight = np.minimum(1.0, HUBER * sigma / np.maximum(np.abs(scaled), 1e-12))
    weight = observations.weight * huber_weight / (observations.scale_ms * sigma) ** 2
    weight *= independent(replayed) / replayed.served.sum()
    hessian = (observations.derivative * weight[:, None]).T @ observations.derivative + precision
    gradient = (observations.derivative * weight[:, None]).T @ observations.residual_ms - precision @ value
    if evidence is not None:
        hessian, gradient = hessian + evidence[0], gradient + evidence[1]
    covariance = np.linalg.inv(hessian)
    return covariance @ gradient, covariance


def limited(step: np.ndarray) -> np.ndarray:
    """Return a step of PARAMETERS, shortened so that no logarithm of a factor moves more than LARGEST_STEP."""
    return step * min(1.0, LARGEST_STEP / max(np.abs(step[: len(KERNELS)]).max(), 1e-12))


def independent(replayed: Replayed) -> float:
    """Return the effective number of independent requests: served ones over their mean concurrency, at least 1."""
    served = replayed.served
    if not served.any():
        return 1.0
    busy = (replayed.finish_ns[served] - replayed.sent_ns[served]).sum()
    span = replayed.finish_ns[served].max() - replayed.sent_ns[served].min()
    return max(served.sum() / max(busy / max(span, 1), 1.0), 1.0)


def kernel_spread(session: Session, flags: Mapping[str, Any], measured: Measured) -> dict[str, float]:
    """Return the standard deviation of the logarithm of time of each of KERNELS.

    From the 90 % intervals of a decode and a prefill step at the median lengths of the log's requests.
    """
    context = int(np.median(measured.prompt_tokens) + np.median(measured.output_tokens) / 2)
    decode = whole_step(DECODE, SEQUENCES, max(context, 1), 0, 0, 0)
    prefill = whole_step(PREFILL, 0, 0, 1, max(int(np.median(measured.prompt_tokens)), 1), 0)
    with session.fork() as fork:
        plan = plan_rows(fork, [{**NO_LOAD, **flags}], origin="")
        give_plan(fork, plan.deployments_of(plan.planned), plan.planned)
        deployment_id = plan.planned[0]["deployment_id"]
        layout = next(row for row in fork.table("kv_layout").to_pylist() if row["deployment_id"] == deployment_id)
        window_context = min(context, layout["window_tokens"] or context)
        shapes = [{**decode, "decode_window_context": window_context}, {**prefill, "decode_window_context": None}]
        fork.give("step_shapes", [{"deployment_id": deployment_id, **shape} for shape in shapes])
        rows = [row for row in fork.query(_INTERVALS).to_pylist() if row["deployment_id"] == deployment_id]
    sums = {kernel: np.zeros(2) for kernel in KERNELS}
    for row in rows:
        kernel = part_of(row["family"], "decode" if row["step_shape_id"] == DECODE else "prefill")
        if kernel:
            sums[kernel] += row["us"], row["weighted"] / WIDTH_90
    return {
        kernel: float(np.clip(weighted / us, LEAST_SD, MOST_SD)) if us else UNKNOWN_SD
        for kernel, (us, weighted) in sums.items()
    }
