"""Chooses the fastest implementation at each shape of a little measured GPU, with probabilities and regrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from kernelsight.catalog.gpu_names import gpu_named, plain_gpus
from kernelsight.catalog.tables import contracts
from kernelsight.choices.candidates import Choice
from kernelsight.choices.contrasts import Candidates, Sizes, posteriors, starting_sizes, tuned
from kernelsight.choices.inputs import choice_of
from kernelsight.dataflow.blas import one_blas_thread
from kernelsight.dataflow.python_nodes import produces
from kernelsight.fitting.splits import shape_columns
from kernelsight.forward.call_files import read_calls
from kernelsight.scenario.flag import options_of

TOLERANCE = options_of("choice_questions")["tolerance"][0].default


def choice_of_question(row: Mapping[str, Any], gpus: pa.Table) -> Choice:
    """Return the choice of a row of ``choice_questions``; ``gpus``: the catalogue with the GPU's row."""
    gpu = gpu_named(row["gpu"], gpus["gpu"].to_pylist(), "Give a row for it with --gpus.")
    calls = read_calls(Path(row["calls"]), gpu, contracts()["kernel_calls"]) if row["calls"] else None
    return choice_of(
        [Path(name) for name in row["sweeps"]], row["family"], gpu, gpus, plain_gpus(row["sources"]) or None, calls
    )


@produces("choice_candidates")
def answer_questions(choice_questions: pa.Table, gpus: pa.Table) -> pa.Table:
    """Compare the implementations of a kernel family at each shape of a GPU, by what others and its own sweeps show."""
    tables = [contracts()["choice_candidates"].schema.empty_table()]
    with one_blas_thread():
        for row in choice_questions.to_pylist():
            choice = choice_of_question(row, gpus)
            tolerance = TOLERANCE if row["tolerance"] is None else row["tolerance"]
            tables.append(choice_candidates(choice, contrasts(choice)[0], tolerance))
    return pa.concat_tables(tables)


# least measured sites of the GPU to tune the sizes of effects, and to estimate the error of the model's level, by it
LEAST_TUNING, LEAST_LEVELS = 4, 10
# random draws for probabilities and expected regrets, the same for every site
DRAWS = 256
# half width of a 90 % interval in standard deviations
SIGMAS = 1.645
# variance added to keep a covariance positive definite
ROUNDING = 1e-6
# standard deviation of a repeated measurement, and the largest log ratio that counts in an expected regret
REPEATED, MOST_LOG_REGRET = 0.02, 3.0


class Contrasts(NamedTuple):
    """Posterior contrasts of candidates, arrays of shape (candidates,).

    ``mean``: log latency less the model's level of the site; ``ratio``: log latency less that of the site's pick, the
    fastest by the mean, with standard deviation ``ratio_sd``; ``fastest``: probability to be the fastest; ``regret``:
    expected time lost by running it instead of the fastest, as a share.
    """

    mean: np.ndarray
    ratio: np.ndarray
    ratio_sd: np.ndarray
    fastest: np.ndarray
    regret: np.ndarray


def contrasts(choice: Choice) -> tuple[Contrasts, Sizes]:
    """Return the contrasts of a choice's candidates, from measurements of the GPU and of others, and effect sizes."""
    candidates, others = choice.candidates, choice.others
    measured = candidates.at(np.isfinite(candidates.log_us))
    if np.unique(measured.site).size < LEAST_TUNING:
        # too few measurements of this GPU to know how its own effects vary: as the shared ones
        sizes = starting_sizes(candidates.by_shape())
        return contrasts_at(others.beside(measured).by_shape(), candidates.by_shape(), sizes), sizes
    sizes = tuned(measured, others if others.site.size else None)
    return contrasts_at(others.beside(measured), candidates, sizes), sizes


