"""The tables of sizing: the search of each question's cheapest deployment, as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.dataflow.progress import Report
from kernelsight.dataflow.python_nodes import inside, produces, takes
from kernelsight.errors import InvalidInput
from kernelsight.escape import shell_line
from kernelsight.measure.suite import FAMILIES
from kernelsight.scenario.corrections import refuse_unused_corrections
from kernelsight.scenario.launch.commands import engine_words, launch_command
from kernelsight.scenario.launch.written import PORT
from kernelsight.scenario.objectives import Objective
from kernelsight.scenario.speculation import named_draft
from kernelsight.sizing.decision import Demand, Option
from kernelsight.sizing.deployment_rows import (
    cost_rows,
    day_values,
    deployment_row,
    hour_rows,
    search_rows,
    statistic_rows,
)
from kernelsight.sizing.evidence import labels_of
from kernelsight.sizing.option_findings import OptionFindings, findings_on
from kernelsight.sizing.question import Question, question_of
from kernelsight.sizing.search import SizeSearch
from kernelsight.sizing.sentences import checked_hours, nearest_of, sentence_of, stated_flags, unfinished, what_decides

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session
    from kernelsight.sweeps.rate_search import TriedRate

Rows = dict[str, list[dict[str, Any]]]


@produces(
    *("size_answers", "sized_deployments", "size_statistics", "size_evidence", "unsized_deployments", "size_hours"),
    *("size_bounds", "size_simulations", "size_costs"),
)
def size_tables(size_questions: pa.Table, *, fork: Callable[[], Session], report: Report) -> Rows:
    """Search GPUs, parallel sizes and settings for the cheapest deployment of each question, at steady rates.

    InvalidInput: the first question cannot be answered; why another cannot is its answer.
    """
    tables: Rows = {name: [] for name in size_tables.produces}
    for number, row in enumerate(size_questions.to_pylist()):
        question = question_of(row)
        question.check()
        try:
            with fork() as session:
                answer = _answer_rows(session, question, report)
        except InvalidInput as fault:
            if not number:
                raise
            answer = {"size_answers": [{"answer": str(fault), "complete": False, "launch": [], "unit": "requests/s"}]}
        for name, rows in answer.items():
            tables[name] += [{"question_id": row["question_id"], **answer_row} for answer_row in rows]
    return tables


TABLES = (*size_tables.produces, "size_axes", "size_confidences")


def _answer_rows(session: Session, question: Question, report: Report) -> Rows:
    """Answer one question, and return its rows by table."""
    search = SizeSearch(session, question, report)
    try:
        options = search.run()
        if question.correction is not None:
            correction_file = None if question.correction == "table" else Path(question.correction)
            refuse_unused_corrections(search.forks[0], correction_file)
        closer = findings_on(search, options[:2])
        return _rows(search, options, closer, search.check_hours(options[0]) if options else {})
    finally:
        search.close()


@inside("size_answers", "size_answers", "sized_deployments", "unsized_deployments", "size_hours")
@takes("size_questions", "size_simulations", "size_costs", "size_evidence")
def _rows(
    search: SizeSearch,
    options: Sequence[Option],
    closer: Sequence[OptionFindings],
    checked: Mapping[int, TriedRate],
) -> Rows:
    """Return the answer with the deployments that have a rate, and why others have none, as rows by table.

    ``closer``: findings on the first two options; ``checked``: simulated hours.
    """
    question, demand, model = search.question, search.demand, str(search.rows[0]["model"])
    objectives = question.objectives
    by_scenario = labels_of([option.sized for option in options])
    labels = [by_scenario[option.sized.candidate.scenario_id] for option in options]
    limits = [findings.limit for findings in closer] + [None] * len(options)
    sized = [
        deployment_row(option, label, limit, search.is_sure(option.sized), demand)
        for option, label, limit in zip(options, labels, limits, strict=False)
    ]
    measurable = [name for name, family in FAMILIES.items() if "gpus" not in family.sizes]
    day = bool(options and options[0].start)
    answer = {
        "answer": " ".join(
            [
                _sentences(search, options, sized, closer, question.objectives, demand),
                *checked_hours(checked, objectives),
                *unfinished(search, demand, question.effort),
            ]
        ),
        "complete": search.is_complete,
        "decides": what_decides(options, closer, model, measurable),
        "cliff": closer[0].cliff if closer else None,
        "launch": _launch(search, options[0], model) if options else [],
        "unit": next(iter(search.prospects.values())).candidate.unit,
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
        "size_evidence": [{"place": rank, **row} for rank, label in enumerate(labels, start=1) for row in label.rows],
        **{
            name: [{"place": rank, **row} for rank, row in enumerate(rows, start=1)]
            for name, rows in search_rows(search, demand).items()
        },
        "size_costs": cost_rows(options, demand),
        "size_hours": hour_rows(options[0], demand, checked) if day else [],
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
    return launch_lines(row, deployments, models, model, named_draft(sized.candidate.flags))


def launch_lines(
    scenario: Mapping[str, Any],
    deployments: Mapping[str, Any],
    models: Mapping[str, Any],
    model: str,
    draft: str | None,
) -> list[str]:
    """Return the commands that launch a planned scenario; together they are read back as the same deployment.

    ``deployments``, ``models``: rows by key; ``model``, ``draft``: as the user named them.
    """

    def command(key: str) -> str:
        deployment = deployments[key]
        draft_name = models.get(draft, {}).get("huggingface_id") or draft
        return str(launch_command(deployment, models.get(deployment["model"]), draft_name, model))

    decode, prefill = scenario["deployment_id"], scenario.get("prefill_deployment_id")
    if not prefill:
        return [command(decode)]
    own, lines = engine_words(deployments[decode].get("engine") or "vllm"), []
    for role, key in (("prefill", prefill), ("decode", decode)):
        words = [word.format(own["pools"][role]) for word in own["role"]]
        lines += [f"{command(key)} {shell_line(words)}"] * (scenario.get(f"{role}_replicas") or 1)
    return [*lines, own["router"].format("replica", PORT)]
