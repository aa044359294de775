"""Candidate deployments of a sizing: GPUs x parallel sizes x engine settings, planned and priced."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.errors import InvalidInput, unknown
from kernelsight.number_format import number
from kernelsight.scenario.flag_values import typed_value
from kernelsight.scenario.flags import ALIASES, FLAGS, LOAD_FLAGS
from kernelsight.scenario.launch.deployments import with_launch_line
from kernelsight.scenario.plan import Plan, plan_rows
from kernelsight.scenario.prices import no_price
from kernelsight.scenario.scenario_rows import give_model_like, model_rows, normalise, resolve_model

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

SIZES = (1, 2, 4, 8, 16, 32, 64)
MOST_GPUS = 8
# the load before a search: one request a second, or one user
FIRST_RATE, FIRST_USERS = 1.0, 1
VARIED = (
    *("request_rate", "max_concurrency", "trace", "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps"),
    "replicas",
)
MOST_CANDIDATES = 2_000


class Candidate(NamedTuple):
    """One deployment: its flags, its scenario, the number of each GPU in one instance, and their price per hour."""

    flags: dict[str, Any]
    scenario_id: str
    deployment_id: str
    gpus: dict[str, int]
    price: float | None  # None: no prices are known
    gpus_taken: float | None = None  # GPUs of --total-gpus per instance, with its share of those that stay idle

    @property
    def gpu_count(self) -> int:
        """GPUs of one instance."""
        return sum(self.gpus.values())

    @property
    def unit(self) -> str:
        """The unit of its load: users, requests/s, or conversations/s where they have turns."""
        if "max_concurrency" in self.flags:
            return "users"
        return "conversations/s" if self.flags.get("num_turns", 1) > 1 else "requests/s"

    @property
    def weight(self) -> float:
        """The cost of one instance: dollars per hour, or GPUs where no price is known or their total is fixed."""
        return self.gpus_taken or (float(self.gpu_count) if self.price is None else self.price)

    def affordable_gpus(self, most: float) -> float:
        """Return the most GPUs of one instance that cost less than ``most``, at the price of its own."""
        if self.gpus_taken or math.isinf(most):
            return math.inf
        return math.ceil(most * (1.0 - 1e-9) * self.gpu_count / self.weight) - 1

    def cost_text(self, cost: float) -> str:
        """Return a cost in the unit of ``weight`` as text."""
        text = number(cost, 3)
        return f"{text} $/h" if self.price is not None else f"{text} GPU{'' if text == '1' else 's'}"


def rows_of(
    session: Session, flags: Mapping[str, Any], gpus: Sequence[str], most_gpus: int, search: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """Return the rows of flags to search: every GPU with every parallel size up to ``most_gpus`` GPUs per instance.

    A parallel size that ``flags`` set is not searched. Mixtures of experts are tried with tensor parallelism, with
    expert parallelism, and with data-parallel attention over the same GPUs; replicas of a dense model are instances.
    ``search``: values of further flags, None for the default. InvalidInput: flags that sizing varies, or no row.
    """
    fixed = normalise(with_launch_line(flags))
    fixed.pop("replicas", None)  # of a launch line: sizing finds their number
    for name in VARIED:
        if fixed.get(name) is not None:
            raise InvalidInput(
                f"size varies the load to find the highest rate; remove {name}, and give --rate or --users."
            )
    axes = _axes(fixed, search)
    if "model_like" in fixed:
        fixed["model"] = give_model_like(session, fixed.get("model"), fixed.pop("model_like"))
    model = resolve_model(session, str(fixed["model"]), fixed.pop("architecture", None)) if "model" in fixed else None
    if model is None:
        raise InvalidInput("no model is given; set --model.")
    experts = bool(model_rows(session, model)[0].get("experts"))
    rows = []
    for gpu, parallel, values in itertools.product(
        gpus, _parallel_sizes(fixed, most_gpus, experts), itertools.product(*axes.values())
    ):
        chosen = {name: value for name, value in zip(axes, values, strict=True) if value is not None}
        row = {**fixed, **parallel, "gpu": gpu, **chosen}
        rows.append(row)
    if not rows:
        raise InvalidInput(f"no parallel size fits --max-gpus {most_gpus}; give more, or smaller sizes.")
    if len(rows) > MOST_CANDIDATES:
        raise InvalidInput(
            f"{len(rows):,} deployments are to be searched; give fewer values, {MOST_CANDIDATES:,} at most."
        )
    return rows


def _axes(fixed: Mapping[str, Any], search: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return the distinct values of each flag to search."""
    axes = {}
    for searched, values in search.items():
        name = ALIASES.get(searched, searched)
        if name not in FLAGS or name in LOAD_FLAGS or name in ("model", "gpu"):
            searchable = [flag for flag in FLAGS if flag not in LOAD_FLAGS and flag not in ("model", "gpu")]
            raise unknown("flag to search", searched, searchable, "Flags of the deployment can be searched.")
        if name in fixed:
            raise InvalidInput(f"{name} is given a value and is to be searched; keep one of them.")
        if not values:
            raise InvalidInput(f"no value of {name} is given to search; give one or more.")
        axes[name] = list(dict.fromkeys(_value(name, value) for value in values))
    return axes


