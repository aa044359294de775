"""Checked plans: from the rows of flags of a grid to rows of ``deployments`` and ``scenarios``, and their faults."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kernelsight.dataflow.rows import as_table
from kernelsight.errors import InvalidInput, KernelSightError
from kernelsight.files.numbers import is_number
from kernelsight.scenario.flags import ALIASES, DEPLOYMENT_FLAGS, DRAFT_FLAGS, LOAD_FLAGS, POOL_FLAGS, PREFILL_FLAGS
from kernelsight.scenario.launch.deployments import with_launch_line
from kernelsight.scenario.launch.lines import LaunchLine
from kernelsight.scenario.load_rules import check_load
from kernelsight.scenario.objectives import PRICE
from kernelsight.scenario.scenario_rows import (
    DEPLOYMENT_DEFAULTS,
    LOAD_DEFAULTS,
    SAME_AS_LEFT_OUT,
    deployment_rows,
    deployments_of,
    model_rows,
    normalise,
    resolve_names,
    scenario_row,
    with_drafts,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

# flags that are names to be resolved, and flags that decide what they resolve to; resolved once for equal values
NAMES = (
    *("model", "model_like", "architecture", "max_position_embeddings", "max_model_len", "gpu", "quantization"),
    *("prefill_gpu", "kv_transfer_fabric", "speculative_method", "speculative_model"),
)


class KnownModels(NamedTuple):
    """The models of a grid.

    ``given``: names in the session's tables before the grid. ``seen``: by name, the spelling in the first row, and the
    rows of its tables where they come from a config or from ``model_like``; None: from the session's tables.
    """

    given: frozenset[str]
    seen: dict[str, tuple[str, Any]]


# values of unset flags that do not depend on the engine; shown in rows where other rows of the grid set the flag
CONSTANT_DEFAULTS = (
    LOAD_DEFAULTS
    | SAME_AS_LEFT_OUT
    | {flag: DEPLOYMENT_DEFAULTS[column] for flag, column in DEPLOYMENT_FLAGS.items() if column in DEPLOYMENT_DEFAULTS}
)

# flags that no deployment depends on, nor whether it is valid
OF_LOAD_ALONE = frozenset(LOAD_FLAGS) - {"replicas"}


class Plan(NamedTuple):
    """Checked rows of flags, and the rows of ``deployments`` and ``scenarios`` that they make."""

    flags: list[dict[str, Any]]  # of each row, by full names
    deployments: dict[str, dict[str, Any]]  # by deployment_id
    scenarios: list[dict[str, Any] | None]  # of each row; None: it has a fault
    prices: list[float | None]  # of each row: dollars an hour of one GPU
    faults: list[str | None]  # of each row: why it cannot be used

    @property
    def planned(self) -> list[dict[str, Any]]:
        """The rows of ``scenarios``, each once, in the order of the grid."""
        return list({row["scenario_id"]: row for row in self.scenarios if row}.values())

    def deployments_of(self, scenarios: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of ``deployments`` that scenarios need, draft models included."""
        keys = with_drafts((key for row in scenarios for key in deployments_of(row)), self.deployments)
        return [self.deployments[key] for key in keys]


def plan_rows(
    session: Session,
    rows: Sequence[Mapping[str, Any]],
    goodput: Mapping[str, float] | None = None,
    *,
    origin: str = "row {} of the grid: ",
    on_fault: Literal["raise", "collect"] = "raise",
    numbers: Iterable[int] | None = None,
) -> Plan:
    """Return the plan of a grid's rows of flags; models that rows name by path are added to the session's tables.

    ``goodput``: objectives of every row. An error begins with ``origin``, which names the row, counted from 1 or as
    ``numbers`` says. With ``on_fault="collect"`` an invalid row has a fault instead, and equal rows share a scenario;
    otherwise two equal rows are an error, because one of them is most likely mistyped.
    """
    plan = Plan([], {}, [], [], [])
    number_of: dict[str, int] = {}
    known_names: dict[tuple, dict[str, Any]] = {}
    known_models = KnownModels(frozenset(session.table("models")["model"].to_pylist()), {})
    known_deployments: dict[tuple, list[dict[str, Any]]] = {}
    lines: dict[tuple[str, bool], LaunchLine] = {}
    numbers = list(numbers or range(1, len(rows) + 1))
    for number, row in zip(numbers, rows, strict=True):
        try:
            flags, price = _row_flags(session, with_launch_line(row, lines), goodput or {}, known_names, known_models)
            deployment_key = tuple((name, value) for name, value in flags.items() if name not in OF_LOAD_ALONE)
            deployments = known_deployments.get(deployment_key) or deployment_rows(flags)
            known_deployments[deployment_key] = deployments
            scenario = scenario_row(flags, deployments[0])
        except KernelSightError as error:
            if on_fault == "raise":
                raise type(error)(f"{origin.format(number)}{error}") from None
            flags, price, deployments, scenario = {}, None, [], None
            plan.faults.append(str(error))
        else:
            plan.faults.append(None)
            first_number = number_of.setdefault(scenario["scenario_id"], number)
            if first_number != number and on_fault == "raise":
                raise InvalidInput(
                    f"rows {first_number} and {number} of the grid are the same scenario; keep one of them."
                )
        plan.flags.append(flags)
        plan.prices.append(price)
        plan.deployments.update({row["deployment_id"]: row for row in deployments})
        plan.scenarios.append(scenario)
    if on_fault == "raise":
        _check_rows(session, plan, origin, numbers)
    return plan


