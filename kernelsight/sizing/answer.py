"""What sizing answers: a sentence, the ranked deployments, what is not measured, and the launch command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.escape import html_table, visible
from kernelsight.scenario.flags import FLAGS, LOAD_FLAGS
from kernelsight.scenario.launch.commands import launch_command
from kernelsight.scenario.objectives import Objective
from kernelsight.sizing.evidence import Evidence, evidence_of
from kernelsight.sizing.search import MEASURED, Sized, SizeSearch
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
    search: SizeSearch, ranked: Sequence[Sized], objectives: Sequence[Objective], rate: float, model: str
) -> dict[str, Any]:
    """Return the answer of a search as a dict; see ``Sizing``. ``model``: as the user named it."""
    evidence = evidence_of(zip(search.forks, search.plans, strict=True), ranked, search.sure, objectives)
    rows = [
        row_of(
            sized, objectives, rate, search.tier_of(sized.candidate), evidence[sized.candidate.scenario_id],
            search.is_sure(sized),
        )
        for sized in ranked
    ]  # fmt: skip
    left_out = [{**stated_flags(left.flags), "reason": left.reason} for left in search.left_out.values()]
    answer = _sentence(ranked, rows, rate) if rows else _nearest(search, objectives)
    return {
        "answer": " ".join([answer, *(f"{says}." for says in search.unsupported)]),
        "chosen": rows[0] if rows else None,
        "rows": rows,
        "left_out": left_out,
        "launch": _launch(search, ranked[0], model) if rows else [],
    }


def row_of(
    sized: Sized,
    objectives: Sequence[Objective],
    rate: float,
    tier: Mapping[str, Any],
    evidence: Evidence,
    sure: bool,
) -> dict[str, Any]:
    """Return the row of a deployment: its flags, its rates, what it costs at the asked rate, and what limits it.

    ``sure``: its rate was searched in full; a rough one is enough to rank it behind, and no rate to plan with.
    """
    candidate, found, trials = sized.candidate, sized.found, sized.found.tried.trials
    price = None if candidate.price is None else sized.instances * candidate.price
    prompt, output = (sum(trial.tokens[place] for trial in trials) / len(trials) for place in (0, 1))

    def cost(tokens: float) -> float | None:
        return None if price is None or not tokens else price / (rate * tokens * 3600.0 / 1e6)

    return {
        **stated_flags(candidate.flags),
        "rate": found.rate,
        "rate_low": found.low,
        "rate_high": found.high,
        "rate_if_slow": evidence.rate_if_slow,
        "rate_if_fast": evidence.rate_if_fast,
        "steady": found.steady and sure,
        "search": "full" if sure else "rough",
        "instances": sized.instances,
        "gpus": sized.instances * candidate.gpu_count,
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


def _sentence(ranked: Sequence[Sized], rows: Sequence[Mapping[str, Any]], rate: float) -> str:
    """Return the answer: GPUs, parallel sizes, price and limit; then the caveats that change the decision."""
    sized, row = ranked[0], rows[0]
    many = f"{sized.instances} instance{'s' if sized.instances > 1 else ''}"
    each = f"{rate:.4g} requests/s take {many}, each up to {row['rate']:.3g} requests/s"
    sentences = [
        f"{_deployment(sized, row)}; the limit is {row['limit']}.",
        f"{each} ({row['rate_low']:.3g} to {row['rate_high']:.3g} in runs of {row['num_prompts']:,} requests"
        + (
            f"; {row['rate_if_slow']:.3g} to {row['rate_if_fast']:.3g} if kernels and host are slower or faster)."
            if row["rate_if_slow"] is not None
            else ")."
        ),
    ]
    if row["price_per_hour"] is None:
        sentences.append("Without prices the ranking is by GPUs needed; --prices GPU=DOLLARS ranks by cost.")
    if not row["steady"]:
        sentences.append("The rate was not seen to be steady.")
    if row["tier"] not in MEASURED:
        measured = [pair for pair in zip(ranked, rows, strict=True) if pair[1]["tier"] in MEASURED]
        best = f"; the best with measured kernels is {_deployment(*measured[0])}" if measured else ""
        sentences.append(f"Not measured: {row['not_measured']}{best}.")
    return " ".join(sentences)


def _deployment(sized: Sized, row: Mapping[str, Any]) -> str:
    """Return a deployment in words: 4 × h200_sxm at TP 2, 12.1 $/h, 0.63 $/M tokens."""
    gpus = " and ".join(f"{count * sized.instances} × {gpu}" for gpu, count in sized.candidate.gpus.items())
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


def _launch(search: SizeSearch, sized: Sized, asked: str) -> list[str]:
    """Return the launch commands of one instance: of what decodes, and of what computes prompts."""
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
