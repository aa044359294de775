"""The versions that CI tests: the lowest are those of pyproject.toml, the newest are not older than what runs here."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_both_ends_of_each_dependency_are_stated() -> None:
    lines = re.findall(r"^([\w-]+)>=([\w.]+),<=([\w.]+)$", (ROOT / ".ci" / "constraints.txt").read_text(), re.M)
    stated = {name: (lowest, newest) for name, lowest, newest in lines}
    project = re.findall(r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)', (ROOT / "pyproject.toml").read_text())
    needed = {name: lowest for name, lowest in project if not name.startswith("cupy")}
    assert {name: lowest for name, (lowest, _) in stated.items()} == needed
    for package in metadata.distributions():
        name = package.name.lower().replace("_", "-")
        if name in stated:
            low, here, high = ([*map(int, re.findall(r"\d+", text)[:3])] for text in
                               (stated[name][0], package.version, stated[name][1]))  # fmt: skip
            assert low <= here <= high, f"{name} {package.version}: not within the versions that CI tests"
