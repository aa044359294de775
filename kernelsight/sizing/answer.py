"""What sizing answers: a sentence, the ranked deployments, what is not measured, and the launch command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.escape import html_table, visible
from kernelsight.scenario.flags import FLAGS, LOAD_FLAGS
from kernelsight.scenario.launch.commands import launch_command
from kernelsight.scenario.objectives import Objective
from kernelsight.sizing.decision import Asked, Option
from kernelsight.sizing.evidence import Evidence
from kernelsight.sizing.search import MEASURED, SizeSearch
from kernelsight.sweeps.find_rate import statistic
from kernelsight.sweeps.intervals import interval_columns
from kernelsight.sweeps.trials import Trial

if TYPE_CHECKING:
    import pyarrow as pa

# what every row says, however it is left to the engine
ALWAYS = ("gpu", "tensor_parallel_size")
BESIDE = ("model", "launch", "read_launch_files", "model_like", "max_position_embeddings")
SHOWN = (
    *(
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
        "price_per_hour",
        "cost_per_million_tokens",
    ),
    "limit",
)
SHORT = {
    "tensor_parallel_size": "TP",
    "data_parallel_size": "DP",
    "expert_parallel_size": "EP",
    "pipeline_parallel_size": "PP",
    "max_num_batched_tokens": "budget",
    "rate": "req/s",
    "rate_low": "low",
    "rate_high": "high",
    "probability": "sure",
    "rate_if_slow": "if slow",
    "rate_if_fast": "if fast",
    "instances": "inst.",
    "gpus": "GPUs",
    "price_per_hour": "$/h",
    "cost_per_million_tokens": "$/M tokens",
}


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
    search: SizeSearch, options: Sequence[Option], objectives: Sequence[Objective], asked: Asked, model: str
) -> dict[str, Any]:
    """Return the answer of a search as a dict; see ``Sizing``. ``model``: as the user named it."""
    rows = [
        row_of(option, objectives, search.tier_of(option.sized.candidate), search.is_sure(option.sized))
        for option in options
    ]
    left_out = [{**stated_flags(left.flags), "reason": left.reason} for left in search.left_out.values()]
    if rows:
        answer = _sentence(options, rows, objectives, asked)
    else:
        answer = "No rate was found yet." if search.not_tried else _nearest(search, objectives)
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
        "decides": what_decides(options, model),
        "launch": _launch(search, options[0], model) if rows else [],
    }


def row_of(option: Option, objectives: Sequence[Objective], tier: Mapping[str, Any], sure: bool) -> dict[str, Any]:
    """Return the row of a deployment: its flags, its rates, what it costs at the asked rate, and what limits it.

    ``sure``: its rate was searched in full; a rough one is enough to rank it behind, and no rate to plan with.
    """
    sized, evidence = option.sized, option.evidence
    candidate, found, trials = sized.candidate, sized.found, sized.found.tried.trials
    price = None if candidate.price is None else option.instances * candidate.price
    prompt, output = (sum(trial.tokens[place] for trial in trials) / len(trials) for place in (0, 1))

    def cost(tokens: float) -> float | None:
        return None if price is None or not tokens else price / (option.rate * tokens * 3600.0 / 1e6)

    return {
        **stated_flags(candidate.flags),
        "rate": found.rate,
        "rate_low": found.low,
        "rate_high": found.high,
        "rate_if_slow": evidence.rate_if_slow,
        "rate_if_fast": evidence.rate_if_fast,
        "steady": found.steady and sure,
        "search": "full" if sure else "rough",
        "served": option.rate,
        "load": option.load,
        "probability": option.probability,
        "instances": option.instances,
        "gpus": option.instances * candidate.gpu_count,
        "price_per_hour": price,
        "cost_per_million_tokens": cost(prompt + output),
        "cost_per_million_input_tokens": cost(prompt),
        "cost_per_million_output_tokens": cost(output),
        "limit": evidence.limit,
        "tier": tier["tier"],
        "not_measured": tier["not_measured"],
        **_statistics(trials, objectives, evidence),
        "num_prompts": found.requests,
    }


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


def stated_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a deployment that differ from the default, and its GPU and tensor-parallel size always."""
    kept = {name: value for name, value in flags.items() if name not in LOAD_FLAGS and name not in BESIDE}
    first = {"gpu": kept.pop("gpu"), "tensor_parallel_size": kept.pop("tensor_parallel_size", 1)}
    plain = {"data_parallel_size": 1, "expert_parallel_size": 1, "pipeline_parallel_size": 1, "engine": "vllm"}
    return first | {name: value for name, value in kept.items() if plain.get(name) != value}


