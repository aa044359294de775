"""Rows of the sizing tables for one deployment: its rates and costs, its objectives' statistics, its hours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.scenario.objectives import Objective
from kernelsight.scenario.stated_flags import object_text
from kernelsight.sizing.daily import HOURS
from kernelsight.sizing.decision import Demand, Option, option_of
from kernelsight.sizing.prospects import NO_BOUND
from kernelsight.sizing.sentences import stated_flags
from kernelsight.sweeps.find_rate import statistic

if TYPE_CHECKING:
    from kernelsight.sizing.evidence import Label
    from kernelsight.sizing.prospects import Prospect
    from kernelsight.sizing.search import SizeSearch
    from kernelsight.sweeps.rate_search import TriedRate

# confidences at which costs are compared, beside the one that is asked
CONFIDENCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
MAY_BE_CHEAPER = "it may be cheaper: the search ended before it was looked at again"


def deployment_row(option: Option, label: Label, limit: str | None, sure: bool, demand: Demand) -> dict[str, Any]:
    """Return the row of ``sized_deployments``: flags, rates, costs at the demanded rate, and the limiting resource.

    ``sure``: its rate was searched in full; a rough rate only ranks it behind others.
    """
    sized, evidence = option.sized, option.evidence
    rate, power_w = sized.highest, evidence.power_w
    electricity, hourly = electricity_of(option, demand), hourly_of(option, demand)
    tokens = sized.tokens[1]
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
        "limit": limit,
        "tier": label.tier,
        "not_measured": label.not_measured,
        "num_prompts": rate.requests,
    }


def _costs(option: Option, hourly: float | None, peak: float) -> dict[str, float | None]:
    """Return the cost per day and per million tokens, in dollars; None: no price, or no such tokens.

    ``peak``: the rate that is sized for over the mean one, at which tokens are served.
    """
    rate = option.sized.highest
    mean_price = None if hourly is None else option.mean_instances * hourly
    prompt, output = option.sized.tokens
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


def search_rows(search: SizeSearch, demand: Demand) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables of a search: bounds, simulations, and deployments without a rate."""

    def least_cost(prospect: Prospect, rate: float) -> float | None:
        return None if demand.total_gpus else demand.least_cost(prospect.candidate, min(rate, NO_BOUND))

    bounds, simulations, still_open = [], [], {prospect.candidate.scenario_id for prospect in search.still_open()}
    for prospect in search.prospects.values():
        flags, most = flag_values(prospect.candidate.flags), prospect.bound
        rests_on = "its own closed loops" if prospect.is_known else "other numbers of its replicas"
        known = {"rests_on": rests_on, "most_load": most} if math.isfinite(most) else {}
        bounds.append({**flags, **known, "least_cost": least_cost(prospect, most) if most > 0.0 else None})
        for tried in prospect.search.served.values():
            ratios = {"ratio": tried.verdict.level, "ratio_with_margin": tried.verdict.pressure}
            load = {"load": tried.rate, "requests": tried.requests, "seeds": tried.seeds}
            load |= {name: value for name, value in ratios.items() if math.isfinite(value)}
            simulations.append({**flags, **load, "drifts": tried.verdict.drifts, "keeps": tried.verdict.keeps})
    unsized = [
        {
            **flag_values(failed.flags),
            "reason": MAY_BE_CHEAPER if name in still_open else failed.reason,
            "bound": failed.prospect and least_cost(failed.prospect, failed.most_rate),
        }
        for name, failed in search.left_out.items()
    ]
    unsized += [{**flag_values(one.candidate.flags), "bound": least_cost(one, one.bound)} for one in search.not_tried]
    return {"size_bounds": bounds, "size_simulations": simulations, "unsized_deployments": unsized}


def cost_rows(options: Sequence[Option], demand: Demand) -> list[dict[str, Any]]:
    """Return the rows of ``size_costs``: what each option takes at each confidence that it reaches."""
    rows = []
    for confidence in sorted({*CONFIDENCES, demand.confidence}):
        asked = demand._replace(confidence=confidence)
        for place, option in enumerate((option_of(one.sized, one.evidence, asked) for one in options), start=1):
            if not option.holds:
                continue
            hourly = hourly_of(option, demand)
            price = None if hourly is None else option.instances * hourly
            a_day = HOURS * option.mean_instances * hourly if option.start and hourly is not None else None
            counts = {"instances": option.instances, "gpus": option.instances * option.sized.candidate.gpu_count}
            costs = {"cost": option.cost, "served": option.rate, "price_per_hour": price, "cost_per_day": a_day}
            rows.append({"confidence": confidence, "place": place, **counts, **costs})
    return rows


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


def hour_rows(option: Option, demand: Demand, checked: Mapping[int, TriedRate]) -> list[dict[str, Any]]:
    """Return the rows of ``size_hours``: the demand, instances and price of each hour; ``checked``: simulated ones."""
    gpus, price = option.sized.candidate.gpu_count, hourly_of(option, demand)
    return [
        {
            "hour": hour.hour,
            "asked": hour.amount,
            "instances": hour.instances,
            "started": hour.started,
            "gpus": hour.instances * gpus,
            "price_per_hour": None if price is None else hour.instances * price,
            "ratio": checked[hour.hour].verdict.level if hour.hour in checked else None,
            "keeps": checked[hour.hour].verdict.keeps if hour.hour in checked else None,
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
