"""Constants of power fitted on made-up servers: what is found again, what is left out, what simpler rules say."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.kernels.energy import Work
from kernelsight.laboratory.energy.fit import Constants, Servers, baselines, family_of, fit, left_out, power_of

TRUE = Constants(
    {"hopper": 0.05, "blackwell": 0.2},
    {"memory_w": 0.7, "compute_w": 2.0, "expand_w": 0.3, "cap": 0.95, "cap_sharpness": 6.0},
)


def servers(rows: int = 80) -> Servers:
    """Servers of four models on two architectures whose power follows TRUE."""
    draw = np.random.default_rng(3)
    work = Work(draw.uniform(0.1, 0.8, rows), draw.uniform(0, 0.4, rows), draw.uniform(0, 0.2, rows), np.zeros(rows))
    kind = np.where(np.arange(rows) % 2, "hopper", "blackwell")
    limit = np.where(kind == "hopper", 700.0, 1000.0)
    idle = np.where(kind == "hopper", 64.0, np.nan)
    made = Servers(work, np.ones(rows), limit, idle, kind, np.array(["abcd"[i // 2 % 4] for i in range(rows)]))
    return made._replace(power=power_of(TRUE, made))


def test_constants_are_found_again():
    made = servers()
    found = fit(made)
    assert power_of(found, made) == pytest.approx(made.power, rel=1e-3)
    assert found.active == pytest.approx(TRUE.active, abs=5e-3)
    assert found.common["memory_w"] == pytest.approx(0.7, abs=0.02)


def test_a_constant_that_no_server_shows_stays_where_it_starts():
    made = servers()
    plain = made._replace(work=made.work._replace(expand=np.zeros(made.power.size)))
    plain = plain._replace(power=power_of(TRUE, plain))
    assert fit(plain).common["expand_w"] == pytest.approx(0.0, abs=1e-4)
    assert fit(made).common["expand_w"] == pytest.approx(0.3, abs=0.02)


def test_what_is_left_out_of_the_fit_does_not_move_its_own_prediction():
    made = servers()
    everyone = np.ones(made.power.size, bool)
    doubled = made._replace(power=np.where(made.model == "a", 2.0, 1.0) * made.power)
    plain, after = (left_out(each, made.model, everyone) for each in (made, doubled))
    own = made.model == "a"
    assert after[own] == pytest.approx(plain[own])
    assert (after[~own] > 1.01 * plain[~own]).any()


def test_rows_that_are_not_fitted_on_are_predicted_all_the_same():
    made = servers()
    fitted = made.model != "d"
    wild = made._replace(power=np.where(fitted, made.power, 5.0))
    assert left_out(wild, made.model, fitted) == pytest.approx(made.power, rel=0.01)


def test_an_architecture_without_constants_has_the_mean_of_the_others():
    made = servers(2)._replace(architecture=np.array(["cdna3", "cdna3"]))
    mean = TRUE._replace(active={"cdna3": 0.125})
    assert power_of(TRUE, made) == pytest.approx(power_of(mean, made))


def test_baselines_are_the_limit_a_share_and_a_line():
    made = servers()
    found = baselines(made, made.model, np.ones(made.power.size, bool))
    assert found["limit"] == pytest.approx(made.limit)
    assert len(set((found["constant_share"] / made.limit).round(9))) <= 4
    errors = {name: np.median(np.abs(each / made.power - 1)) for name, each in found.items()}
    assert errors["four_constants"] < errors["constant_share"] < errors["limit"]


def test_checkpoints_of_one_shape_are_one_model():
    names = ["Qwen/Qwen3-235B-A22B-Instruct-2507", "Qwen/Qwen3-235B-A22B-Thinking-2507", "Qwen/Qwen3-8B"]
    assert len(set(family_of([{"model": name} for name in names]))) == 2