def contrasts_at(evidence: Candidates, candidates: Candidates, sizes: Sizes) -> Contrasts:
    """Return the contrasts of candidates, given measured ones, ``evidence``, and sizes of the effects."""
    posterior = Contrasts(*(np.empty(candidates.site.size) for _ in Contrasts._fields))
    normal = np.random.default_rng(0).standard_normal(
        (DRAWS, int(np.bincount(candidates.site - candidates.site.min()).max()))
    )
    for block in posteriors(evidence, candidates, sizes):
        measured = candidates.log_us[block.rows]
        is_measured = np.isfinite(measured).all(axis=1)
        mean = np.where(is_measured[:, None], measured, block.mean)
        width = mean.shape[1]
        covariance = np.where(is_measured[:, None, None], REPEATED**2 * np.eye(width), block.covariance)
        for column, values in zip(posterior, _of_block(mean, covariance, normal[:, :width]), strict=True):
            column[block.rows] = values
    return posterior


def _of_block(mean: np.ndarray, covariance: np.ndarray, normal: np.ndarray) -> Contrasts:
    """Return the contrasts of a block of (sites, q) candidates; ``normal``: (DRAWS, q) standard normal draws."""
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

    Latencies are relative to the model's level, shifted by the GPU's measurements; their interval comes from the
    model's errors on held-out generations, or with enough measured sites of the GPU, from its errors there.
    """
    candidates = choice.candidates
    log_level = np.log(choice.model_us) - candidates.model
    measured, is_complete = np.isfinite(candidates.log_us), _is_measured_site(candidates)
    errors = choice.level_errors
    shift, half = 0.0, float(np.quantile(np.abs(errors), 0.9)) if errors.size else 1.0
    if np.unique(candidates.site[measured]).size >= LEAST_LEVELS:
        residual = _level_errors(candidates, posterior.mean, is_complete)[measured]
        shift = float(np.median(residual))
        half = max(float(np.quantile(np.abs(residual - shift), 0.9)), SIGMAS * REPEATED)
    latency = np.exp(log_level + posterior.mean + np.where(is_complete, 0.0, shift))
    half_of_row = np.where(is_complete, SIGMAS * REPEATED, np.hypot(half, SIGMAS * posterior.ratio_sd))
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
        "p05_us": latency * np.exp(-half_of_row),
        "p95_us": latency * np.exp(half_of_row),
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


def _level_errors(candidates: Candidates, mean: np.ndarray, is_complete: np.ndarray) -> np.ndarray:
    """Return for each candidate log(measured / model) of its site's level; NaN: not measured.

    Contrasts of a site that was measured whole (``is_complete``) add to 0: its error is the mean of its candidates. In
    others it is what a candidate differs by from the ``mean`` that was expected of it.
    """
    site = candidates.site - candidates.site.min()
    error = np.bincount(site, np.where(is_complete, candidates.log_us, 0.0)) / np.maximum(np.bincount(site), 1)
    return np.where(is_complete, error[site], candidates.log_us - mean)


def _is_measured_site(candidates: Candidates) -> np.ndarray:
    """Return for each candidate whether all candidates of its site were measured."""
    missing = np.bincount(candidates.site - candidates.site.min(), ~np.isfinite(candidates.log_us)) > 0
    return ~missing[candidates.site - candidates.site.min()]


def shape_texts(family: str, rows: pl.DataFrame) -> list[str]:
    """Return each row's shape as a JSON object of whole numbers."""
    names = shape_columns(family)
    values = rows.select(names).rows()
    return [
        json.dumps(
            {name: int(value) for name, value in zip(names, row, strict=True) if value is not None and value == value}
        )
        for row in values
    ]


def _tier(choice: Choice) -> str:
    return "target-measured" if np.isfinite(choice.candidates.log_us).any() else "cross-generation"


def _evidence(choice: Choice) -> str:
    shapes = np.unique(choice.candidates.site[np.isfinite(choice.candidates.log_us)]).size
    shapes_measured = f"{shapes:,} shapes measured on {choice.gpu}" if shapes else f"no measurement of {choice.gpu}"
    return f"{shapes_measured}; contrasts of other GPUs: {', '.join(choice.sources) or 'none'}"
