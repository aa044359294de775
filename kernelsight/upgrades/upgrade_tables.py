"""The tables of an upgrade: kernels, settings and metrics before and after, and the flags that undo what is slower."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.errors import InvalidInput
from kernelsight.forward.forward_step import predict_step
from kernelsight.scenario.corrections import fingerprint
from kernelsight.scenario.flags import ALIASES, DEPLOYMENT_FLAGS, FLAGS
from kernelsight.scenario.launch.engine_options import options
from kernelsight.scenario.plan import give_plan, plan_rows
from kernelsight.scenario.refusals import refuse_faults
from kernelsight.scenario.scenario_rows import BACKENDS
from kernelsight.upgrades.differences import host_change, kernel_rows, part_factors
from kernelsight.upgrades.question import METRICS, Question, question_of, stated, word

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

Rows = dict[str, list[dict[str, Any]]]
# settings whose change is the question itself, or follows from another one
NOT_LISTED = {"deployment_id", "engine", "engine_version", *BACKENDS, "sampler", "source", "from_version"}
# metrics of which a flag must shorten one, and the least gain
LATENCIES, WORTH = ("tpot_p50_ms", "ttft_p50_ms"), 0.01


@reads("scenario_summary", "deployment_settings", "host_settings", "requests", "kernel_latencies", "step_totals")
@produces("upgrade_kernels", "upgrade_settings", "upgrade_metrics", "upgrade_flags")
def upgrade_tables(upgrade_questions: pa.Table, *, fork: Callable[[], Session]) -> Rows:
    """Simulate each deployment in both engines on the same requests, and compare kernels, settings and metrics.

    InvalidInput: a question cannot be answered.
    """
    tables: Rows = {name: [] for name in TABLES}
    for row in upgrade_questions.to_pylist():
        for name, rows in _answer(fork, question_of(row)).items():
            tables[name] += [{"question_id": row["question_id"], **answer_row} for answer_row in rows]
    return tables


TABLES = upgrade_tables.produces


def _answer(fork: Callable[[], Session], question: Question) -> Rows:
    """Return the rows of one question by table."""
    before, after = (_simulated(fork, flags) for flags in question.sides)
    sizes = step_sizes(before["summary"], before["lengths"])
    kernels = []
    for phase, phase_sizes in sizes.items():
        steps = [_step(fork, flags, phase, phase_sizes) for flags in question.sides]
        kernels += kernel_rows(*steps)
    # prompts are computed once, and each token but the first in a decoding step of all
    tokens = before["lengths"][1]
    weights = {"prefill": 1.0, "decode": max(tokens - 1.0, 0.0) / sizes["decode"]["batch_size"]}
    host_rows = [row for row in kernels if row["family"] == "host" and question.changes]
    host_us = 1e3 * sum(weights[row["phase"]] * host_change(row) for row in host_rows) / sum(weights.values())
    slow, fast = (
        _end(fork, question, before["summary"], part_factors(kernels, weights, sign, bool(host_rows)), host_us)
        for sign in (1.0, -1.0)
    )
    settings = _settings(before, after, question.changes)
    return {
        "upgrade_kernels": kernels,
        "upgrade_settings": settings,
        "upgrade_metrics": [metric_row(name, before["summary"], after["summary"], slow, fast) for name in METRICS],
        "upgrade_flags": _flags(fork, question, kernels, settings, after["summary"]),
    }


def _end(
    fork: Callable[[], Session],
    question: Question,
    before: Mapping[str, Any],
    factors: dict[str, float],
    host_us: float,
) -> dict[str, Any]:
    """Return the metrics after at an end of the interval; ``host_us``: change of a step's host time, a part of its own.

    A smaller change of host time is a longer one before: after, it may be launches, which no correction shortens.
    """
    shift_us = (factors.pop("host", 1.0) - 1.0) * host_us
    after = _simulated(fork, question.sides[1], factors, max(shift_us, 0.0))["summary"]
    longer = _simulated(fork, question.sides[0], {}, -shift_us)["summary"] if shift_us < 0.0 else before
    values = {name: (after[name], longer[name], before[name]) for name in METRICS}
    return {name: None if None in ends else ends[0] - (ends[1] - ends[2]) for name, ends in values.items()}


def _simulated(
    fork: Callable[[], Session],
    flags: Mapping[str, Any],
    factors: Mapping[str, float] | None = None,
    host_us: float = 0.0,
) -> dict[str, Any]:
    """Simulate a row of flags; return summary, settings, and mean lengths of prompts and outputs.

    ``factors``: on parts of the steps, as a correction; ``host_us``: longer host time of a step.
    InvalidInput: it cannot run, and why.
    """
    with fork() as session:
        plan = plan_rows(session, [flags], origin="")
        give_plan(session, plan.deployments_of(plan.planned), plan.planned)
        refuse_faults(session)
        all_settings = {row["deployment_id"]: row for row in session.table("deployment_settings").to_pylist()}
        settings = all_settings[plan.planned[0]["deployment_id"]]
        if factors or host_us:
            row = {"fingerprint": fingerprint(settings), "exposed_us": 0.0, "factor": 1.0}
            rows = [row | {"part": part, "factor": factor} for part, factor in (factors or {}).items()]
            rows += [row | {"part": "host", "exposed_us": host_us}] if host_us else []
            session.give("log_corrections", rows)
        (summary,) = session.table("scenario_summary").to_pylist()
        host = session.table("host_settings").to_pylist()[0]
        requests = session.query("select avg(prompt_tokens), avg(output_tokens) from requests").to_pylist()[0]
        lengths = tuple(float(value or 1.0) for value in requests.values())
    return {"summary": summary, "settings": settings, "host": host, "lengths": lengths}


def step_sizes(summary: Mapping[str, Any], lengths: tuple[float, float]) -> dict[str, dict[str, int]]:
    """Return the steps that stand for a run: a prompt of mean length, and its mean number of decoding sequences.

    By Little's law that number is the rate of tokens times the time of one.

    >>> step_sizes({"output_throughput": 1000.0, "tpot_mean_ms": 8.0}, (500.0, 101.0))
    {'decode': {'batch_size': 8, 'context_len': 550}, 'prefill': {'batch_size': 1, 'input_len': 500}}
    """
    running = (summary["output_throughput"] or 0.0) * (summary["tpot_mean_ms"] or 0.0) / 1e3
    context = int(lengths[0] + lengths[1] / 2.0)
    return {
        "decode": {"batch_size": max(1, round(running)), "context_len": context},
        "prefill": {"batch_size": 1, "input_len": max(1, int(lengths[0]))},
    }


def _step(fork: Callable[[], Session], flags: Mapping[str, Any], phase: str, sizes: dict[str, int]) -> dict[str, Any]:
    """Predict one step of the deployment among flags of a scenario."""
    own = {name: value for name, value in flags.items() if ALIASES.get(name, name) in DEPLOYMENT_FLAGS}
    with fork() as session:
        return predict_step(session, own, phase, {"input_len": None, "context_len": None, **sizes})


def _settings(before: Mapping[str, Any], after: Mapping[str, Any], changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings that differ, as rows of ``upgrade_settings``: of the deployment, then of the host."""
    return [
        {"name": name, "value_from": word(before[table].get(name)), "value_to": word(value)}
        for table in ("settings", "host")
        for name, value in after[table].items()
        if (name not in NOT_LISTED or name in changes) and before[table].get(name) != value
    ]


