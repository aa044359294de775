"""The tables of sizing: the search of each question's cheapest deployment, as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.escape import shell_line
from kernelsight.measure.suite import FAMILIES
from kernelsight.scenario.corrections import refuse_unused_corrections
from kernelsight.scenario.flags import ALIASES
from kernelsight.scenario.launch.commands import engine_words, launch_command
from kernelsight.scenario.launch.written import PORT
from kernelsight.scenario.objectives import Objective
from kernelsight.scenario.prices import read_prices
from kernelsight.scenario.scenario_rows import normalise, resolve_gpu
from kernelsight.sizing.candidates import FIRST_RATE, FIRST_USERS, rows_of
from kernelsight.sizing.decision import Demand, Option
from kernelsight.sizing.deployment_rows import (
    day_values,
    deployment_row,
    flag_values,
    hour_rows,
    left_out_row,
    statistic_rows,
)
from kernelsight.sizing.evidence import labels_of
from kernelsight.sizing.option_findings import OptionFindings, findings_on
from kernelsight.sizing.question import Question, question_of
from kernelsight.sizing.search import SizeSearch
from kernelsight.sizing.sentences import nearest_of, sentence_of, stated_flags, unfinished, what_decides
from kernelsight.sweeps.steady import LEAST_REQUESTS

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

Rows = dict[str, list[dict[str, Any]]]


@reads(
    *("step_costs", "deployment_faults", "deployment_tiers", "memory_plan", "resource_gains", "scenario_intervals"),
    *("kernel_latencies", "kernel_breakdown", "scenario_tiers", "scenario_evidence"),
)
@produces(
    *("size_answers", "sized_deployments", "size_statistics", "size_evidence", "unsized_deployments", "size_hours"),
)
def size_tables(size_questions: pa.Table, *, fork: Callable[[], Session], report: Callable[[str], None]) -> Rows:
    """Search GPUs, parallel sizes and settings for the cheapest deployment of each question, at steady rates.

    InvalidInput: a question cannot be answered.
    """
    tables: Rows = {name: [] for name in TABLES}
    for row in size_questions.to_pylist():
        with fork() as session:
            answer = _answer_rows(session, question_of(row), report)
        for name, rows in answer.items():
            tables[name] += [{"question_id": row["question_id"], **answer_row} for answer_row in rows]
    return tables


TABLES = size_tables.produces


def _answer_rows(session: Session, question: Question, report: Callable[[str], None]) -> Rows:
    """Answer one question, and return its rows by table."""
    question.check()
    demand = question.demand
    search, rows = _open_search(session, question, demand, report)
    try:
        options = search.run(rows, question.tune)
        if question.correction is not None:
            correction_file = None if question.correction == "table" else Path(question.correction)
            refuse_unused_corrections(search.forks[0], correction_file)
        closer = [findings_on(search, option) for option in options[:2]]
        return _rows(search, options, closer, question, demand, str(rows[0]["model"]))
    finally:
        search.close()


def _open_search(
    session: Session, question: Question, demand: Demand, report: Callable[[str], None]
) -> tuple[SizeSearch, list[dict[str, Any]]]:
    """Return the search of a question, and the rows of flags that it searches."""
    gpus = [resolve_gpu(session, name) for name in question.gpus]
    load, total = normalise(question.load), question.total_gpus
    most_gpus = question.max_gpus if total is None else min(question.max_gpus, total)
    prices = read_prices(session, question.prices or None)
    rows = rows_of(session, question.deployment, list(dict.fromkeys(gpus)), most_gpus, question.search)
    loop = {"request_rate": FIRST_RATE} if question.users is None else {"max_concurrency": FIRST_USERS}
    search = SizeSearch(
        session,
        demand,
        question.objectives,
        {"num_prompts": LEAST_REQUESTS, **load, **loop},
        prices,
        report,
        time_limit=question.time_limit_s,
        most_gpus=most_gpus,
        compared=[ALIASES.get(name, name) for name in question.search],
        effort=question.effort,
    )
    return search, rows


def _rows(
    search: SizeSearch,
    options: Sequence[Option],
    closer: Sequence[OptionFindings],
    question: Question,
    demand: Demand,
    model: str,
) -> Rows:
    """Return the rows by table; ``closer``: of the first two options; ``model``: as the user named it."""
    objectives = question.objectives
    labels = labels_of(search, [option.sized for option in options])
    sized = []
    limits = [findings.limit for findings in closer] + [None] * len(options)
    for option, limit in zip(options, limits, strict=False):
        candidate = option.sized.candidate
        tier = {**search.tier_of(candidate), "tier": labels[candidate.scenario_id][0], "limit": limit}
        sized.append(deployment_row(option, tier, search.is_sure(option.sized), demand))
    still_open = {prospect.candidate.scenario_id for prospect in search.still_open()}
    left_out = [left_out_row(failed, demand, still_open) for failed in search.left_out.values()]
    not_tried = [{**flag_values(candidate.flags), "reason": None, "bound": None} for candidate in search.not_tried]
    measurable = [name for name, family in FAMILIES.items() if "gpus" not in family.sizes]
    day = bool(options and options[0].start)
    answer = {
        "answer": " ".join(
            [
                _sentences(search, options, sized, closer, question.objectives, demand),
                *unfinished(search, len(still_open), question.effort),
            ]
        ),
        "complete": search.is_complete,
        "decides": what_decides(options, closer, model, measurable),
        "cliff": closer[0].cliff if closer else None,
        "launch": _launch(search, options[0], model) if options else [],
        "unit": "requests/s" if question.users is None else "users",
        **(day_values(options[0], demand) if day else {}),
    }
    return {
        "size_answers": [answer],
        "sized_deployments": [{"place": rank, **row} for rank, row in enumerate(sized, start=1)],
        "size_statistics": [
            {"place": rank, **row}
            for rank, option in enumerate(options, start=1)
            for row in statistic_rows(option, objectives)
        ],
        "size_evidence": [
            {"place": rank, **row}
            for rank, option in enumerate(options, start=1)
            for row in labels[option.sized.candidate.scenario_id][1]
        ],
        "unsized_deployments": [{"place": rank, **row} for rank, row in enumerate([*left_out, *not_tried], start=1)],
        "size_hours": hour_rows(options[0], demand) if day else [],
    }


def _sentences(
    search: SizeSearch,
    options: Sequence[Option],
    rows: Sequence[Mapping[str, Any]],
    closer: Sequence[OptionFindings],
    objectives: Sequence[Objective],
    demand: Demand,
) -> str:
    """Return the answer in sentences, at its end the engines that are not supported."""
    if rows:
        printed = [
            {**stated_flags(option.sized.candidate.flags), **row} for option, row in zip(options, rows, strict=True)
        ]
        answer = sentence_of(options, printed, objectives, demand)
        answer += f" {closer[0].cliff}." if closer[0].cliff else ""
    else:
        answer = nearest_of(search, objectives)
    return " ".join([answer, *(f"{sentence}." for sentence in search.unsupported)])


def _launch(search: SizeSearch, option: Option, model: str) -> list[str]:
    """Return the commands that launch one instance: one a replica, and the router of prefill and decode replicas."""
    sized = option.sized
    row = sized.prospect.trials.scenario(sized.candidate.scenario_id)
    deployments = {key: value for plan in search.plans for key, value in plan.deployments.items()}
    models = {row["model"]: row for row in search.forks[0].table("models").to_pylist()}
    drafts = sized.candidate.flags.get("speculative_method") == "draft_model"
    return launch_lines(row, deployments, models, model, drafts)


def launch_lines(
    scenario: Mapping[str, Any], deployments: Mapping[str, Any], models: Mapping[str, Any], model: str, drafts: bool
) -> list[str]:
    """Return the commands that launch a planned scenario; together they are read back as the same deployment.

    ``deployments``, ``models``: rows by key; ``model``: as the user named it; ``drafts``: by a draft model.
    """

    def command(key: str) -> str:
        deployment = deployments[key]
        draft = deployments.get(deployment.get("draft_deployment_id")) if drafts else None
        draft_name = draft and (models[draft["model"]]["huggingface_id"] or draft["model"])
        return str(launch_command(deployment, models.get(deployment["model"]), draft_name, model))

    decode, prefill = scenario["deployment_id"], scenario.get("prefill_deployment_id")
    if not prefill:
        return [command(decode)]
    own, lines = engine_words(deployments[decode].get("engine") or "vllm"), []
    for role, key in (("prefill", prefill), ("decode", decode)):
        words = [word.format(own["pools"][role]) for word in own["role"]]
        lines += [f"{command(key)} {shell_line(words)}"] * (scenario.get(f"{role}_replicas") or 1)
    return [*lines, own["router"].format("replica", PORT)]
