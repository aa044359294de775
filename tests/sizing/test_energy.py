"""What energy adds to the cost of an instance, and carbon beside it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kernelsight.errors import InvalidInput
from kernelsight.session import connect
from kernelsight.sizing.decision import Demand
from kernelsight.sizing.deployment_rows import electricity_of, hourly_of


def option(power_w: float | None, price: float | None, **flags: float) -> SimpleNamespace:
    candidate = SimpleNamespace(price=price, flags=flags)
    return SimpleNamespace(evidence=SimpleNamespace(power_w=power_w), sized=SimpleNamespace(candidate=candidate))


@pytest.mark.parametrize(
    ("one", "electricity", "hourly"),
    [
        (option(2000.0, 8.0), 0.2, 8.2),
        (option(2000.0, 8.0, pue=1.5), 0.3, 8.3),
        (option(None, 8.0), None, 8.0),
        (option(2000.0, None), 0.2, None),
    ],
)
def test_energy_is_added_to_the_rent_where_both_are_known(one, electricity, hourly):
    asked = Demand(1.0, electricity_price=0.1)
    assert electricity_of(one, asked) == (None if electricity is None else pytest.approx(electricity))
    assert hourly_of(one, asked) == (None if hourly is None else pytest.approx(hourly))
    assert electricity_of(one, Demand(1.0)) is None and hourly_of(one, Demand(1.0)) == one.sized.candidate.price


def test_a_negative_price_of_electricity_is_refused():
    with (
        connect() as session,
        pytest.raises(InvalidInput, match=r"electricity_price is -0.1; give a finite number, 0 or more"),
    ):
        session.size(model="qwen3-0.6b", gpus="l4", slo="ttft_p95:1000", rate=1, electricity_price=-0.1)
