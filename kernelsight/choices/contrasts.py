"""Gaussian-process posterior of contrasts: log-latency differences between implementations at one shape.

log latency of a candidate = level of its site + w x likely contrast
+ effects of engine, kernel and lineage that GPUs share + an effect of this candidate on this GPU + noise,

where the likely contrast, relative to the site's mean, is that of a GPU of the same generation measured at this very
shape, or else the kernel model's. Each effect is a Gaussian process over the shape (Matern 5/2 and a constant;
Rasmussen and Williams 2006, section 4.2). The level of a site is free, so that only contrasts are learned. Sizes of the
effects (standard deviations) were chosen by holding out generations (benches/evaluation/lab/choices.md); measurements
of the target change them within their priors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from kernelsight.searching.gaussian_process import matern, squared_distances

# standard deviation of each effect in the log: constant and varying with the shape
SIZES = {
    "engine": 0.15,
    "engine_varies": 0.1,
    "kernel": 0.2,
    "kernel_varies": 0.2,
    "lineage": 0.1,
    "lineage_varies": 0.1,
    "own": 0.15,
    "own_varies": 0.15,
    "own_format_varies": 0.1,
    "likely": 0.3,
    "noise": 0.1,
}
# prior mean of w, the weight of the likely contrast
LIKELY_SHARE = 0.7
# factor on the effects where a GPU of the same generation measured the contrast: siblings differ by 5 %, not 20
LEFT_TO_SIBLINGS = 0.3
# inverse length scales, per standard deviation of a feature among the candidates: of shared effects, and of a GPU's own
SHARED_SCALE, OWN_SCALE = 0.33, 0.2
# standard deviation of a site's level, which is not estimated
LEVEL = 1.0
# prior standard deviation of the logarithm of a size, and of a scale
SIZE_PRIOR, SCALE_PRIOR = 0.7, 0.5
# most rows that the sizes are tuned by; rows whose posterior is computed at once
TUNING_ROWS, BLOCK_ROWS = 500, 2000
STEPS = (1.6, 1.25)
LEAST_GAIN = 0.02


class Candidates(NamedTuple):
    """Rows of candidates, those of a site adjacent; arrays of shape (rows,) where nothing else is said.

    ``shape``: (rows, A), inputs of shared effects, logarithms of sizes and of the time; ``features``: (rows, B), inputs
    of a GPU's own effects, with roundings to tiles and waves. ``engine`` to ``site``: labels as integers. ``model``:
    log of the kernel model's latency, less its mean over the site; ``log_us``: log of the measured latency, less the
    same mean (NaN: not measured). ``likely``: the contrast of a GPU of the same generation at this shape, or else the
    model's; ``free``: factor on all effects of a candidate, below 1 where a sibling was measured.
    """

    shape: np.ndarray
    features: np.ndarray
    engine: np.ndarray
    kernel: np.ndarray
    lineage: np.ndarray
    number_format: np.ndarray
    gpu: np.ndarray
    site: np.ndarray
    model: np.ndarray
    log_us: np.ndarray
    likely: np.ndarray
    free: np.ndarray

    def at(self, rows: np.ndarray | slice) -> Candidates:
        """Return the candidates at some rows."""
        return Candidates(*(column[rows] for column in self))

    def by_shape(self) -> Candidates:
        """Return these candidates with own effects over the same inputs, at the same scale, as shared ones."""
        return self._replace(features=self.shape * (SHARED_SCALE / OWN_SCALE))

    def beside(self, others: Candidates) -> Candidates:
        """Concatenate these candidates and others."""
        return Candidates(*(np.concatenate(pair) for pair in zip(self, others, strict=True)))


class Sizes(NamedTuple):
    """Sizes of the effects by name, and the inverse length scale of each column of ``shape`` and of ``features``."""

    effects: dict[str, float]
    shared_scales: np.ndarray
    own_scales: np.ndarray


class Posterior(NamedTuple):
    """Posterior of sites with q candidates each: row indices and mean (sites, q), covariance (sites, q, q)."""

    rows: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray


def starting_sizes(rows: Candidates) -> Sizes:
    """Return the prior sizes, before any measurement of the target."""
    return Sizes(dict(SIZES), np.full(rows.shape.shape[1], SHARED_SCALE), np.full(rows.features.shape[1], OWN_SCALE))


def covariance(left: Candidates, right: Candidates, sizes: Sizes) -> np.ndarray:
    """Return the prior covariance (left, right) of contrasts, without levels and noise."""
    return _covariance(_Pairs.of(left, right), sizes)


class _Pairs(NamedTuple):
    """Two sets of candidates, factored into distinct labels (engine, kernel, lineage, format, GPU) and distinct sites.

    ``same``: by effect, (left labels, right labels), 1 where they are equal; ``places``: ``shape`` and ``features`` of
    the sites; ``rows``: label and site of each row.
    """

    same: dict[str, np.ndarray]
    places: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    rows: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    likely: np.ndarray
    free: np.ndarray
    site: np.ndarray

    @classmethod
    def of(cls, left: Candidates, right: Candidates) -> _Pairs:
        (labels, places, rows), (other_labels, other_places, other_rows) = _numbered(left), _numbered(right)
        equal = labels[:, None, :] == other_labels[None, :, :]
        engine, kernel, lineage, number_format, gpu = np.moveaxis(equal, -1, 0)
        same_kernel = gpu & engine & kernel
        equal_labels = {
            "engine": engine,
            "kernel": kernel,
            "lineage": lineage,
            "own": same_kernel,
            "own_format": same_kernel & number_format,
        }
        return cls(
            {name: is_equal.astype(float) for name, is_equal in equal_labels.items()},
            (places, other_places),
            (rows, other_rows),
            left.likely[:, None] * right.likely,
            left.free[:, None] * right.free,
            left.site[:, None] == right.site,
        )


def _numbered(rows: Candidates) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the distinct labels, (shape, features) of the sites, and each row's index of label and of site."""
    columns = (rows.engine, rows.kernel, rows.lineage, rows.number_format, rows.gpu)
    labels, label = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    _, first_rows, site = np.unique(rows.site, return_index=True, return_inverse=True)
    return labels, (rows.shape[first_rows], rows.features[first_rows]), (label.ravel(), site.ravel())


