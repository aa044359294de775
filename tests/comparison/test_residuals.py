"""What an explanation leaves: chance is told from causes, also where requests err together."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.comparison.residuals import GroupResiduals, explains, group_residuals, misfit

REQUESTS, GROUPS, SD = 2160, 27, 0.03


def of_chance(seed: int, together: int = 1, shift: float = 0.0):
    """Return what is left of residuals of which so many in a row are equal."""
    dice = np.random.default_rng(seed)
    residuals = np.repeat(SD * dice.standard_normal((2, REQUESTS // together)), together, axis=1) + shift
    return group_residuals(residuals, np.arange(REQUESTS) % GROUPS)


@pytest.mark.parametrize("together", [1, 4])
def test_chance_is_about_one_standard_error_a_group(together: int) -> None:
    found = np.mean([misfit(left, left) / left.groups for left in (of_chance(seed, together) for seed in range(40))])
    assert 0.2 < found < 1.2
    assert of_chance(0, together).spread == pytest.approx(SD * np.sqrt(together), rel=0.25)


def test_chance_on_both_sides_favours_neither() -> None:
    """Shares of what was measured are negative on average where both times scatter alike; what is left is not."""
    dice = np.random.default_rng(5)
    measured, predicted = np.exp(0.2 * dice.standard_normal((2, 1, 50_000)))
    shares = (measured - predicted) / measured
    left = group_residuals(shares, np.zeros(shares.shape[1], int))
    assert shares.mean() < -0.03 and abs(left.mean[0, 0]) < 0.005


def test_a_cause_takes_away_more_than_chance() -> None:
    least = of_chance(1)
    assert not explains(least, of_chance(1, shift=0.001))
    assert explains(least, of_chance(1, shift=0.01))


def test_what_the_model_is_off_by_everywhere_is_no_cause() -> None:
    """Where 5 % is left in every group, one more per cent is no explanation, however sure it is."""
    assert not explains(of_chance(2, shift=0.05), of_chance(2, shift=0.055))


def test_what_the_model_may_be_off_by_is_chance_however_long_the_log_is() -> None:
    """Of a million requests a mean is known to 0.02 %: 0.1 % is within what the model may be off by, 1 % is not."""
    nothing = GroupResiduals(np.zeros((2, GROUPS)), np.full((2, GROUPS), 4e4), np.full(2, SD))
    within, beyond = (nothing._replace(mean=np.full((2, GROUPS), off)) for off in (0.001, 0.01))
    assert within.is_chance and not explains(nothing, within)
    assert not beyond.is_chance and explains(nothing, beyond)
