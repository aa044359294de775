"""Energy, power and carbon of each scenario: GPUs active with their kernels, under the power limit, and idle GPUs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces
from kernelsight.kernels.energy import held
from kernelsight.kernels.string_columns import positions

NS = 1e9
# joules of a kilowatt-hour; grams and tokens of a carbon figure
KWH_J, MILLION = 3.6e6, 1e6
# suffixes of columns, and the sign of the end of the interval: median, low, high
ENDS = {"": 0.0, "_low": -1.0, "_high": 1.0}


class Drawn(NamedTuple):
    """Sums over the engines of each scenario, shape [scenarios]."""

    gpus: np.ndarray
    limit_w: np.ndarray  # of the power limits of all GPUs
    free_j: np.ndarray  # of active GPUs as if there were no power limit
    active_j: np.ndarray
    idle_j: np.ndarray


@produces("scenario_energy")
def energy_of(
    replica_totals: pa.Table,
    request_statistics: pa.Table,
    scenarios: pa.Table,
    deployment_settings: pa.Table,
    gpu_power: pa.Table,
    gpus: pa.Table,
    kv_tier_totals: pa.Table,
    kv_tier_settings: pa.Table,
) -> pa.Table:
    """Energy of all GPUs of each scenario, its mean power, and energy and carbon of what was served."""
    transfers_j = energy_of_transfers(kv_tier_totals, kv_tier_settings, deployment_settings, gpu_power, gpus)
    encoded = replica_totals["scenario_id"].combine_chunks().dictionary_encode()
    names, number = encoded.dictionary, encoded.indices.to_numpy()
    first, last = (replica_totals[name].to_numpy().astype(float) for name in ("first_ns", "last_ns"))
    started_ns, ended_ns = np.full(len(names), np.inf), np.zeros(len(names))
    np.minimum.at(started_ns, number, first)
    np.maximum.at(ended_ns, number, last)
    span_ns = ended_ns - started_ns if len(names) else np.zeros(0)
    setting_row = positions(replica_totals["deployment_id"], deployment_settings["deployment_id"])
    settings = deployment_settings.take(pa.array(setting_row))
    power = gpu_power.take(pa.array(positions(settings["gpu"], gpu_power["gpu"])))
    drawn = _drawn(replica_totals, settings, power, number, span_ns)
    log_halves = {
        name: _largest(power[name].to_numpy(), number, len(names)) for name in ("power_log_half", "energy_log_half")
    }
    moved_j = np.array([transfers_j.get(name, 0.0) for name in names.to_pylist()])
    columns = {
        "scenario_id": names,
        "gpus": drawn.gpus.astype(np.int64),
        "span_s": span_ns / NS,
        "active_energy_j": drawn.active_j,
        "idle_energy_j": drawn.idle_j,
        "transfer_energy_j": moved_j,
        "held_share": _over(drawn.active_j, drawn.free_j),
        "limit_w": drawn.limit_w,
    }
    scenarios_of_names = scenarios.take(pa.array(positions(names, scenarios["scenario_id"])))
    statistics = request_statistics.take(pc.index_in(names, request_statistics["scenario_id"].combine_chunks()))
    mean_w = _over(drawn.active_j + drawn.idle_j + moved_j, span_ns / NS)
    columns |= _figures(mean_w, drawn, log_halves, _floats(scenarios_of_names), _floats(statistics))
    return pa.table({name: _nullable(values) for name, values in columns.items()})


def energy_of_transfers(
    kv_tier_totals: pa.Table,
    kv_tier_settings: pa.Table,
    deployment_settings: pa.Table,
    gpu_power: pa.Table,
    gpus: pa.Table,
) -> dict[str, float]:
    """Return the joules of GPU memory and link for KV blocks moved to and from KV tiers, by scenario.

    With write-through a block crosses the link once for each tier, otherwise only for the first tier.
    """
    if not kv_tier_totals.num_rows:
        return {}
    gpu_of = dict(zip(*(deployment_settings[name].to_pylist() for name in ("deployment_id", "gpu")), strict=True))
    power = {row["gpu"]: row for row in gpu_power.to_pylist()}
    rates = {row["gpu"]: row for row in gpus.to_pylist()}
    settings = {(row["deployment_id"], row["position"]): row for row in kv_tier_settings.to_pylist()}
    joules_of: dict[str, float] = {}
    for row in kv_tier_totals.to_pylist():
        gpu, tier = gpu_of[row["deployment_id"]], settings[row["deployment_id"], row["position"]]
        byte_j = power[gpu]["memory_w"] / rates[gpu]["memory_bandwidth_bytes_per_s"]
        byte_j += power[gpu]["link_w"] / rates[gpu]["link_bytes_per_s"]
        written = row["written_blocks"] if row["position"] == 0 or tier["write_policy"] == "through" else 0
        joules = (row["read_blocks"] + written) * tier["block_bytes"] * byte_j
        joules_of[row["scenario_id"]] = joules_of.get(row["scenario_id"], 0.0) + joules
    return joules_of


def _drawn(totals: pa.Table, settings: pa.Table, power: pa.Table, number: np.ndarray, span_ns: np.ndarray) -> Drawn:
    """Return the energy of each scenario from its replicas' totals; ``number``: the scenario of each replica."""
    tp, pp = (settings[name].to_numpy().astype(float) for name in ("tp", "pp"))
    facts = {name: power[name].to_numpy() for name in ("idle_w", "active_w", "cap_w", "cap_sharpness", "limit_w")}
    limit_w = pc.fill_null(settings["power_limit_w"], np.inf).to_numpy()
    active_ns = tp * (totals["gpu_ns"].to_numpy() + totals["host_ns"].to_numpy())
    dynamic_w = _over(NS * tp * np.asarray(totals["dynamic_energy_j"].to_numpy(), float), active_ns)
    free_w = np.where(active_ns > 0.0, facts["idle_w"] + facts["active_w"] + dynamic_w, 0.0)
    active_w = held(np.maximum(free_w, 0.0), np.minimum(facts["cap_w"], limit_w), facts["cap_sharpness"])
    idle_ns = np.maximum(tp * pp * span_ns[number] - active_ns, 0.0)

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(number, values, span_ns.size)

    return Drawn(
        summed(tp * pp),
        summed(tp * pp * np.minimum(facts["limit_w"], limit_w)),
        *(
            summed(watts * ns) / NS
            for watts, ns in ((free_w, active_ns), (active_w, active_ns), (facts["idle_w"], idle_ns))
        ),
    )


