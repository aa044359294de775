"""Contrasts of kernels as Gaussian processes: by the formulas of the textbook, written out, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from kernelsight.choices.choices import DRAWS, REPEATED, _of_block, contrasts_at
from kernelsight.choices.contrasts import (
    LIKELY_SHARE,
    SHARED_SCALE,
    SIZE_PRIOR,
    SIZES,
    Candidates,
    _log_likelihood,
    _moved,
    _own_covariance,
    _Pairs,
    _penalty,
    covariance,
    posteriors,
    starting_sizes,
    tuned,
)


def candidates(gpu: int, sites: int, seed: int = 0) -> Candidates:
    """Return three candidates at each site of a GPU: two engines with a kernel in common, and one with another."""
    random, rows = np.random.default_rng(seed), 3 * sites
    place = np.repeat(random.normal(size=(sites, 2)), 3, axis=0)
    names = {"engine": [0, 1, 1], "kernel": [0, 0, 1], "lineage": [0, 0, 0]}
    labels = {name: np.tile(codes, sites) for name, codes in names.items()}
    number_format = np.repeat(np.arange(sites) % 2, 3)
    return Candidates(
        shape=place,
        features=np.hstack([place, place[:, :1] ** 2]),
        **labels,
        number_format=number_format,
        gpu=np.full(rows, gpu),
        site=np.repeat(np.arange(sites), 3) + 100 * gpu,
        model=random.normal(0.0, 0.3, rows),
        log_us=random.normal(0.0, 0.3, rows),
        likely=random.normal(0.0, 0.3, rows),
        free=np.tile([1.0, 0.3, 1.0], sites),
    )


def noisy(rows: Candidates) -> np.ndarray:
    """Return the covariance of measured rows: that of contrasts, of the free levels of their sites, and of noise."""
    levels = 1.0 * (rows.site[:, None] == rows.site)
    return covariance(rows, rows, starting_sizes(rows)) + levels + SIZES["noise"] ** 2 * np.eye(rows.site.size)


def test_effects_are_shared_by_what_candidates_have_in_common() -> None:
    """At one place all processes correlate fully: the sum of the variances of the effects in common, and the likely."""
    rows = candidates(0, 1)._replace(likely=np.array([0.2, 0.5, -0.7]))
    found = covariance(rows, rows._replace(gpu=rows.gpu + 1), starting_sizes(rows))
    both = {name: SIZES[name] ** 2 + SIZES[f"{name}_varies"] ** 2 for name in ("engine", "kernel", "lineage", "own")}
    likely = SIZES["likely"] ** 2 * np.outer(rows.likely, rows.likely)
    effects = (found - likely) / np.outer(rows.free, rows.free)
    assert effects[0, 0] == pytest.approx(both["engine"] + both["kernel"] + both["lineage"]), "not those of a GPU's own"
    assert effects[0, 1] == pytest.approx(both["kernel"] + both["lineage"])
    assert effects[1, 2] == pytest.approx(both["engine"] + both["lineage"])
    assert effects[0, 2] == pytest.approx(both["lineage"])
    own = (covariance(rows, rows, starting_sizes(rows)) - likely) / np.outer(rows.free, rows.free)
    of_formats = SIZES["own_format_varies"] ** 2
    assert own[0, 0] == pytest.approx(sum(both.values()) + of_formats)
    other = covariance(rows, rows._replace(number_format=rows.number_format + 1), starting_sizes(rows))
    assert ((other - likely) / np.outer(rows.free, rows.free))[0, 0] == pytest.approx(sum(both.values()))


def test_candidates_of_a_site_vary_as_all_rows_do() -> None:
    rows = candidates(0, 4)
    whole = covariance(rows, rows, starting_sizes(rows)) + SIZES["noise"] ** 2 * np.eye(12)
    blocks = [whole[site : site + 3, site : site + 3] for site in range(0, 12, 3)]
    assert _own_covariance(rows, (4, 3), starting_sizes(rows)) == pytest.approx(np.array(blocks))


def test_a_posterior_is_that_of_the_textbook() -> None:
    """Rasmussen and Williams 2006, equations 2.23 and 2.24, with a mean of w x likely."""
    measured, rows = candidates(1, 5, seed=1), candidates(0, 3)
    (found,) = posteriors(measured, rows, starting_sizes(rows))
    across = covariance(rows, measured, starting_sizes(rows))
    solved = across @ np.linalg.inv(noisy(measured))
    mean = LIKELY_SHARE * rows.likely + solved @ (measured.log_us - LIKELY_SHARE * measured.likely)
    whole = covariance(rows, rows, starting_sizes(rows)) + SIZES["noise"] ** 2 * np.eye(9) - solved @ across.T
    assert found.mean.ravel() == pytest.approx(mean)
    assert found.covariance[1] == pytest.approx(whole[3:6, 3:6])


def test_a_site_counts_as_measured_where_all_its_candidates_are() -> None:
    evidence, rows = candidates(1, 5, seed=1), candidates(0, 3)
    sizes = starting_sizes(rows)
    (guessed,) = posteriors(evidence, rows, sizes)
    rows.log_us[[0, 1, 6, 7, 8]] = np.nan  # one, all and none of a site are known
    found = contrasts_at(evidence, rows, sizes)
    known = [3, 4, 5]
    assert found.mean[known].tolist() == rows.log_us[known].tolist()
    others = np.delete(np.arange(9), known)
    assert found.mean[others] == pytest.approx(guessed.mean.ravel()[others])
    pick = rows.log_us[known].argmin()
    assert np.delete(found.ratio_sd[known], pick) == pytest.approx([math.sqrt(2.0) * REPEATED] * 2)
    assert np.delete(found.ratio[known], pick) == pytest.approx(
        np.delete(rows.log_us[known], pick) - rows.log_us[known].min()
    )


def test_a_likelihood_is_that_of_a_normal_distribution() -> None:
    rows = candidates(0, 3)
    density = multivariate_normal(LIKELY_SHARE * rows.likely, noisy(rows)).logpdf(rows.log_us)
    found = _log_likelihood(_Pairs.of(rows, rows), rows, starting_sizes(rows))
    assert found == pytest.approx(density + 9 / 2 * math.log(2.0 * math.pi))


def test_sizes_are_held_to_those_they_start_from() -> None:
    sizes = starting_sizes(candidates(0, 2))
    assert _penalty(sizes) == 0.0
    assert _penalty(_moved(sizes, "noise", math.exp(SIZE_PRIOR))) == pytest.approx(0.5)
    # scales are numbered: two of shapes, then three of features
    moved = _moved(sizes, 2, 1.6)
    assert moved.shared_scales.tolist() == [SHARED_SCALE] * 2 and moved.own_scales[0] == 1.6 * sizes.own_scales[0]


def test_others_that_share_nothing_say_nothing_about_sizes() -> None:
    """Their likelihood is divided out: what is left is that of the rows given them, here of the rows alone."""
    rows, others = candidates(0, 4, seed=2), candidates(1, 4, seed=3)
    others = others._replace(
        **{name: getattr(others, name) + 2 for name in ("engine", "kernel", "lineage")},
        likely=np.zeros(12),
        log_us=5.0 * others.log_us,
    )
    alone, beside = tuned(rows), tuned(rows, others)
    assert alone.effects != SIZES
    assert beside.effects == alone.effects
    assert beside.shared_scales.tolist() == alone.shared_scales.tolist()
    assert beside.own_scales.tolist() == alone.own_scales.tolist()


def test_own_effects_over_shapes_have_the_scale_of_shared_ones() -> None:
    rows = candidates(0, 2).by_shape()
    sizes = starting_sizes(rows)
    assert rows.features * sizes.own_scales == pytest.approx(rows.shape * sizes.shared_scales)


def test_ratios_chances_and_regrets_of_two_candidates() -> None:
    """A difference of two normal values is normal, and the mean of exp of its part above 0 is known."""
    mean, pair = np.array([[0.1, 0.0]]), np.array([[[0.05, 0.03], [0.03, 0.04]]])
    normal = norm.ppf((np.random.default_rng(0).permuted(np.tile(np.arange(DRAWS), (2, 1)), axis=1).T + 0.5) / DRAWS)
    found = _of_block(mean, pair, normal)
    sd = math.sqrt(0.05 + 0.04 - 2.0 * 0.03)
    assert found.ratio.tolist() == [[0.1, 0.0]] and found.ratio_sd[0] == pytest.approx([sd, 0.0])
    assert found.fastest[0] == pytest.approx([norm.cdf(-0.1 / sd), norm.cdf(0.1 / sd)], abs=0.03)
    regrets = [
        math.exp(shift + sd**2 / 2.0) * norm.cdf(shift / sd + sd) - norm.cdf(shift / sd) for shift in (0.1, -0.1)
    ]
    assert found.regret[0] == pytest.approx(regrets, abs=0.02)