def _covariance(pairs: _Pairs, sizes: Sizes) -> np.ndarray:
    effects = {name: size**2 for name, size in sizes.effects.items()}
    (label, site), (other_label, other_site) = pairs.rows
    shared = ("engine", "kernel", "lineage")
    constant = sum(effects[name] * pairs.same[name] for name in (*shared, "own"))
    varies = sum(effects[f"{name}_varies"] * pairs.same[name] for name in shared)
    of_kernels = effects["own_varies"] * pairs.same["own"] + effects["own_format_varies"] * pairs.same["own_format"]
    (shape, features), (other_shape, other_features) = pairs.places

    def rows_of(table: np.ndarray, row_labels: np.ndarray, column_labels: np.ndarray) -> np.ndarray:
        return table.take(row_labels, axis=0).take(column_labels, axis=1)

    total = rows_of(
        matern(squared_distances(shape * sizes.shared_scales, other_shape * sizes.shared_scales)), site, other_site
    )
    total *= rows_of(varies, label, other_label)
    own_correlation = matern(squared_distances(features * sizes.own_scales, other_features * sizes.own_scales))
    own = rows_of(own_correlation, site, other_site)
    own *= rows_of(of_kernels, label, other_label)
    total += own
    total += rows_of(constant, label, other_label)
    total *= pairs.free
    total += effects["likely"] * pairs.likely
    return total


def _with_noise(pairs: _Pairs, sizes: Sizes) -> np.ndarray:
    total = _covariance(pairs, sizes) + LEVEL**2 * pairs.site
    total[np.diag_indices_from(total)] += sizes.effects["noise"] ** 2
    return total


def tuned(rows: Candidates, others: Candidates | None = None) -> Sizes:
    """Return the sizes of maximum posterior (MAP) for measured rows, given measured ``others``.

    Coordinate search: each size in turn is raised or lowered while that helps, with two steps. Deterministic.
    """
    rows = thinned(rows, TUNING_ROWS)
    others = None if others is None else thinned(others, TUNING_ROWS)
    candidate_sets = [rows] if others is None else [others.beside(rows), others]
    pairs = [_Pairs.of(candidates, candidates) for candidates in candidate_sets]

    def loss(sizes: Sizes) -> float:
        log_likelihoods = [
            _log_likelihood(pair, candidates, sizes) for pair, candidates in zip(pairs, candidate_sets, strict=True)
        ]
        return -(log_likelihoods[0] - sum(log_likelihoods[1:])) + _penalty(sizes)

    sizes = starting_sizes(rows)
    best = loss(sizes)
    for step in STEPS:
        for name in (*SIZES, *range(sizes.shared_scales.size + sizes.own_scales.size)):
            for factor in (step, 1.0 / step):
                before = best
                while (tried := loss(moved := _moved(sizes, name, factor))) < best - LEAST_GAIN:
                    sizes, best = moved, tried
                if best < before:
                    break
    return sizes