def give_plan(session: Session, deployments: Sequence[Mapping], scenarios: Sequence[Mapping]) -> None:
    """Set a session's tables to rows that ``plan_rows`` checked; equal deployments stay, with their derived tables."""
    new_names = {row["deployment_id"] for row in deployments}
    present_names = (
        session.table("deployments")["deployment_id"].to_pylist() if "deployments" in session.available() else []
    )
    for name, rows in (("deployments", deployments), ("scenarios", scenarios)):
        if name == "scenarios" or new_names != set(present_names):
            session.give(name, as_table(session.graph.known(name), rows), trusted=True)


def _row_flags(
    session: Session,
    row: Mapping[str, Any],
    goodput: Mapping[str, float],
    known_names: dict[tuple, dict[str, Any]],
    known_models: KnownModels,
) -> tuple[dict[str, Any], float | None]:
    """Return one row's flags by their full names, and its price; ``known_...``: what earlier rows resolved to."""
    row_values = {name: value for name, value in row.items() if value is not None and name != PRICE}
    for alias, name in ALIASES.items():
        if alias in row_values and name in row_values:
            raise InvalidInput(f"{alias} and {name} are the same flag; keep one.")
    for name in goodput:
        if name in row_values:
            raise InvalidInput(f"{name} is set by the row and by --goodput; keep one.")
    flags = normalise({**row_values, **goodput})
    names = tuple(flags.get(name) for name in NAMES)
    if names not in known_names:
        known_names[names] = resolve_names(session, {name: flags[name] for name in NAMES if name in flags})
        _refuse_namesakes(session, flags, known_names[names], known_models)
    flags |= known_names[names]
    check_load(flags)
    return flags, _price(row.get(PRICE))


def _refuse_namesakes(
    session: Session, flags: Mapping[str, Any], resolved: Mapping[str, Any], known_models: KnownModels
) -> None:
    """Raise InvalidInput where a row's model has the name of a different one: one would be simulated as the other."""
    for flag in ("model", "speculative_model"):
        spelling, name = str(flags.get(flag)), resolved.get(flag)
        if flag not in flags or name is None:
            continue
        config_rows = None
        is_file = spelling not in known_models.given and os.path.exists(spelling)
        if is_file or (flag == "model" and "model_like" in flags):
            model, layers = model_rows(session, name)
            config_rows = {**model, "source": None}, layers
        first, first_rows = known_models.seen.setdefault(name, (spelling, config_rows))
        if config_rows != first_rows:
            raise InvalidInput(
                f"two different models are named {name!r}: {first} and {spelling}; a config.json is named after its "
                "folder: rename one, or simulate them apart."
            )


def _price(value: Any) -> float | None:
    if value is None:
        return None
    if not is_number(value) or value < 0:
        raise InvalidInput(f"{PRICE} is {value!r}; give a finite number, 0 or more.")
    return float(value)


def _check_rows(session: Session, plan: Plan, origin: str, numbers: Iterable[int]) -> None:
    """Check all rows at once against their contracts; an error names the first row of flags with a fault."""
    with session.fork() as fork:
        try:
            fork.give("deployments", as_table(fork.graph.known("deployments"), list(plan.deployments.values())))
            fork.give("scenarios", as_table(fork.graph.known("scenarios"), plan.planned))
            return
        except KernelSightError:
            pass
        for number, scenario in zip(numbers, plan.planned, strict=True):
            try:
                fork.give("deployments", plan.deployments_of([scenario]))
                fork.give("scenarios", [scenario])
            except KernelSightError as error:
                raise type(error)(f"{origin.format(number)}{error}") from None


def flag_columns(session: Session, plan: Plan, named: Collection[str] = ()) -> pa.Table:
    """Return scenario_id, the flags that at least one row sets, and prices if any; a row for each row of the grid.

    ``named``: flags and the price that rows elsewhere in the grid set.

    Columns have the types of the contracts of ``deployments`` and ``scenarios``.
    """
    import pyarrow as pa

    types = {column.name: column.arrow_type for column in session.graph.known("scenarios").columns}
    columns = {column.name: column.arrow_type for column in session.graph.known("deployments").columns}
    types |= {flag: columns[column] for flag, column in DEPLOYMENT_FLAGS.items()} | dict.fromkeys(
        DRAFT_FLAGS, pa.string()
    )
    types |= {name: types[flag] for name, flag in PREFILL_FLAGS.items()}
    flags_set = {*named, *(name for flags in plan.flags for name in flags)}
    table = {
        "scenario_id": pa.array([row["scenario_id"] for row in plan.scenarios if row], pa.string()),
    }
    for name in [*DEPLOYMENT_FLAGS, *DRAFT_FLAGS, *PREFILL_FLAGS, *POOL_FLAGS, *LOAD_FLAGS]:
        if name in flags_set:
            unset = CONSTANT_DEFAULTS.get(name)
            table[name] = pa.array([flags.get(name, unset) if flags else None for flags in plan.flags], types[name])
    if PRICE in named or any(price is not None for price in plan.prices):
        table[PRICE] = pa.array(plan.prices, pa.float64())
    return pa.table(table)