def _figures(
    mean_w: np.ndarray,
    drawn: Drawn,
    log_halves: dict[str, np.ndarray],
    scenario: dict[str, np.ndarray],
    served: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Return power, energy and carbon with both ends of their intervals; with the hosts where their power is given."""
    servers_w = np.nan_to_num(scenario["host_power_w"]) * drawn.gpus
    carbon_g = (
        np.where(np.isnan(scenario["pue"]), 1.0, scenario["pue"])
        * scenario["carbon_intensity_g_per_kwh"]
        * MILLION
        / KWH_J
    )
    joules = (mean_w + servers_w) * served["duration_s"]
    figures: dict[str, np.ndarray] = {}
    for end, sign in ENDS.items():
        interval_factor = np.exp(sign * log_halves["energy_log_half"])
        watts = np.minimum(mean_w * np.exp(sign * log_halves["power_log_half"]), drawn.limit_w)
        token_j = _over(joules, served["output_tokens"]) * interval_factor
        figures[f"mean_power_w{end}"] = np.where(np.isnan(mean_w), np.nan, watts) + servers_w
        figures[f"energy_per_output_token_j{end}"] = token_j
        figures[f"energy_per_request_j{end}"] = _over(joules, served["completed"]) * interval_factor
        figures[f"carbon_per_million_tokens_g{end}"] = token_j * carbon_g
    return figures


def _floats(table: pa.Table) -> dict[str, np.ndarray]:
    """Return the numbers of a table by column, nan for null."""
    return {
        field.name: np.asarray(table[field.name].to_numpy(), float)
        for field in table.schema
        if pa.types.is_floating(field.type) or pa.types.is_integer(field.type)
    }


def _largest(values: np.ndarray, number: np.ndarray, size: int) -> np.ndarray:
    """Return the largest value of each group, shape [size]; ``number``: the group of each value."""
    largest = np.zeros(size)
    np.maximum.at(largest, number, values)
    return largest


def _over(values: np.ndarray, divisors: np.ndarray) -> np.ndarray:
    """Return values / divisors, nan where the divisor is 0, negative or nan."""
    return np.divide(values, divisors, out=np.full(np.shape(values), np.nan), where=np.nan_to_num(divisors) > 0.0)


def _nullable(values: pa.Array | np.ndarray) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, from_pandas=True)