def _value(name: str, value: Any) -> Any:
    """Return a value to search in its own type; InvalidInput: it is no value of the flag."""
    try:
        return None if value is None else typed_value(name, value)
    except InvalidInput as fault:
        raise InvalidInput(f"{str(fault).removesuffix('.')}, or none, which leaves it to the engine.") from None


def _parallel_sizes(fixed: Mapping[str, Any], most_gpus: int, experts: bool) -> list[dict[str, Any]]:
    """Return the parallel sizes of up to ``most_gpus`` GPUs; those that ``fixed`` sets stay as they are."""
    stages = fixed.get("pipeline_parallel_size", 1)
    tensor = [fixed["tensor_parallel_size"]] if "tensor_parallel_size" in fixed else SIZES
    data = [fixed["data_parallel_size"]] if "data_parallel_size" in fixed else SIZES if experts else (1,)
    choices = []
    for tp, dp in itertools.product(tensor, data):
        # a size that is set is kept beyond the default of most_gpus, not beyond a smaller one
        keep = "tensor_parallel_size" in fixed and dp == data[0] and most_gpus >= MOST_GPUS
        if tp * dp * stages > most_gpus and not keep:
            continue
        sizes = {"tensor_parallel_size": tp, "data_parallel_size": dp}
        if "expert_parallel_size" in fixed or not experts:
            choices.append(sizes)
            continue
        if dp == 1:
            choices.append(sizes)
        if tp * dp > 1:  # replicas of attention share their experts
            choices.append({**sizes, "expert_parallel_size": tp * dp})
    return choices


def planned_candidates(
    session: Session,
    rows: Sequence[Mapping[str, Any]],
    load: Mapping[str, Any],
    prices: Mapping[str, float],
    total_gpus: int | None = None,
) -> tuple[Plan, list[Candidate]]:
    """Plan rows of flags, and return the plan and its candidates, one per distinct scenario that can be planned.

    ``load``: flags of the load, of an open or closed loop; ``prices``: dollars per hour by GPU. ``total_gpus``: number
    of available GPUs; candidates of more are dropped. InvalidInput: a GPU without a price.
    """
    plan = plan_rows(session, [{**row, **load} for row in rows], on_fault="collect")
    candidates: dict[str, Candidate] = {}
    for flags, scenario in zip(plan.flags, plan.scenarios, strict=True):
        if scenario is None or scenario["scenario_id"] in candidates:
            continue
        gpus = _gpus(plan, scenario)
        missing = [gpu for gpu in gpus if prices and gpu not in prices]
        if missing:
            raise no_price(missing)
        price = sum(count * prices[gpu] for gpu, count in gpus.items()) if prices else None
        identity = scenario["scenario_id"], scenario["deployment_id"]
        gpus_taken = None
        if total_gpus is not None:
            if sum(gpus.values()) > total_gpus:
                continue
            gpus_taken = total_gpus / (total_gpus // sum(gpus.values()))
        candidates[scenario["scenario_id"]] = Candidate(flags, *identity, gpus, price, gpus_taken)
    return plan, list(candidates.values())


def _gpus(plan: Plan, scenario: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of each GPU in one instance: of its decode replicas, and of its prefill replicas."""
    pools = [(scenario["deployment_id"], scenario.get("decode_replicas") or 1)]
    if scenario.get("prefill_deployment_id"):
        pools.append((scenario["prefill_deployment_id"], scenario.get("prefill_replicas") or 1))
    counts: dict[str, int] = {}
    for deployment, replicas in pools:
        row = plan.deployments[deployment]
        count = row["tp"] * row["pp"] * row["dp"] * replicas
        counts[row["gpu"]] = counts.get(row["gpu"], 0) + count
    return counts
