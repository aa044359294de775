"""KernelSight: latency of every GPU kernel of an LLM forward pass, and serving simulated from it, as tables.

>>> import kernelsight as ks
>>> with ks.connect() as session:
...     session.sql("select vendor from gpus where gpu = 'h100_sxm'").fetchall()
[('nvidia',)]
>>> ks.predict(model="qwen3-0.6b", gpu="l4", phase="decode", batch_size=8, context_len=1024).total_us > 0
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelsight.version import VERSION

__version__ = VERSION
__all__ = [
    "Comparison",
    "KernelSightError",
    "Prediction",
    "Run",
    "Session",
    "Sizing",
    "StepTime",
    "StepTimes",
    "Upgrade",
    "WhatIf",
    "__version__",
    "compare",
    "connect",
    "find_rates",
    "launch_command",
    "predict",
    "read_launch_line",
    "search",
    "simulate",
    "size",
    "step_time",
    "sweep",
    "upgrade",
    "what_if",
]

if TYPE_CHECKING:
    from kernelsight.comparison.comparison import Comparison
    from kernelsight.errors import KernelSightError
    from kernelsight.forward.forward_step import Prediction
    from kernelsight.public_functions import (
        compare,
        find_rates,
        predict,
        search,
        simulate,
        size,
        step_time,
        sweep,
        upgrade,
        what_if,
    )
    from kernelsight.scenario.launch.commands import launch_command
    from kernelsight.scenario.launch.deployments import read_launch_line
    from kernelsight.serving.runs.step_times import StepTime, StepTimes
    from kernelsight.session import Session, connect
    from kernelsight.sizing.answer import Sizing
    from kernelsight.sweeps.runs import Run, WhatIf
    from kernelsight.upgrades.answer import Upgrade

# names are imported on first use: `kernelsight --help` must not import DuckDB and Arrow
_HOMES = {
    "connect": "session",
    "Session": "session",
    "Comparison": "comparison.comparison",
    "Prediction": "forward.forward_step",
    "Run": "sweeps.runs",
    "Sizing": "sizing.answer",
    "StepTime": "serving.runs.step_times",
    "StepTimes": "serving.runs.step_times",
    "Upgrade": "upgrades.answer",
    "WhatIf": "sweeps.runs",
    "KernelSightError": "errors",
    "launch_command": "scenario.launch.commands",
    "read_launch_line": "scenario.launch.deployments",
    **dict.fromkeys(
        ("compare", "find_rates", "predict", "search", "simulate", "size", "step_time", "sweep", "upgrade", "what_if"),
        "public_functions",
    ),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"kernelsight.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kernelsight' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
