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
    "what_if",
]

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from kernelsight.comparison.comparison import Comparison
    from kernelsight.errors import KernelSightError
    from kernelsight.forward.forward_step import Prediction
    from kernelsight.scenario.launch.commands import launch_command
    from kernelsight.scenario.launch.lines import read_launch_line
    from kernelsight.serving.runs.step_times import StepTime, StepTimes
    from kernelsight.session import Session, connect
    from kernelsight.sizing.answer import Sizing
    from kernelsight.sweeps.runs import Run, WhatIf

# `kernelsight --help` must not pay for DuckDB and Arrow: what a name stands for is imported when it is used
_HOMES = {
    "connect": "session",
    "Session": "session",
    "Comparison": "comparison.comparison",
    "Prediction": "forward.forward_step",
    "Run": "sweeps.runs",
    "Sizing": "sizing.answer",
    "StepTime": "serving.runs.step_times",
    "StepTimes": "serving.runs.step_times",
    "WhatIf": "sweeps.runs",
    "KernelSightError": "errors",
    "launch_command": "scenario.launch.commands",
    "read_launch_line": "scenario.launch.lines",
}


def predict(**flags: Any) -> Prediction:
    """Predict one forward step in a session of its own; see ``Session.predict``."""
    from kernelsight.session import connect

    with connect() as session:
        return session.predict(**flags)


def step_time(deployment: Mapping[str, Any] | StepTimes, batch: Any) -> StepTime:
    """Return the time of an engine's step from what it holds: latency_us, p05_us, p95_us; see ``StepTimes``.

    ``deployment``: its flags, or what ``Session.step_times`` returned. ``batch``: (new tokens, past tokens) of each
    sequence, or two arrays of these and offsets for many batches. The first call for a deployment prepares its step
    costs; later ones look them up.

    >>> step_time({"model": "qwen3-0.6b", "gpu": "l4"}, [(1, 1024)] * 8).latency_us > 0
    True
    """
    from kernelsight.serving.runs.step_times import step_times_of
    from kernelsight.session import connect

    return step_times_of(deployment, connect)(batch)


def simulate(**flags: Any) -> Run:
    """Simulate one scenario in a session of its own; see ``Session.simulate``."""
    from kernelsight.session import connect

    return connect().simulate(**flags)


def what_if(grid: Any) -> WhatIf:
    """Simulate every scenario of a grid in a session of its own; see ``Session.what_if``."""
    from kernelsight.session import connect

    return connect().what_if(grid)


def sweep(grid: Any, **options: Any) -> WhatIf:
    """Simulate every scenario of a grid in partitions, in a session of its own; see ``Session.sweep``."""
    from kernelsight.session import connect

    return connect().sweep(grid, **options)


def find_rates(grid: Any, slo: Mapping[str, float], **options: Any) -> pa.Table:
    """Return the highest request rates that keep ``slo``, in a session of its own; see ``Session.find_rates``."""
    from kernelsight.session import connect

    with connect() as session:
        return session.find_rates(grid, slo, **options)


def size(**asked: Any) -> Sizing:
    """Find the cheapest deployment for a rate within objectives, in a session of its own; see ``Session.size``."""
    from kernelsight.session import connect

    with connect() as session:
        return session.size(**asked)


def compare(**asked: Any) -> Comparison:
    """Compare a production log with its replay, in a session of its own; see ``Session.compare``."""
    from kernelsight.session import connect

    return connect().compare(**asked)


def search(scenarios: Any, *, space: Any = ()) -> pa.Table:
    """Search kernels by replaying measured spaces, in a session of its own; see ``Session.search``."""
    from kernelsight.session import connect

    with connect() as session:
        return session.search(scenarios, space=space)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"kernelsight.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kernelsight' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
