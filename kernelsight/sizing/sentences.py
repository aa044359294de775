"""Sentences of a sizing's answer: the deployment, its probability, its day, and the measurements that would decide."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.number_format import interval, number, percent
from kernelsight.scenario.flags import FLAGS, LOAD_FLAGS
from kernelsight.scenario.objectives import Objective, objective_of
from kernelsight.sizing.daily import HOURS, Day
from kernelsight.sizing.decision import Demand, Option
from kernelsight.sizing.option_findings import OptionFindings
from kernelsight.sizing.prospects import LeftOut
from kernelsight.sizing.question import MOST_EFFORT
from kernelsight.sizing.search import MEASURED, SizeSearch
from kernelsight.sweeps.capacity import WAITS
from kernelsight.sweeps.find_rate import statistic

if TYPE_CHECKING:
    from kernelsight.sweeps.rate_search import TriedRate

# columns of every row, also where they have the engine's default
ALWAYS = ("gpu", "tensor_parallel_size")
# calls of each kernel to measure so as to decide between two deployments: a minute
DECIDING_POINTS = 3
# flags of a deployment that no row shows: they are the same in all
BESIDE = ("model", "launch", "read_launch_files", "model_like", "architecture", "max_position_embeddings")
ENDS = ("low", "high", "if_slow", "if_fast")
SHORT = {
    "tensor_parallel_size": "TP",
    "data_parallel_size": "DP",
    "expert_parallel_size": "EP",
    "pipeline_parallel_size": "PP",
    "max_num_batched_tokens": "budget",
    "max_cudagraph_capture_size": "graphs",
    "prefill_replicas": "prefill",
    "decode_replicas": "decode",
    "rate": "req/s",
    "probability": "sure",
    **{f"{unit}_{end}": end.replace("_", " ") for unit in ("rate", "users") for end in ENDS},
    "instances": "inst.",
    "mean_instances": "mean inst.",
    "gpus": "GPUs",
    "price_per_hour": "$/h",
    "cost_per_day": "$/day",
    "cost_per_million_tokens": "$/M tokens",
    "electricity_per_hour": "energy $/h",
}


def stated_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deployment's GPU and tensor-parallel size, and its other flags that differ from the default."""
    flags_set = {name: value for name, value in flags.items() if name not in LOAD_FLAGS and name not in BESIDE}
    always = {"gpu": flags_set.pop("gpu"), "tensor_parallel_size": flags_set.pop("tensor_parallel_size", 1)}
    defaults = {"data_parallel_size": 1, "expert_parallel_size": 1, "pipeline_parallel_size": 1, "engine": "vllm"}
    return always | {name: value for name, value in flags_set.items() if defaults.get(name) != value}


def is_flag(name: str) -> bool:
    """Return whether a column is a flag of the deployment."""
    return name in FLAGS and name not in LOAD_FLAGS and name != "tier"


def sentence_of(
    options: Sequence[Option], rows: Sequence[Mapping[str, Any]], objectives: Sequence[Objective], demand: Demand
) -> str:
    """Return the answer in sentences: GPUs, parallel sizes, price and limit; then the caveats that matter for it."""
    option, row = options[0], rows[0]
    rate, unit, slow = option.sized.highest, option.sized.candidate.unit, option.evidence.rate_if_slow
    instances = f"{option.instances} instance{'s' if option.instances > 1 else ''}"
    sustained = f"{number(option.rate)} {unit} take {instances}, each up to {number(rate.rate, 3)} {unit}"
    if demand.total_gpus is not None:
        sustained = f"They serve {number(option.rate)} {unit}: {instances}, each up to {number(rate.rate, 3)} {unit}"
    sentences = [
        f"{_deployment(option, row)}; the limit is {row['limit'] or 'not known'}.",
        f"{sustained} ({interval(rate.low, rate.high, 3)} in runs of {row['num_prompts']:,} requests"
        + (
            f"; {interval(slow, option.evidence.rate_if_fast, 3)} if kernels and host are slower or faster)."
            if slow is not None
            else ")."
        ),
        _probability(options, rows, objectives, demand),
    ]
    if waits := _waits(option, objectives):
        sentences.append(waits)
    if demand.day:
        sentences.append(_over_the_day(option, row, demand.day))
    if row["price_per_hour"] is None and demand.total_gpus is None:
        sentences.append("Without prices the ranking is by GPUs needed; --prices GPU=DOLLARS ranks by cost.")
    if not row["steady"]:
        sentences.append("The rate was not seen to be steady.")
    if row["tier"] not in MEASURED:
        measured = [pair for pair in zip(options, rows, strict=True) if pair[1]["tier"] in MEASURED]
        best = f"; the cheapest found with measured kernels is {_deployment(*measured[0])}" if measured else ""
        sentences.append(f"Not measured: {row['not_measured']}{best}.")
    if rough := sorted({each["gpu"] for each in rows if each["search"] == "rough"} - {row["gpu"]}):
        sentences.append(
            f"{' and '.join(rough)} {'were' if len(rough) > 1 else 'was'} searched only until shown to be dearer: to "
            "compare GPUs, ask for each alone."
        )
    return " ".join(sentences)