def _moved(sizes: Sizes, name: str | int, factor: float) -> Sizes:
    if isinstance(name, str):
        return sizes._replace(effects={**sizes.effects, name: sizes.effects[name] * factor})
    scales = np.append(sizes.shared_scales, sizes.own_scales)
    scales[name] *= factor
    shared, own_scales = np.split(scales, [sizes.shared_scales.size])
    return sizes._replace(shared_scales=shared, own_scales=own_scales)


def _penalty(sizes: Sizes) -> float:
    effects = np.log([sizes.effects[name] / size for name, size in SIZES.items()]) / SIZE_PRIOR
    scales = np.log(np.append(sizes.shared_scales / SHARED_SCALE, sizes.own_scales / OWN_SCALE)) / SCALE_PRIOR
    return 0.5 * float((effects**2).sum() + (scales**2).sum())


def _log_likelihood(pairs: _Pairs, rows: Candidates, sizes: Sizes) -> float:
    try:
        lower = np.linalg.cholesky(_with_noise(pairs, sizes))
    except np.linalg.LinAlgError:
        return -np.inf
    white = solve_triangular(lower, rows.log_us - LIKELY_SHARE * rows.likely, lower=True, check_finite=False)
    return -0.5 * float(white @ white) - float(np.log(np.diag(lower)).sum())


def thinned(rows: Candidates, most: int) -> Candidates:
    """Subsample rows to evenly spaced sites: about ``most`` rows."""
    sites = np.unique(rows.site)
    kept_share = most / max(rows.site.size, 1)
    if kept_share >= 1.0:
        return rows
    chosen = sites[np.unique(np.linspace(0, sites.size - 1, max(2, int(kept_share * sites.size))).round().astype(int))]
    return rows.at(np.isin(rows.site, chosen))


def posteriors(measured: Candidates, candidates: Candidates, sizes: Sizes) -> Iterator[Posterior]:
    """Yield the posterior of candidates, which are ordered by site, given the measured ones.

    Means and covariances are of log latency less the level of the site: only differences within a site have a meaning.
    """
    lower = np.linalg.cholesky(_with_noise(_Pairs.of(measured, measured), sizes))
    inverse = np.linalg.inv(lower)
    weights = inverse.T @ (inverse @ (measured.log_us - LIKELY_SHARE * measured.likely))
    for block in site_blocks(candidates.site):
        rows = candidates.at(block.ravel())
        to_measured = covariance(rows, measured, sizes)
        mean = (to_measured @ weights + LIKELY_SHARE * rows.likely).reshape(block.shape)
        white = (to_measured @ inverse.T).reshape(*block.shape, -1)
        explained = white @ white.transpose(0, 2, 1)
        yield Posterior(block, mean, _own_covariance(rows, block.shape, sizes) - explained)


def _own_covariance(rows: Candidates, shape: tuple[int, ...], sizes: Sizes) -> np.ndarray:
    """Return the prior covariance (sites, q, q) of the candidates of each site, with their noise."""
    effects = {name: size**2 for name, size in sizes.effects.items()}

    def same(name: str) -> np.ndarray:
        values = getattr(rows, name).reshape(shape)
        return values[:, :, None] == values[:, None, :]

    engine, kernel = same("engine"), same("kernel")
    total = np.zeros((*shape, shape[1]))
    for name, is_equal in (
        ("engine", engine),
        ("kernel", kernel),
        ("lineage", same("lineage")),
        ("own", engine & kernel),
    ):
        total += is_equal * (effects[name] + effects[f"{name}_varies"])
    total += (engine & kernel) * effects["own_format_varies"]
    free, likely = rows.free.reshape(shape), rows.likely.reshape(shape)
    total *= free[:, :, None] * free[:, None, :]
    total += effects["likely"] * likely[:, :, None] * likely[:, None, :]
    return total + np.eye(shape[1]) * effects["noise"]


def site_blocks(site: np.ndarray) -> Iterator[np.ndarray]:
    """Yield row indices (sites, q) of sites with the same number of candidates; rows of a site are adjacent.

    >>> [block.tolist() for block in site_blocks(np.array([5, 5, 7, 7, 7, 9, 9]))]
    [[[0, 1], [5, 6]], [[2, 3, 4]]]
    """
    starts = np.flatnonzero(np.diff(site, prepend=site[0] - 1)) if site.size else np.empty(0, dtype=int)
    counts = np.diff(np.append(starts, site.size))
    for width in np.unique(counts):
        rows = starts[counts == width][:, None] + np.arange(width)
        step = max(1, BLOCK_ROWS // int(width))
        for start in range(0, len(rows), step):
            yield rows[start : start + step]
