"""A pinned sample of each result, computed again: where it differs, the figures in the documentation have moved.

Samples that need what is not there (published data, the files in ``../shared``) are skipped.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

NEEDS_PUBLISHED = ("end_to_end", "kernels_gb200")


@pytest.fixture(scope="module")
def samples() -> ModuleType:
    import samples

    return samples


@pytest.mark.parametrize("name", ["end_to_end", "kernels_gb200", "search", "compare_plain", "speed_serving"])
def test_a_sample_gives_what_it_gave(samples: ModuleType, name: str) -> None:
    if name in NEEDS_PUBLISHED and not importlib.util.find_spec("aiconfigurator_core"):
        pytest.skip("needs the extra silicon")
    if name == "search" and not samples.SPACES.is_file():
        pytest.skip(f"needs {samples.SPACES.name} in ../shared/data")
    known = samples.read(name)["sample"]["now"]
    different = list(samples.differences(known, samples.SAMPLES[name]()))
    assert different == [], (
        f"figures of {name} have moved: measure it again (benches/README.md), or, if that has to wait, "
        f"`python benches/samples.py --write {name}`, which the pages then show beside the old figures"
    )


def test_every_sample_is_of_a_result(samples: ModuleType) -> None:
    assert set(samples.SAMPLES) <= set(samples.names())


def test_a_difference_is_seen(samples: ModuleType) -> None:
    known = {"a": 0.1, "b": 2.0}
    assert list(samples.differences(known, {"a": 0.1 * (1 + 1e-9), "b": 2.0})) == []
    assert list(samples.differences(known, {"a": 0.10001, "c": 1.0})) == [
        "a: 0.1 before, 0.10001 now", "b: 2.0 before, None now", "c: None before, 1.0 now"
    ]  # fmt: skip