def _waits(option: Option, objectives: Sequence[Objective]) -> str | None:
    """Return the sentence on how long users wait where no objective bounds it; None: one does."""
    if any(objective.metric in WAITS for objective in objectives):
        return None
    trials = option.sized.highest.tried.trials
    figures = (statistic(trials, objective_of(name, 1.0)) for name in ("ttft_p50_ms", "ttft_p95_ms", "queue_mean_ms"))
    median, p95, queue = (number(value or 0.0, 3) for value in figures)
    return (
        f"No objective bounds how long users wait: at that rate TTFT p50 is {median} ms and p95 {p95} ms, of which a "
        f"request queues {queue} ms on average; --slo ttft_p95:MS bounds it."
    )


def _probability(
    options: Sequence[Option], rows: Sequence[Mapping[str, Any]], objectives: Sequence[Objective], demand: Demand
) -> str:
    """Return the sentence on load and probability, and on a deployment that is cheaper but less probable to hold."""
    option = options[0]
    goals, hold = " and ".join(map(str, objectives)), "hold" if len(objectives) > 1 else "holds"
    load = percent(option.load) if option.load >= 0.01 else "under 1%"
    if option.probability is None:
        return f"That is a load of {load}; how surely {goals} {hold} is not known: a gamble."
    sentence = f"At that load of {load}, {goals} {hold} with {_share(option.probability)} probability"
    if not option.holds:
        slow = "; if kernels and host are slow, at no rate" if not option.evidence.rate_if_slow else ""
        return f"{sentence}{slow}: a gamble, as no deployment keeps them with {_share(demand.confidence)}."
    if not option.evidence.rate_if_slow:
        sentence += f", a gamble: if kernels and host are slow, no {_amount(option)} keeps them"
    cheaper = next((candidate for candidate in options if candidate.weight < option.weight * (1.0 - 1e-9)), None)
    if cheaper is None or cheaper.probability is None:
        return f"{sentence}."
    cheaper_text = _deployment(cheaper, rows[options.index(cheaper)])
    return f"{sentence}; cheaper and less sure ({_share(cheaper.probability)}): {cheaper_text}."


def _share(probability: float) -> str:
    return "over 99%" if probability > 0.99 else percent(probability)


def _amount(option: Option) -> str:
    return "number of users" if option.sized.candidate.unit == "users" else "rate"


def _over_the_day(option: Option, row: Mapping[str, Any], day: Day) -> str:
    """Return the sentence on the day: instances by the hour, their cost, and the time of a cold start."""
    least, most = min(hour.instances for hour in option.hours), option.instances
    candidate = option.sized.candidate
    cost = f"{number(row['cost_per_day'], 3)} $" if candidate.price else f"{number(HOURS * option.weight)} GPU-hours"
    unscaled = HOURS * most * candidate.weight
    all_day = f"{number(unscaled, 3)} $" if candidate.price else f"{number(unscaled)} GPU-hours"
    if least == most or option.mean_instances >= most:
        run = "the instance runs" if most == 1 else f"all {most} run"
        return f"Over the day ({day.source}) {run}: {all_day} a day; {option.start.sentence}."
    return (
        f"By the hour ({day.source}) {least} to {most} instances do: {cost} a day instead of {all_day} with all of "
        f"them all day; {option.start.sentence}."
    )


def checked_hours(checked: Mapping[int, TriedRate], objectives: Sequence[Objective]) -> list[str]:
    """Return the sentence on the simulated hours of a day: the statistics of the objectives; none: no day."""
    said = []
    for hour, tried in checked.items():
        figures = ((objective, statistic(tried.trials, objective)) for objective in objectives)
        values = " and ".join(
            f"{str(one).partition(' of ')[0]} is {number(value, 3)} ms" for one, value in figures if value is not None
        )
        said.append(f"at {hour} h {values}{'' if tried.verdict.keeps else ', which does not keep the objectives'}")
    return [f"Simulated, {'; '.join(said)}."] if said else []


