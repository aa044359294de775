"""Which implementation is fastest at each shape of a GPU that was measured little or never, and how sure that is."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.choices.candidates import Choice
from kernelsight.choices.contrasts import Candidates, Sizes, posteriors, starting_sizes, tuned
from kernelsight.fitting.splits import shape_columns

# measured sites from which the sizes of effects, and the error of the model's level, are taken from the GPU itself
LEAST_TUNING, LEAST_LEVELS = 4, 10
# draws behind probabilities and expected regrets; the same for every site
DRAWS = 256
# half width of a 90 % interval in standard deviations
SIGMAS = 1.645
# variance that keeps a covariance positive definite in spite of rounding
ROUNDING = 1e-6
# standard deviation of a repeated measurement, and the largest log ratio that counts in an expected regret
REPEATED, MOST_LOG_REGRET = 0.02, 3.0


class Contrasts(NamedTuple):
    """Of each candidate: log latency against the model's level of its site, contrast to the site's pick, and chances.

    ``ratio``: log of its latency / that of the pick, with ``ratio_sd``; ``fastest``: probability that it is fastest;
    ``regret``: expected time lost by running it instead of the fastest, as a share.
    """

    mean: np.ndarray
    ratio: np.ndarray
    ratio_sd: np.ndarray
    fastest: np.ndarray
    regret: np.ndarray


def contrasts(choice: Choice) -> tuple[Contrasts, Sizes]:
    """Return the contrasts of all asked candidates, from what was measured of the GPU and of others."""
    candidates, others = choice.asked, choice.others
    measured = candidates.at(np.isfinite(candidates.log_us))
    if np.unique(measured.site).size < LEAST_TUNING:
        # nothing of this GPU says how its own effects vary: as shared ones do
        sizes = starting_sizes(candidates.by_shape())
        return contrasts_at(others.beside(measured).by_shape(), candidates.by_shape(), sizes), sizes
    sizes = tuned(measured, others if others.site.size else None)
    return contrasts_at(others.beside(measured), candidates, sizes), sizes


def contrasts_at(evidence: Candidates, candidates: Candidates, sizes: Sizes) -> Contrasts:
    """Return the contrasts of the asked candidates, given measured ones and sizes of the effects."""
    contrasts_found = Contrasts(*(np.empty(candidates.site.size) for _ in Contrasts._fields))
    normal = np.random.default_rng(0).standard_normal(
        (DRAWS, int(np.bincount(candidates.site - candidates.site.min()).max()))
    )
    for block in posteriors(evidence, candidates, sizes):
        measured = candidates.log_us[block.rows]
        is_measured = np.isfinite(measured).all(axis=1)
        mean = np.where(is_measured[:, None], measured, block.mean)
        width = mean.shape[1]
        covariance = np.where(is_measured[:, None, None], REPEATED**2 * np.eye(width), block.covariance)
        for column, values in zip(contrasts_found, _of_block(mean, covariance, normal[:, :width]), strict=True):
            column[block.rows] = values
    return contrasts_found


def _of_block(mean: np.ndarray, covariance: np.ndarray, normal: np.ndarray) -> Contrasts:
    """Return the contrasts of (sites, q) candidates."""
    sites, width = mean.shape
    site_rows, pick = np.arange(sites), mean.argmin(axis=1)
    variances = np.einsum("sii->si", covariance)
    variance = variances + variances[site_rows, pick][:, None] - 2.0 * covariance[site_rows, pick, :]
    lower = np.linalg.cholesky(covariance + ROUNDING * np.eye(width))
    draws = mean[:, None, :] + np.einsum("sij,kj->ski", lower, normal)
    lead = np.minimum(draws - draws.min(axis=2, keepdims=True), MOST_LOG_REGRET)
    return Contrasts(
        mean,
        mean - mean[site_rows, pick][:, None],
        np.sqrt(np.maximum(variance, 0.0)),
        (lead <= 0.0).mean(axis=1),
        np.expm1(lead).mean(axis=1),
    )


def choice_candidates(choice: Choice, posterior: Contrasts, tolerance: float) -> pa.Table:
    """Return the rows of ``choice_candidates``; ``tolerance``: expected regret above which a shape is to be measured.

    Latencies stand on the model's level, moved by what was measured of the GPU; their interval is that of the model's
    errors on GPUs that it had not seen, or of its errors at the measured sites once there are enough.
    """
    log_level = np.log(choice.model_us) - choice.asked.model
    measured = np.isfinite(choice.asked.log_us)
    errors = choice.level_errors
    shift, half = 0.0, float(np.quantile(np.abs(errors), 0.9)) if errors.size else 1.0
    if np.unique(choice.asked.site[measured]).size >= LEAST_LEVELS:
        residual = choice.asked.log_us[measured] - posterior.mean[measured]
        shift = float(np.median(residual))
        half = max(float(np.quantile(np.abs(residual - shift), 0.9)), SIGMAS * REPEATED)
    latency = np.exp(log_level + posterior.mean + np.where(_whole_sites(choice.asked), 0.0, shift))
    half_of = np.where(_whole_sites(choice.asked), SIGMAS * REPEATED, np.hypot(half, SIGMAS * posterior.ratio_sd))
    rows = choice.rows
    count = rows.height
    columns = {
        "gpu": rows["gpu"],
        "family": pl.repeat(choice.family, count, eager=True),
        "dtype": rows["dtype"],
        "distribution": rows["distribution"],
        "shape": shape_texts(choice.family, rows),
        "engine": rows["engine"],
        "implementation": rows["implementation"],
        "latency_us": latency,
        "p05_us": latency * np.exp(-half_of),
        "p95_us": latency * np.exp(half_of),
        "log_ratio": posterior.ratio,
        "log_ratio_p05": posterior.ratio - SIGMAS * posterior.ratio_sd,
        "log_ratio_p95": posterior.ratio + SIGMAS * posterior.ratio_sd,
        "p_fastest": posterior.fastest,
        "expected_regret": posterior.regret,
        "measured_us": rows["latency_us"],
        "tolerance": np.full(count, tolerance),
        "tier": pl.repeat(_tier(choice), count, eager=True),
        "evidence": pl.repeat(_evidence(choice), count, eager=True),
    }
    schema = contracts()["choice_candidates"].schema
    return pl.DataFrame(columns).with_columns(pl.col("measured_us").cast(pl.Float64)).to_arrow().cast(schema)


def _whole_sites(candidates: Candidates) -> np.ndarray:
    """Return for each candidate whether all of its site were measured."""
    missing = np.bincount(candidates.site - candidates.site.min(), ~np.isfinite(candidates.log_us)) > 0
    return ~missing[candidates.site - candidates.site.min()]


def shape_texts(family: str, rows: pl.DataFrame) -> list[str]:
    """Return the sizes of each row's shape as a JSON object of whole numbers."""
    names = shape_columns(family)
    values = rows.select(names).rows()
    return [
        json.dumps(
            {name: int(value) for name, value in zip(names, row, strict=True) if value is not None and value == value}
        )
        for row in values
    ]


def _tier(choice: Choice) -> str:
    return "target-measured" if np.isfinite(choice.asked.log_us).any() else "cross-generation"


def _evidence(choice: Choice) -> str:
    shapes = np.unique(choice.asked.site[np.isfinite(choice.asked.log_us)]).size
    shapes_measured = f"{shapes:,} shapes measured on {choice.gpu}" if shapes else f"no measurement of {choice.gpu}"
    return f"{shapes_measured}; contrasts of other GPUs: {', '.join(choice.sources) or 'none'}"
