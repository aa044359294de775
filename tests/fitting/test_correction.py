"""A correction learns what an expression leaves, at unseen sites too, and stays within its bounds elsewhere."""

import numpy as np
import pytest

from kernelsight.fitting import correction as module
from kernelsight.fitting.correction import correction_rows, fit_correction
from kernelsight.fitting.pack_rows import correction_arrays
from kernelsight.kernels.network import MOST, correction, network_of, outside

# share of a fit's steps: enough for what holds of a rough one too
FEW_STEPS = 0.1
KERNELS = ("sglang|cublas|bf16", "trtllm|cublas|bf16")


def _sweep(rows: int = 1200, seed: int = 0) -> dict[str, np.ndarray]:
    """Two kernels whose true correction depends on two sizes; the second is 0.2 slower throughout."""
    random = np.random.default_rng(seed)
    sites = random.integers(0, 40, rows)
    features = np.stack([sites / 4.0, random.uniform(0.0, 10.0, rows)], axis=1)
    kernel = random.integers(0, 2, rows)
    truth = 0.25 * np.sin(features[:, 0] / 3.0) + 0.03 * features[:, 1] - 0.2 + 0.2 * kernel
    return {
        "features": features,
        "log_ratio": truth + random.normal(0.0, 0.01, rows),
        "truth": truth,
        "kernels": np.array(KERNELS)[kernel],
        "gpus": np.where(random.random(rows) < 0.9, "mine", "other"),
        "sites": sites,
    }


def _fit(
    sweep: dict[str, np.ndarray], log_ratio: np.ndarray | None = None, effort: float = module.MOST_STEPS
) -> module.Fit:
    given = {name: sweep[name] for name in ("features", "log_ratio", "kernels", "gpus", "sites")}
    return fit_correction(
        **{**given, "log_ratio": given["log_ratio"] if log_ratio is None else log_ratio},
        target="mine",
        matter=np.ones(2),
        effort=effort,
        student=module.Student((16, 12)),
    )


@pytest.fixture(scope="module", autouse=True)
def _small():
    """Small networks and small steps, which two sizes and two kernels need no more of."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"WIDTHS": (16, 16), "BATCH": 256}.items():
            patch.setattr(module, name, value)
        yield


@pytest.fixture(scope="module")
def fitted() -> tuple[dict[str, np.ndarray], module.Fit]:
    sweep = _sweep()
    return sweep, _fit(sweep)


def _delta(fit: module.Fit, features: np.ndarray, kernels: np.ndarray) -> np.ndarray:
    place = {kernel: number for number, kernel in enumerate(fit.nodes)}
    return correction(np, features, np.array([place.get(kernel, -1) for kernel in kernels]), fit.network)


def test_a_correction_explains_what_it_was_fitted_to(fitted):
    sweep, fit = fitted
    error = _delta(fit, sweep["features"], sweep["kernels"]) - sweep["truth"]
    assert np.median(np.abs(error)) < 0.01


def test_it_holds_between_measured_sites(fitted):
    _, fit = fitted
    other = _sweep(seed=1)
    between = other["features"] + np.array([0.125, 0.0])
    truth = other["truth"] + 0.25 * (np.sin(between[:, 0] / 3.0) - np.sin(other["features"][:, 0] / 3.0))
    assert np.median(np.abs(_delta(fit, between, other["kernels"]) - truth)) < 0.02


def test_errors_are_those_of_sites_that_were_left_out(fitted):
    sweep, fit = fitted
    own = sweep["gpus"] == "mine"
    assert fit.unseen_error.shape == (own.sum(),)
    seen = np.abs(_delta(fit, sweep["features"][own], sweep["kernels"][own]) - sweep["log_ratio"][own])
    assert np.quantile(np.abs(fit.unseen_error), 0.9) >= 0.9 * np.quantile(seen, 0.9)


def test_a_kernel_that_no_sweep_ran_is_left_alone(fitted):
    sweep, fit = fitted
    assert not _delta(fit, sweep["features"], np.array(["vllm|triton|fp8"] * len(sweep["features"]))).any()


def test_it_is_bounded_and_fades_far_from_the_sweep(fitted):
    _, fit = fitted
    far = np.array([[5.0, 9.0], [5.0, 12.0], [5.0, 40.0], [-500.0, 1e6]])
    delta = _delta(fit, far, np.array([KERNELS[1]] * 4))
    assert np.isfinite(delta).all()
    assert (np.abs(delta) <= MOST).all()
    assert np.abs(delta[2]) < 0.01 * np.abs(delta[0])
    assert np.abs(delta[3]) < 1e-6
    assert outside(np, far, fit.network)[:3] == pytest.approx([0.0, 2.0, 30.0], abs=0.1)


def test_what_does_not_hold_at_other_sites_is_halved():
    sweep = _sweep()
    noise = np.random.default_rng(2).normal(0.0, 0.2, sweep["sites"].max() + 1)[sweep["sites"]]
    fit = _fit({**sweep, "features": np.random.default_rng(3).normal(size=sweep["features"].shape)}, noise, FEW_STEPS)
    assert (fit.network.strength == 0.5).all()


def test_equal_sweeps_give_equal_corrections():
    one, again = (_fit(_sweep(), effort=FEW_STEPS) for _ in range(2))
    for name, values in one.network._asdict().items():
        assert np.array_equal(values, getattr(again.network, name)), name


def test_rows_of_a_pack_hold_the_network(fitted):
    sweep, fit = fitted
    network, nodes = network_of(correction_arrays(correction_rows("gemm", "h100_sxm", fit, "a test")[::-1]))
    assert nodes == fit.nodes and network.second.shape == (16, 12)
    assert {name: np.shape(v) for name, v in network._asdict().items()} == {
        name: np.shape(v) for name, v in fit.network._asdict().items()
    }
    kept = _delta(fit._replace(network=network), sweep["features"], sweep["kernels"])
    assert kept == pytest.approx(_delta(fit, sweep["features"], sweep["kernels"]), abs=0.01)


def test_few_sites_are_all_learnt_from():
    sweep = _sweep()
    fit = _fit({**sweep, "sites": sweep["sites"] % 4}, effort=FEW_STEPS)
    assert (fit.network.strength == 1.0).all()


@pytest.mark.parametrize(("rows", "sites"), [(60, 5), (60, 1), (6, 6)])
def test_errors_of_few_sites_are_of_rows_that_were_held_out(rows: int, sites: int) -> None:
    """A network can learn sixty numbers by heart: what it says of them is no error of an unseen call."""
    random = np.random.default_rng(3)
    sweep = _sweep(rows)
    sweep |= {"sites": np.arange(rows) % sites, "gpus": np.full(rows, "mine")}
    noise = random.normal(0.0, 0.05, rows)
    error = _fit(sweep, noise).unseen_error
    assert 0.02 < np.median(np.abs(error)) < 0.1


def test_few_layers_are_held_out_whole_where_few_sites_are_by_row() -> None:
    sites = np.repeat([7, 3, 5], 20)
    by_layer, by_row = module._folds(sites, 4, 2), module._folds(sites, 4, 8)
    assert [len(set(by_layer[sites == site])) for site in (7, 3, 5)] == [1, 1, 1]
    assert len(set(by_layer)) == 3
    assert [len(set(by_row[sites == site])) for site in (7, 3, 5)] == [4, 4, 4]
    assert set(module._folds(sites[:7], 4, 2)) == {-1}  # one layer, too few rows
