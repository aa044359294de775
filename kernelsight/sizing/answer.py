"""What sizing answers: a sentence, the ranked deployments, what is not measured, and the launch command."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.escape import html_table, visible
from kernelsight.scenario.launch.commands import launch_command
from kernelsight.scenario.objectives import Objective
from kernelsight.sizing.closer_look import Closer
from kernelsight.sizing.daily import HOURS
from kernelsight.sizing.decision import Asked, Option
from kernelsight.sizing.evidence import Evidence
from kernelsight.sizing.search import SizeSearch
from kernelsight.sizing.sentences import ALWAYS, SHORT, is_flag, nearest_of, sentence_of, stated_flags, what_decides
from kernelsight.sweeps.find_rate import statistic
from kernelsight.sweeps.intervals import interval_columns
from kernelsight.sweeps.trials import Trial

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = (
    *(
        "users",
        "users_low",
        "users_high",
        "users_if_slow",
        "users_if_fast",
        "rate",
        "rate_low",
        "rate_high",
        "rate_if_slow",
        "rate_if_fast",
        "search",
        "load",
        "probability",
        "instances",
        "gpus",
        "mean_instances",
        "price_per_hour",
        "cost_per_day",
        "electricity_per_hour",
        "cost_per_million_tokens",
    ),
    "limit",
)


class Sizing:
    """The answer to a question of size: ``answer``, ``chosen``, ``rows``, ``left_out`` and ``launch``.

    >>> import kernelsight as ks
    >>> load = {"input_len": 256, "output_len": 16, "max_gpus": 1, "prices": {"l4": 0.7}}
    >>> found = ks.size(model="qwen3-0.6b", gpus=["l4"], rate=20, slo={"ttft_p95_ms": 400.0}, **load)
    >>> found.chosen["gpu"], found.chosen["instances"] * found.chosen["rate"] >= 20, found.chosen["price_per_hour"] > 0
    ('l4', True, True)
    """

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self._answer = dict(answer)

    @property
    def answer(self) -> str:
        """The answer as a sentence."""
        return self._answer["answer"]

    @property
    def chosen(self) -> dict[str, Any] | None:
        """The cheapest row; None where no deployment keeps the objectives."""
        return self._answer["chosen"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Deployments that keep the objectives, the cheapest first; rates are of one instance, requests/s."""
        return self._answer["rows"]

    @property
    def left_out(self) -> list[dict[str, Any]]:
        """Deployments that cannot run, cannot be cheaper, or keep no rate, and why."""
        return self._answer["left_out"]

    @property
    def complete(self) -> bool:
        """Whether everything was tried that may be the cheapest; else ``not_tried`` lists what was not."""
        return self._answer["complete"]

    @property
    def not_tried(self) -> list[dict[str, Any]]:
        """Deployments that the search did not reach before its end."""
        return self._answer["not_tried"]

    @property
    def decides(self) -> str | None:
        """What to measure so that it is clear which of the first two is cheaper; None where it is clear."""
        return self._answer["decides"]

    @property
    def cliff(self) -> str | None:
        """A limit of the chosen deployment that a neighbour setting removes; None: there is none."""
        return self._answer["cliff"]

    @property
    def day(self) -> dict[str, Any] | None:
        """The hours of the chosen deployment with their instances, starts and costs; None: without --daily-peak."""
        return self._answer["day"]

    @property
    def launch(self) -> list[str]:
        """The commands that launch one instance of the chosen deployment."""
        return self._answer["launch"]

    def as_dict(self) -> dict[str, Any]:
        """Return everything in the shape that ``size --format json`` prints."""
        return self._answer

    def table(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        import pyarrow as pa

        return pa.Table.from_pylist(self.rows) if self.rows else pa.table({})

    def __repr__(self) -> str:
        return visible(f"Sizing({self.answer})")

    def _repr_html_(self) -> str:
        names = columns_shown(self.rows)
        rows = [[row.get(name) for name in names] for row in self.rows]
        return html_table(self.answer, [SHORT.get(name, name) for name in names], rows)


def answer_of(
    search: SizeSearch,
    options: Sequence[Option],
    closer: Sequence[Closer],
    objectives: Sequence[Objective],
    asked: Asked,
    model: str,
    measurable: Collection[str],
) -> dict[str, Any]:
    """Return the answer of a search as a dict; see ``Sizing``.

    ``closer``: closer looks at the first two options; ``model``: as the user named it; ``measurable``: kernel families
    that can be measured.
    """
    rows = [
        row_of(option, objectives, search.tier_of(option.sized.candidate), search.is_sure(option.sized), asked)
        for option in options
    ]
    left_out = [{**stated_flags(left.flags), "reason": left.reason} for left in search.left_out.values()]
    if rows:
        answer = sentence_of(options, rows, objectives, asked)
        answer += f" {closer[0].cliff}." if closer[0].cliff else ""
    else:
        answer = "No rate was found yet." if search.not_tried else nearest_of(search, objectives)
    notes = [f"{says}." for says in search.unsupported]
    if search.ended:
        count = len(search.not_tried)
        notes.append(f"The search ended early: {search.ended}; {count} deployment{'s' * (count != 1)} not tried.")
    return {
        "answer": " ".join([answer, *notes]),
        "chosen": rows[0] if rows else None,
        "rows": rows,
        "left_out": left_out,
        "complete": search.ended is None,
        "not_tried": [stated_flags(candidate.flags) for candidate in search.not_tried],
        "decides": what_decides(options, closer, model, measurable),
        "cliff": closer[0].cliff if closer else None,
        "day": hours_said(options[0], asked) if options and options[0].start else None,
        "launch": _launch(search, options[0], model) if rows else [],
    }


def row_of(
    option: Option, objectives: Sequence[Objective], tier: Mapping[str, Any], sure: bool, asked: Asked
) -> dict[str, Any]:
    """Return the row of a deployment: its flags, its rates, what it costs at the asked rate, and what limits it.

    ``sure``: its rate was searched in full; a rough one is enough to rank it behind, and no rate to plan with.
    """
    sized, evidence = option.sized, option.evidence
    candidate, found, trials = sized.candidate, sized.found, sized.found.tried.trials
    power_w, electricity, hourly = evidence.power_w, electricity_of(option, asked), hourly_of(option, asked)
    price = None if hourly is None else option.instances * hourly
    mean_price = None if hourly is None else option.mean_instances * hourly
    joules = None if power_w is None or not output_of(trials) else power_w / (sized.request_rate * output_of(trials))
    prompt, output = (sum(trial.tokens[place] for trial in trials) / len(trials) for place in (0, 1))
    # requests/s of all that is served, on average: fewer users than were found complete at least their share
    mean = sum(hour.amount for hour in option.hours) / len(option.hours) if option.hours else option.rate
    per_s = mean * sized.request_rate / found.rate

    def cost(tokens: float) -> float | None:
        return None if mean_price is None or not tokens else mean_price / (per_s * tokens * 3600.0 / 1e6)

    ends = {"": found.rate, "_low": found.low, "_high": found.high}
    ends |= {"_if_slow": evidence.rate_if_slow, "_if_fast": evidence.rate_if_fast}
    name = "users" if candidate.unit == "users" else "rate"
    return {
        **stated_flags(candidate.flags),
        **{f"{name}{end}": value for end, value in ends.items()},
        "rate": sized.request_rate,
        "steady": found.steady and sure,
        "search": "full" if sure else "rough",
        "served": option.rate,
        "load": option.load,
        "probability": option.probability,
        "instances": option.instances,
        "gpus": option.instances * candidate.gpu_count,
        "price_per_hour": price,
        **({"mean_instances": option.mean_instances} if option.start else {}),
        **({"cost_per_day": HOURS * mean_price} if option.start and mean_price is not None else {}),
        "cost_per_million_tokens": cost(prompt + output),
        "cost_per_million_input_tokens": cost(prompt),
        "cost_per_million_output_tokens": cost(output),
        "electricity_per_hour": None if electricity is None else option.instances * electricity,
        "mean_power_w": None if power_w is None else option.instances * power_w,
        "energy_per_output_token_j": joules,
        "carbon_per_million_tokens_g": carbon_g(joules, candidate.flags),
        "limit": evidence.limit,
        "tier": tier["tier"],
        "not_measured": tier["not_measured"],
        **_statistics(trials, objectives, evidence),
        "num_prompts": found.requests,
    }


def output_of(trials: Sequence[Trial]) -> float:
    """Return the mean output tokens of a request."""
    return sum(trial.tokens[1] for trial in trials) / len(trials)


def carbon_g(joules: float | None, site: Mapping[str, Any]) -> float | None:
    """Return the CO2 equivalent of a million output tokens, grams; None: no carbon intensity is stated.

    >>> carbon_g(3.6, {"pue": 1.5, "carbon_intensity_g_per_kwh": 100.0}), carbon_g(3.6, {})
    (150.0, None)
    """
    intensity = site.get("carbon_intensity_g_per_kwh")
    return None if joules is None or intensity is None else joules / 3.6 * site.get("pue", 1.0) * intensity


def electricity_of(option: Option, asked: Asked) -> float | None:
    """Return what the energy of an instance costs, dollars an hour; None: no price is stated, or no power known."""
    if asked.electricity_price is None or option.evidence.power_w is None:
        return None
    return asked.electricity_price * option.evidence.power_w / 1e3 * option.sized.candidate.flags.get("pue", 1.0)


def hourly_of(option: Option, asked: Asked) -> float | None:
    """Return what an instance costs, dollars an hour, with its energy where a price of electricity is stated."""
    rent = option.sized.candidate.price
    return None if rent is None else rent + (electricity_of(option, asked) or 0.0)


def _statistics(
    trials: Sequence[Trial], objectives: Sequence[Objective], evidence: Evidence
) -> dict[str, float | None]:
    """Return the statistic of each objective at the found rate, milliseconds, and its 90 % interval beside it."""
    found: dict[str, float | None] = {}
    for objective in objectives:
        value, ends = statistic(trials, objective), evidence.intervals.get(objective.column)
        found[objective.column] = value
        for name, place in zip(interval_columns(objective.column), (0, 1), strict=True):
            found[name] = None if value is None or ends is None else value * ends[place]
    return found


def columns_shown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns that people decide by: what rows differ in, rates, costs, limits."""
    flags = dict.fromkeys(name for row in rows for name in row if name in ALWAYS or is_flag(name))
    differing = [name for name in flags if name in ALWAYS or len({row.get(name) for row in rows}) > 1]
    shown = [name for name in SHOWN if any(row.get(name) is not None for row in rows)]
    return [*differing, *shown, *(["tier"] if len({row["tier"] for row in rows}) > 1 else [])]


def hours_said(option: Option, asked: Asked) -> dict[str, Any]:
    """Return the day of an option: its hours, what a start takes, and what the day costs with and without following."""
    candidate = option.sized.candidate
    gpus, price = candidate.gpu_count, hourly_of(option, asked)
    hours = [
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
    return {
        "unit": candidate.unit,
        "hours": hours,
        "startup_s": option.start.seconds,
        "startup": option.start.says,
        "mean_instances": option.mean_instances,
        "cost_per_day": None if price is None else HOURS * option.mean_instances * price,
        "cost_per_day_at_the_peak": None if price is None else HOURS * option.instances * price,
    }


def _launch(search: SizeSearch, option: Option, asked: str) -> list[str]:
    """Return the launch commands of one instance: of what decodes, and of what computes prompts."""
    sized = option.sized
    row = sized.prospect.trials.scenario(sized.candidate.scenario_id)
    deployments = {key: value for plan in search.plans for key, value in plan.deployments.items()}
    models = {model["model"]: model for model in search.forks[0].table("models").to_pylist()}
    keys = [row["deployment_id"], *([row["prefill_deployment_id"]] if row["prefill_deployment_id"] else [])]
    found = []
    for key in keys:
        deployment = deployments[key]
        draft = deployments.get(deployment.get("draft_deployment_id"))
        proposing = sized.candidate.flags.get("speculative_method") == "draft_model" and draft
        name = models[draft["model"]]["huggingface_id"] or draft["model"] if proposing else None
        found.append(str(launch_command(deployment, models.get(deployment["model"]), name, asked)))
    return found
