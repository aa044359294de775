"""Functions of the package, such as ``kernelsight.simulate``: each opens a session and calls its method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from kernelsight.session import Session, connect

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.comparison.comparison import Comparison
    from kernelsight.forward.forward_step import Prediction
    from kernelsight.serving.runs.step_times import StepTime, StepTimes
    from kernelsight.sizing.answer import Sizing
    from kernelsight.sweeps.runs import Run, WhatIf
    from kernelsight.upgrades.answer import Upgrade

Function = TypeVar("Function", bound=Callable[..., Any])


def _as(method: Callable[..., Any]) -> Callable[[Function], Function]:
    """Return a decorator that gives a function the signature and docstring of a method of ``Session``.

    The method's examples run as doctests here; at the method, which a decorator wraps, doctest does not find them.
    """

    def decorated(function: Function) -> Function:
        plain = inspect.signature(method)
        parameters = [parameter for parameter in plain.parameters.values() if parameter.name != "self"]
        function.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]
        function.__doc__ = f"{function.__doc__}\n\n{inspect.getdoc(method)}"
        return function

    return decorated


@_as(Session.predict)
def predict(**flags: Any) -> Prediction:
    """Predict one forward step in a session of its own."""
    with connect() as session:
        return session.predict(**flags)


def step_time(deployment: Mapping[str, Any] | StepTimes, batch: Any) -> StepTime:
    """Return the time of an engine's step for a batch: latency_us, p05_us, p95_us, energy_j; see ``StepTimes``.

    ``deployment``: its flags, or the result of ``Session.step_times``. ``batch``: (new tokens, past tokens) of each
    sequence, or two arrays of these and offsets for many batches. The first call for a deployment prepares its step
    costs; later ones look them up.

    >>> step_time({"model": "qwen3-0.6b", "gpu": "l4"}, [(1, 1024)] * 8).latency_us > 0
    True
    """
    from kernelsight.serving.runs.step_times import step_times_of

    return step_times_of(deployment, connect)(batch)


@_as(Session.simulate)
def simulate(**flags: Any) -> Run:
    """Simulate one scenario in a session of its own."""
    return connect().simulate(**flags)


@_as(Session.what_if)
def what_if(grid: Any) -> WhatIf:
    """Simulate every scenario of a grid in a session of its own."""
    return connect().what_if(grid)


@_as(Session.sweep)
def sweep(grid: Any, **options: Any) -> WhatIf:
    """Simulate every scenario of a grid in partitions, in a session of its own."""
    return connect().sweep(grid, **options)


@_as(Session.find_rates)
def find_rates(grid: Any, slo: Mapping[str, float], **options: Any) -> pa.Table:
    """Return the highest request rates that keep ``slo``, in a session of its own."""
    with connect() as session:
        return session.find_rates(grid, slo, **options)


@_as(Session.size)
def size(**arguments: Any) -> Sizing:
    """Find the cheapest deployment for a rate within objectives, in a session of its own."""
    return connect().size(**arguments)


@_as(Session.upgrade)
def upgrade(**arguments: Any) -> Upgrade:
    """Compare two versions of an engine for a deployment and its load, in a session of its own."""
    return connect().upgrade(**arguments)


@_as(Session.compare)
def compare(**arguments: Any) -> Comparison:
    """Compare a production log with its replay, in a session of its own."""
    return connect().compare(**arguments)


@_as(Session.search)
def search(scenarios: Any, *, space: Any = ()) -> pa.Table:
    """Search kernels by replaying measured spaces, in a session of its own."""
    with connect() as session:
        return session.search(scenarios, space=space)