def what_decides(
    options: Sequence[Option], closer: Sequence[OptionFindings], model: str, measurable: Collection[str]
) -> str | None:
    """Return the sentence on the measurements that would decide between the first two; None where none is needed.

    One is needed where the first may be dearer, if kernels and host are slow, than the second if they are fast. To
    measure are the kernels with most of the uncertainty of the deployment that is less certain. ``measurable``:
    families that `calibrate` measures.
    """
    with_ranges = [option for option in options[:2] if option.evidence.rate_if_slow is not None]
    if len(with_ranges) < 2:
        return None
    first, second = with_ranges
    first_if_slow = first.sized.candidate.weight / max(first.evidence.rate_if_slow, 1e-9)
    if second.sized.candidate.weight / second.evidence.rate_if_fast >= first_if_slow:
        return None
    widths = [
        option.evidence.rate_if_fast / max(option.evidence.rate_if_slow, 1e-9) * option.sized.highest.rate
        for option in with_ranges
    ]
    widest = widths.index(max(widths))
    wider, doubts = with_ranges[widest].sized.candidate.flags["gpu"], closer[widest].doubts
    if not doubts:
        return None
    families = [family for family in doubts if family in measurable]
    if not families:
        return (
            f"Between the first two, {_listed(doubts)} on {wider} would decide, which calibrate does not measure: "
            "run both on the load."
        )
    return (
        f"Between the first two, {_listed(families)} on {wider} would decide: kernelsight calibrate plan --gpu "
        f"{wider} --models {model} --families {','.join(families)} --points {DECIDING_POINTS} -o suite.json"
    )


def _listed(names: Sequence[str]) -> str:
    """Join names with commas and "and".

    >>> _listed(["gemm"]), _listed(["gemm", "norm", "moe"])
    ('gemm', 'gemm, norm and moe')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _deployment(option: Option, row: Mapping[str, Any]) -> str:
    """Return a deployment as text: 4 × h200_sxm at TP 2, 12.1 $/h, 0.63 $/M tokens."""
    gpus = " and ".join(f"{count * option.instances} × {gpu}" for gpu, count in option.sized.candidate.gpus.items())
    words = [f"{gpus} at TP {row['tensor_parallel_size']}"]
    flags_set = {name: row[name] for name in row if is_flag(name) and name not in ALWAYS}
    words += [f"{SHORT.get(name, name)} {'' if value is None else value}" for name, value in flags_set.items()]
    if row["price_per_hour"] is not None:
        words += [f"{number(row['price_per_hour'], 3)} $/h", f"{number(row['cost_per_million_tokens'], 3)} $/M tokens"]
    return ", ".join(words)


def nearest_of(search: SizeSearch, objectives: Sequence[Objective]) -> str:
    """Return the sentence for when no deployment keeps the objectives: the nearest one, and by how much it misses."""
    goals = " and ".join(map(str, objectives))
    tried = "yet" if search.not_tried else ""
    near = [failed for failed in search.left_out.values() if failed.miss is not None]
    if near:
        nearest = min(near, key=lambda failed: failed.miss)
        miss = f"{percent(nearest.miss - 1.0)} above: {_why(nearest)}"
        return f"{_none(goals, tried)}; the nearest is {flags_place(nearest.flags)}, {miss}."
    failed = list(search.left_out.values())
    if not failed:
        first = min((one.candidate for one in search.not_tried), key=lambda candidate: candidate.weight)
        return f"{_none(goals, tried)}: the search ended before the first, {flags_place(first.flags)}, was tried."
    failed.sort(key=lambda one: one.reason == _why(one))  # what ran before what cannot
    reasons = dict.fromkeys(f"{flags_place(one.flags)}: {_why(one)}" for one in failed)
    return f"{_none(goals, tried)}: {'; '.join(list(reasons)[:2])}."


def flags_place(flags: Mapping[str, Any]) -> str:
    """Return the GPU and tensor-parallel size of flags as text."""
    stated = stated_flags(flags)
    return f"{stated['gpu']} at TP {stated['tensor_parallel_size']}"


def _none(goals: str, yet: str) -> str:
    return f"No deployment that was tried keeps {goals}" if yet else f"No deployment keeps {goals}"


def _why(failed: LeftOut) -> str:
    return failed.reason.removeprefix("no rate keeps the objectives: ")


def unfinished(search: SizeSearch, demand: Demand, effort: int) -> list[str]:
    """Return the sentences on a search that ended early: why, what is open, and how to go on; none: it is complete."""
    if search.is_complete:
        return []
    still_open = [*search.still_open(), *search.not_tried]
    nearly = len(search.cheaper_if_exact())
    parts = [f"rough rates of {nearly} may be too low" if nearly else "the rate of the first was not searched in full"]
    if still_open:
        count = f"{len(still_open)} deployment{'s' if len(still_open) > 1 else ''}"
        parts = [f"{count} may {'be cheaper' if search.options else 'keep the objectives'}"]
    if still_open and demand.total_gpus is None:
        least = min(still_open, key=search.least_cost)
        parts = [f"{parts[0]}, at {least.candidate.cost_text(search.least_cost(least))} or more"]
    why = search.ended or "no deployment has the confidence"
    if search.is_stopped:
        more = (
            "a longer --time-limit goes on from here" if "time limit" in why else "the same command goes on from here"
        )
    else:
        more = f"--effort {effort + 1} goes on from here" if effort < MOST_EFFORT else "ask about fewer GPUs or values"
    said = "Not proven to be the cheapest" if search.options else "The search ended early"
    return [f"{said}: {why}; {', '.join(parts)}; {more}."]
