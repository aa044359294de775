"""A pinned sample of each result, computed again: where it differs, the figures in the documentation have moved.

Samples that need what is not there (published data, the files in ``../shared``) are skipped. README's command computes
the cheapest of each kind, ``.ci/run`` (``KERNELSIGHT_WORLDS=100``) all.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.conftest import WORLDS_PERCENT

NEEDS_PUBLISHED = (
    "end_to_end",
    "end_to_end_across",
    "kernels_gb200",
    "kernels_splits",
    "kernels_generations",
    "kernels_sites",
    "points",
)
NEEDS_SHARED = (
    *("campaigns", "decisions", "energy", "kernels_layers", "kernels_new", "peers", "search", "search_tuner"),
)
ALWAYS = ("search", "speed_serving", "energy", "rates")
# looked at in the final check alone, measured by hand, by clocks, or over sockets alone; figures of the paper, each of
# which one command measures anew
PAPER = {f"paper_{figure}" for figure in ("3", "7", "8", "9", "10", "11", "12", "tables")}
WITHOUT = {
    "kernels_final",
    "kernels_modules",
    "kernels_versions",
    "public_runs",
    "peer_audit",
    "speed_growth",
    "speed_peers",
    "server_aiperf",
    "server_many",
    "sizes_round_trip",
} | PAPER


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        import samples

        metafunc.parametrize("name", [name for name in samples.SAMPLES if name in samples.names()])


@pytest.fixture(scope="module")
def samples() -> ModuleType:
    import samples

    return samples


def test_a_sample_gives_what_it_gave(samples: ModuleType, name: str) -> None:
    if name in NEEDS_PUBLISHED and not importlib.util.find_spec("aiconfigurator_core"):
        pytest.skip("needs the extra silicon")
    if name in NEEDS_SHARED and not samples.kernels.DATA.is_dir():
        pytest.skip("needs ../shared/data")
    if name not in ALWAYS and WORLDS_PERCENT < 100:
        pytest.skip(".ci/run computes it (KERNELSIGHT_WORLDS=100)")
    known = samples.read(name)["sample"]["now"] or {}
    different = list(samples.differences(known, samples.SAMPLES[name](), name))
    assert different == [], (
        f"figures of {name} have moved: measure it again (benches/README.md), or, if that has to wait, "
        f"`python benches/samples.py --write {name}`, which the pages then show beside the old figures"
    )


def test_every_result_has_a_sample(samples: ModuleType) -> None:
    assert set(samples.names()) - set(samples.SAMPLES) == WITHOUT


@pytest.mark.parametrize("scored", ["campaigns", "end_to_end", "peers"])
def test_no_error_of_the_scoreboard_has_grown_by_two_points(samples: ModuleType, scored: str) -> None:
    sample = samples.read(scored)["sample"]
    was, now = sample["of_run"], sample["now"] or sample["of_run"]
    assert {figure: (was[figure], now[figure]) for figure in was if now[figure] > was[figure] + 0.02} == {}


def test_a_difference_is_seen(samples: ModuleType) -> None:
    known = {"a": 0.1, "b": 2.0}
    assert list(samples.differences(known, {"a": 0.1 * (1 + 1e-9), "b": 2.0})) == []
    assert list(samples.differences(known, {"a": 0.102, "b": 2.0}, "kernels_layers")) == []
    assert list(samples.differences(known, {"a": 0.104, "b": 2.0}, "kernels_layers")) == ["a: 0.1 before, 0.104 now"]
    assert list(samples.differences(known, {"a": 0.10001, "c": 1.0})) == [
        "a: 0.1 before, 0.10001 now", "b: 2.0 before, None now", "c: None before, 1.0 now"
    ]  # fmt: skip
