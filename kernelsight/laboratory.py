"""The laboratory: what scores KernelSight itself, in ``benches/evaluation`` of a checkout. A wheel does not hold it.

This module is the package ``kernelsight.laboratory``, whose modules lie in that folder. Verbs and readers of the
laboratory are registered by name where they are requested; an installed package refuses them in one sentence.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelsight.dataflow.locations import checkout
from kernelsight.errors import InvalidInput
from kernelsight.files.own import own_json, own_text

# options that the laboratory adds to verbs, with their values in a package that lacks it
OPTIONS: dict[str, dict[str, Any]] = {
    "backtest": {"--constants": "shipped", "--leave-out": None, "--against": None, "--plot": None, "--sample": None},
    "calibrate evaluate": {
        "--points": None,
        "--random-points": None,
        "--test-versions": None,
        "--train": None,
        "--pack": None,
    },
}
_CHECKOUT = checkout()
__path__ = [str(_CHECKOUT / "benches" / "evaluation")] if _CHECKOUT else []


def is_here() -> bool:
    """Return whether this is a checkout, which holds the laboratory."""
    return bool(__path__)


def part(module: str, requested: str) -> ModuleType:
    """Return a module of the laboratory; InvalidInput: the package is installed without it.

    ``module``: dotted name below ``kernelsight.laboratory``; ``requested``: what the user asked for, for the sentence.
    """
    check(requested)
    return importlib.import_module(f"{__name__}.{module}")


def options(verb: str) -> list[dict[str, Any]]:
    """Return the options that the laboratory adds to a verb, as its ``cli/options.json`` declares them; else none."""
    if not is_here():
        return []
    return own_json(own_text(Path(__path__[0]) / "cli" / "options.json")).get(verb, [])


def check(requested: str) -> None:
    """Check that the laboratory is there; InvalidInput: it is not. ``requested``: what the user asked for."""
    if not is_here():
        raise InvalidInput(
            f"{requested} is part of the evaluation of KernelSight itself, which an installed package lacks; run it "
            "from a checkout of the repository (benches/evaluation)."
        )