def columns_shown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns that people decide by: what rows differ in, rates, costs, limits."""
    flags = dict.fromkeys(name for row in rows for name in row if name in ALWAYS or _is_flag(name))
    differing = [name for name in flags if name in ALWAYS or len({row.get(name) for row in rows}) > 1]
    shown = [name for name in SHOWN if any(row.get(name) is not None for row in rows)]
    return [*differing, *shown, *(["tier"] if len({row["tier"] for row in rows}) > 1 else [])]


def _is_flag(name: str) -> bool:
    return name in FLAGS and name not in LOAD_FLAGS and name != "tier"


def _sentence(
    options: Sequence[Option], rows: Sequence[Mapping[str, Any]], objectives: Sequence[Objective], asked: Asked
) -> str:
    """Return the answer: GPUs, parallel sizes, price and limit; then the caveats that change the decision."""
    option, row = options[0], rows[0]
    many = f"{option.instances} instance{'s' if option.instances > 1 else ''}"
    sustained = f"{option.rate:.4g} requests/s take {many}, each up to {row['rate']:.3g} requests/s"
    if asked.total_gpus is not None:
        sustained = f"They serve {option.rate:.4g} requests/s: {many}, each up to {row['rate']:.3g} requests/s"
    sentences = [
        f"{_deployment(option, row)}; the limit is {row['limit']}.",
        f"{sustained} ({row['rate_low']:.3g} to {row['rate_high']:.3g} in runs of {row['num_prompts']:,} requests"
        + (
            f"; {row['rate_if_slow']:.3g} to {row['rate_if_fast']:.3g} if kernels and host are slower or faster)."
            if row["rate_if_slow"] is not None
            else ")."
        ),
        _sureness(options, rows, objectives, asked),
    ]
    if row["price_per_hour"] is None and asked.total_gpus is None:
        sentences.append("Without prices the ranking is by GPUs needed; --prices GPU=DOLLARS ranks by cost.")
    if not row["steady"]:
        sentences.append("The rate was not seen to be steady.")
    if row["tier"] not in MEASURED:
        measured = [pair for pair in zip(options, rows, strict=True) if pair[1]["tier"] in MEASURED]
        best = f"; the best with measured kernels is {_deployment(*measured[0])}" if measured else ""
        sentences.append(f"Not measured: {row['not_measured']}{best}.")
    return " ".join(sentences)


def _sureness(
    options: Sequence[Option], rows: Sequence[Mapping[str, Any]], objectives: Sequence[Objective], asked: Asked
) -> str:
    """Return the sentence that states load and probability, and what is cheaper but less sure."""
    option = options[0]
    named = " and ".join(map(str, objectives))
    if option.probability is None:
        return f"That is a load of {option.load:.0%}."
    says = f"At that load of {option.load:.0%}, {named} hold with {_percent(option.probability)} probability"
    if not option.holds:
        slow = "; if kernels and host are slow, at no rate" if not option.evidence.rate_if_slow else ""
        return f"{says}{slow}: a gamble, as no deployment keeps them with {_percent(asked.confidence)}."
    cheaper = next((one for one in options if one.weight < option.weight * (1.0 - 1e-9)), None)
    if cheaper is None or cheaper.probability is None:
        return f"{says}."
    other = _deployment(cheaper, rows[options.index(cheaper)])
    return f"{says}; cheaper and less sure ({_percent(cheaper.probability)}): {other}."


def _percent(share: float) -> str:
    return "over 99 %" if share > 0.99 else f"{100.0 * share:.0f} %"


def what_decides(options: Sequence[Option], model: str) -> str | None:
    """Return what would decide between the first two; None where their ranges do not meet, or no measurement tells.

    Their costs meet where the first may be dearer, at its slow end, than the second at its fast end.
    """
    known = [option for option in options[:2] if option.evidence.rate_if_slow is not None]
    if len(known) < 2:
        return None
    first, second = known
    dearest = first.sized.candidate.weight / max(first.evidence.rate_if_slow, 1e-9)
    if second.sized.candidate.weight / second.evidence.rate_if_fast >= dearest:
        return None
    widths = [
        option.evidence.rate_if_fast / max(option.evidence.rate_if_slow, 1e-9) * option.sized.found.rate
        for option in known
    ]
    wider = known[widths.index(max(widths))].sized.candidate.flags["gpu"]
    return (
        f"Between the first two, a measurement on {wider} would decide: "
        f"kernelsight calibrate plan --gpu {wider} --models {model} --minutes 5 -o suite.json"
    )


def _deployment(option: Option, row: Mapping[str, Any]) -> str:
    """Return a deployment in words: 4 × h200_sxm at TP 2, 12.1 $/h, 0.63 $/M tokens."""
    gpus = " and ".join(f"{count * option.instances} × {gpu}" for gpu, count in option.sized.candidate.gpus.items())
    parts = [f"{gpus} at TP {row['tensor_parallel_size']}"]
    named = {name: row[name] for name in row if _is_flag(name) and name not in ALWAYS}
    parts += [f"{SHORT.get(name, name)} {_cell(value)}" for name, value in named.items()]
    if row["price_per_hour"] is not None:
        parts += [f"{_money(row['price_per_hour'])} $/h", f"{_money(row['cost_per_million_tokens'])} $/M tokens"]
    return ", ".join(parts)


def _nearest(search: SizeSearch, objectives: Sequence[Objective]) -> str:
    """Return the sentence for no deployment that keeps the objectives: the nearest, and by how much it misses."""
    asked = " and ".join(map(str, objectives))
    near = [left for left in search.left_out.values() if left.miss is not None]
    if not near:
        reasons = dict.fromkeys(left.reason for left in search.left_out.values())
        return f"No deployment keeps {asked}: {'; '.join(list(reasons)[:2])}."
    nearest = min(near, key=lambda left: left.miss)
    stated = stated_flags(nearest.flags)
    where = f"{stated['gpu']} at TP {stated['tensor_parallel_size']}"
    why = nearest.reason.removeprefix("no rate keeps the objectives: ")
    return f"No deployment keeps {asked}; the nearest is {where}, {nearest.miss - 1.0:.0%} above: {why}."


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


def _money(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:,.4g}" if isinstance(value, float) else str(value)
