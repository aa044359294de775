"""Rows of the sizing tables for one deployment: its rates and costs, its objectives' statistics, its hours."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kernelsight.scenario.objectives import Objective
from kernelsight.scenario.stated_flags import object_text
from kernelsight.sizing.daily import HOURS
from kernelsight.sizing.decision import Demand, Option
from kernelsight.sizing.prospects import LeftOut
from kernelsight.sizing.sentences import stated_flags
from kernelsight.sweeps.find_rate import statistic
from kernelsight.sweeps.trials import Trial

MAY_BE_CHEAPER = "it may be cheaper: the search ended before it was looked at again"


def deployment_row(option: Option, tier: Mapping[str, Any], sure: bool, demand: Demand) -> dict[str, Any]:
    """Return the row of ``sized_deployments``: flags, rates, costs at the demanded rate, and the limiting resource.

    ``tier``: with the ``limit`` too; ``sure``: its rate was searched in full; a rough rate only ranks it behind others.
    """
    sized, evidence = option.sized, option.evidence
    rate, power_w = sized.highest, evidence.power_w
    electricity, hourly = electricity_of(option, demand), hourly_of(option, demand)
    tokens = output_of(rate.tried.trials)
    joules = None if power_w is None or not tokens else power_w / (sized.request_rate * tokens)
    figures = {"": rate.rate, "_low": rate.low, "_high": rate.high}
    figures |= {"_if_slow": evidence.rate_if_slow, "_if_fast": evidence.rate_if_fast}
    name = "users" if sized.candidate.unit == "users" else "rate"
    return {
        **flag_values(sized.candidate.flags),
        **{f"{name}{suffix}": value for suffix, value in figures.items()},
        "rate": sized.request_rate,
        "steady": bool(rate.steady and sure),
        "search": "full" if sure else "rough",
        "served": option.rate,
        "load": option.load,
        "probability": option.probability,
        "instances": option.instances,
        "gpus": option.instances * sized.candidate.gpu_count,
        "price_per_hour": None if hourly is None else option.instances * hourly,
        "mean_instances": option.mean_instances if option.start else None,
        **_costs(option, hourly, demand.peak),
        "electricity_per_hour": None if electricity is None else option.instances * electricity,
        "mean_power_w": None if power_w is None else option.instances * power_w,
        "energy_per_output_token_j": joules,
        "carbon_per_million_tokens_g": carbon_g(joules, sized.candidate.flags),
        "limit": tier["limit"],
        "tier": tier["tier"],
        "not_measured": tier["not_measured"],
        "num_prompts": rate.requests,
    }


def _costs(option: Option, hourly: float | None, peak: float) -> dict[str, float | None]:
    """Return the cost per day and per million tokens, in dollars; None: no price, or no such tokens.

    ``peak``: the rate that is sized for over the mean one, at which tokens are served.
    """
    rate, trials = option.sized.highest, option.sized.highest.tried.trials
    mean_price = None if hourly is None else option.mean_instances * hourly
    prompt, output = (sum(trial.tokens[index] for trial in trials) / len(trials) for index in (0, 1))
    # mean requests/s that are served: fewer users complete at least their proportional share of requests
    mean = sum(hour.amount for hour in option.hours) / len(option.hours) if option.hours else option.rate
    per_s = mean / peak * option.sized.request_rate / rate.rate

    def cost(tokens: float) -> float | None:
        return None if mean_price is None or not tokens else mean_price / (per_s * tokens * 3600.0 / 1e6)

    return {
        "cost_per_day": HOURS * mean_price if option.start and mean_price is not None else None,
        "cost_per_million_tokens": cost(prompt + output),
        "cost_per_million_input_tokens": cost(prompt),
        "cost_per_million_output_tokens": cost(output),
    }


def flag_values(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that name a deployment: GPU, tensor-parallel size, and other flags as a JSON object."""
    flags_set = stated_flags(flags)
    columns = {"gpu": flags_set.pop("gpu"), "tensor_parallel_size": flags_set.pop("tensor_parallel_size")}
    return {**columns, "flags": object_text(flags_set)}


def left_out_row(failed: LeftOut, demand: Demand, still_open: Collection[str]) -> dict[str, Any]:
    """Return the row of ``unsized_deployments`` of a deployment that was left out; ``still_open``: scenarios."""
    reason, bound = failed.reason, None
    if failed.prospect:
        candidate = failed.prospect.candidate
        bound = demand.least_cost(candidate, failed.most_rate) if demand.total_gpus is None else None
        reason = MAY_BE_CHEAPER if candidate.scenario_id in still_open else reason
    return {**flag_values(failed.flags), "reason": reason, "bound": bound}


def output_of(trials: Sequence[Trial]) -> float:
    """Return the mean output tokens of a request."""
    return sum(trial.tokens[1] for trial in trials) / len(trials)


def carbon_g(joules: float | None, site: Mapping[str, Any]) -> float | None:
    """Return the grams of CO2 equivalent per million output tokens; None: no carbon intensity is given.

    >>> carbon_g(3.6, {"pue": 1.5, "carbon_intensity_g_per_kwh": 100.0}), carbon_g(3.6, {})
    (150.0, None)
    """
    intensity = site.get("carbon_intensity_g_per_kwh")
    return None if joules is None or intensity is None else joules / 3.6 * site.get("pue", 1.0) * intensity


def electricity_of(option: Option, demand: Demand) -> float | None:
    """Return the cost of an instance's energy in dollars per hour; None: no price of electricity, or no power."""
    if demand.electricity_price is None or option.evidence.power_w is None:
        return None
    return demand.electricity_price * option.evidence.power_w / 1e3 * option.sized.candidate.flags.get("pue", 1.0)


def hourly_of(option: Option, demand: Demand) -> float | None:
    """Return the cost of an instance in dollars per hour, with its energy where a price of electricity is given."""
    rent = option.sized.candidate.price
    return None if rent is None else rent + (electricity_of(option, demand) or 0.0)


def statistic_rows(option: Option, objectives: Sequence[Objective]) -> list[dict[str, Any]]:
    """Return the rows of ``size_statistics``: each objective's statistic at the highest rate, and its 90 % interval."""
    rows = []
    for objective in objectives:
        value = statistic(option.sized.highest.tried.trials, objective)
        factors = option.evidence.intervals.get(objective.column)
        low, high = (None, None) if value is None or factors is None else (value * factor for factor in factors)
        columns = {"statistic": objective.column, "most_ms": objective.most_ms}
        rows.append({**columns, "value_ms": value, "low_ms": low, "high_ms": high})
    return rows


def hour_rows(option: Option, demand: Demand) -> list[dict[str, Any]]:
    """Return the rows of ``size_hours``: the demand, instances and price of each hour."""
    gpus, price = option.sized.candidate.gpu_count, hourly_of(option, demand)
    return [
        {
            "hour": hour.hour,
            "asked": hour.amount,
            "instances": hour.instances,
            "started": hour.started,
            "gpus": hour.instances * gpus,
            "price_per_hour": None if price is None else hour.instances * price,
        }
        for hour in option.hours
    ]


def day_values(option: Option, demand: Demand) -> dict[str, Any]:
    """Return the columns of ``size_answers`` for a day: the cold start, and the day's cost with and without scaling."""
    price = hourly_of(option, demand)
    return {
        "startup_s": option.start.seconds,
        "startup": option.start.sentence,
        "cost_per_day": None if price is None else HOURS * option.mean_instances * price,
        "cost_per_day_at_the_peak": None if price is None else HOURS * option.instances * price,
    }