def metric_row(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], slow: Mapping[str, Any], fast: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a row of ``upgrade_metrics``: the change and its 90 % interval, in the metric's unit.

    >>> metric_row("capacity", {"capacity": 4.0}, {"capacity": 5.0}, {"capacity": 4.5}, {"capacity": 5.5})["low"]
    0.5
    """
    values = [side[name] for side in (before, after, slow, fast)]
    row: dict[str, Any] = {"metric": name, "value_from": values[0], "value_to": values[1]}
    if any(value is None for value in values):
        return row | dict.fromkeys(("change", "low", "high"))
    ends = sorted(value - values[0] for value in values[1:])
    return row | {"change": values[1] - values[0], "low": ends[0], "high": ends[-1]}


def _flags(
    fork: Callable[[], Session],
    question: Question,
    kernels: Sequence[Mapping[str, Any]],
    settings: Sequence[Mapping[str, Any]],
    after: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return options that bring a former kernel, default or flag back and make TPOT or TTFT shorter, the best first."""
    flags = question.sides[1]
    spelled = options(flags["engine"])
    known = {option.flag: option for option in spelled.values() if option.flag and option.option.startswith("--")}
    # of several options that set a flag, the one of its name
    known |= {
        flag: spelled[name] for flag in known if (name := FLAGS[flag].options[0] if flag in FLAGS else "") in spelled
    }
    former = [
        (flag, row["kernel_from"].partition(" ")[0], row["kernel_to"])
        for flag, families in BACKENDS.items()
        for row in kernels
        if row["family"] in families and row["kernel_from"] != row["kernel_to"]
    ]
    former += [(row["name"], row["value_from"], row["value_to"]) for row in settings]
    written = {}
    for flag, value, new in dict.fromkeys(former):
        option = known.get(flag)
        text = option.written(value) if option and option.takes == "value" and value else None
        if text is not None and flag not in flags:
            written[flag] = (f"{option.option} {text}", value, new)
    for flag, value, new in question.changed:
        name = known[flag].option if flag in known else FLAGS[flag].options[0]
        text = known[flag].written(str(value)) if flag in known else str(value)
        option = f"without {name}" if value in (None, False) else name if value is True else f"{name} {text}"
        written[flag] = (option, value, new)
    rows = []
    for flag, (option, value, new) in written.items():
        try:
            changed = _simulated(fork, {**flags, flag: value})["summary"]
        except InvalidInput:  # the former default does not fit the other ones
            continue
        gain = max((after[name] or 0.0) / changed[name] - 1.0 for name in LATENCIES if changed[name])
        if gain > WORTH:
            tpot = {f"tpot_p50_ms_{end}": side["tpot_p50_ms"] for end, side in (("from", after), ("to", changed))}
            row = {"flag": option, "undoes": f"{stated(new)} in place of {stated(value)}", **tpot}
            rows.append((-gain, len(rows), row))
    return [row for *_, row in sorted(rows, key=lambda found: found[:2])]
