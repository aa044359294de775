"""HTML report of a saved run, sweep, comparison or kernel search: findings as sentences, figures, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.caches.durable import durable_file
from kernelsight.errors import InvalidInput
from kernelsight.number_format import gib, interval, number, percent
from kernelsight.present.html.comparison_figures import COMPARISON_FIGURES
from kernelsight.present.html.page import UNKNOWN, Card, Grid, Head, Part, Tiles, figures, page, table, text_of
from kernelsight.present.html.run_figures import RUN_FIGURES
from kernelsight.present.html.search_report import search_page
from kernelsight.present.html.sweep_figures import sweep_figures
from kernelsight.present.limits_sentence import verdict_of
from kernelsight.serving.breakdown.one_scenario import one_scenario, scenarios_of

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

SWEEP = "sweep"
# suffixes of internal columns, which the report leaves out
INTERNAL = ("_id", "_units", "_blocks", "_row", "_of")
COMPARED = "comparison_findings"
# tables that are computed together, so that the scenario is simulated once
SERVED = ("steps", "request_events", "request_metrics", "scenario_summary", "kernel_breakdown", "cache_over_time")
ALSO = ("kernel_breakdown_over_time", "itl_histogram", "replica_totals", "memory_plan")
DECIDED = ("resource_gains", "scenario_intervals")
KERNELS_QUERY = """
with bounds as (select name, bound, 100.0 * sum(share) as percent from kernel_breakdown group by all)
select name, sum(percent) as whole, max(percent) as most, arg_max(bound, percent) as bound
from bounds group by name order by whole desc limit 3
"""
ADVICE_QUERY = """
select setting, stated as now, value as better, 100.0 * e2e_gain as "shorter E2E, %",
  100.0 * throughput_gain as "more tokens/s a GPU, %", gpus
from setting_advice
"""
QUEUE_QUERY = """
select start_s, end_s, sum(waiting_mean) as waiting, max(kv_share_mean) as kv, max(busy_share) as busy
from cache_over_time group by all order by waiting desc, start_s limit 1
"""


def write_report(session: Session, path: str | Path, scenario: str | None = None) -> None:
    """Write a self-contained HTML page of a run, a sweep, one scenario of it, a comparison or a kernel search.

    ``scenario``: its id, None: all. InvalidInput: nothing is saved there, a comparison has no scenarios, or the extra
    ``report`` is not installed.
    """
    is_comparison = COMPARED in session.available()
    if is_comparison and scenario is not None:
        raise InvalidInput(f"{session.path} holds a comparison with a log, and no scenarios; remove --scenario.")
    if "search_scenarios" in session.available():
        text = search_page(session, scenario)
    else:
        text = _comparison_page(session) if is_comparison else _simulated_page(session, scenario)
    with durable_file(Path(path)) as draft:
        draft.write_text(text, encoding="utf-8")


def _simulated_page(session: Session, scenario: str | None) -> str:
    is_sweep = scenario is None and (len(scenarios_of(session)) > 1 or SWEEP in session.available())
    return _sweep_page(session) if is_sweep else _run_page(one_scenario(session, scenario))


def _comparison_page(session: Session) -> str:
    sentences = [row["sentence"] for row in session.table(COMPARED).sort_by("place").to_pylist()]
    requests = session.table("prediction_vs_production")
    logs = ", ".join(sorted(set(requests["log_id"].to_pylist())))
    figure_rows = [(figure, session.query(figure.sql).to_pylist()) for figure in COMPARISON_FIGURES]
    title = f"{requests.num_rows:,} requests compared with their replay"
    return page(title, [Head(title, logs, sentences), figures(figure_rows)])


def _run_page(session: Session) -> str:
    """Return the page of one scenario as HTML."""
    session.compute(*SERVED, *ALSO, *DECIDED)
    summary = session.table("scenario_summary").to_pylist()[0]
    by_id = {row["deployment_id"]: row for row in session.table("deployment_settings").to_pylist()}
    settings = by_id[summary["deployment_id"]]
    title = f"{settings['model']} on {summary['gpus']} × {settings['gpu']}"
    load_columns = {
        name: value
        for name, value in session.table("scenarios").to_pylist()[0].items()
        if value is not None and not name.endswith("_id")
    }
    about = ", ".join(f"{name} {text_of(value)}" for name, value in load_columns.items())
    figure_rows = [(figure, session.query(figure.sql).to_pylist()) for figure in RUN_FIGURES]
    head = Head(title, about, _run_sentences(session, summary, settings))
    parts: list[Part] = [head, _run_tiles(summary), figures(figure_rows), _facts(session, settings, load_columns)]
    return page(f"{title}: simulated serving", parts)


def _run_sentences(session: Session, summary: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Return the findings of a run as sentences, the most important first; every number is in a table of the run."""
    text = {name: text_of(value) for name, value in summary.items()}
    if not summary["completed"]:
        return [f"None of {text['requests']} requests was served; table request_events has the reason of each."]
    sentences = [
        f"{text['completed']} of {text['requests']} requests were served in {text['duration_s']} s: "
        f"{text['request_throughput']} requests/s, {text['output_throughput']} output tokens/s "
        f"({text['output_throughput_per_gpu']} per GPU)."
    ]
    gains, kernels = (session.table(name).to_pylist() for name in ("resource_gains", "kernel_breakdown"))
    verdict = verdict_of(gains, kernels)["verdict"]
    if verdict:
        sentences.append(f"{verdict[0].upper()}{verdict[1:]}.")
    intervals = {row["metric"]: row for row in session.table("scenario_intervals").to_pylist()}
    intervals_text = [
        f"{name} p99 {interval(row['low'], row['high'])} ms"
        for name in ("TTFT", "TPOT")
        if (row := intervals.get(f"{name.lower()}_p99_ms"))
    ]
    if intervals_text:
        sentences.append(f"90 % intervals: {', '.join(intervals_text)}; kernel latencies are {summary['tier']}.")
    if summary["goodput"] is not None:
        sentences.append(f"{text['goodput']} requests/s keep the objectives.")
    seconds = {name: summary[f"{name}_s"] or 0.0 for name in ("gpu", "host_exposed", "idle")}
    total = sum(seconds.values()) or 1.0
    shares = {name: percent(value / total) for name, value in seconds.items()}
    phases = {name: percent(summary[f"{name}_share"] or 0.0) for name in ("queue", "prefill", "decode")}
    sentences.append(
        f"The GPUs compute {shares['gpu']} of the time, wait for the host {shares['host_exposed']} and are idle "
        f"{shares['idle']}; requests spend {phases['queue']} of their time before their first step, "
        f"{phases['prefill']} in prefill, {phases['decode']} in decode."
    )
    if summary["mean_power_w"] is not None and summary["energy_per_output_token_j"] is not None:
        sentences.append(
            f"The GPUs draw {text['mean_power_w']} W on average (90 % interval {text['mean_power_w_low']} to "
            f"{text['mean_power_w_high']}): {text['energy_per_output_token_j']} J per output token, "
            f"{text['energy_per_request_j']} J per request."
        )
    sentences += _worst_moment(session.query(QUEUE_QUERY).to_pylist())
    kernels = session.query(KERNELS_QUERY).to_pylist()
    kernel_list = ", ".join(
        f"{row['name']} {percent(row['whole'] / 100)} ({percent(row['most'] / 100)} {row['bound']}-bound)"
        for row in kernels
    )
    sentences.append(f"Most GPU time: {kernel_list}.")
    return sentences


def _worst_moment(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the sentence on the window with the most waiting requests; ``rows``: of QUEUE_QUERY."""
    if not rows or rows[0]["waiting"] < 1.0:
        return ["There is no queue: in every window less than one request waits on average."]
    row = rows[0]
    return [
        f"Most requests wait from {text_of(row['start_s'])} s to {text_of(row['end_s'])} s: "
        f"{number(row['waiting'], 3)} on average, with {percent(row['kv'])} of the KV cache in use and the engine "
        f"in steps {percent(row['busy'])} of the time."
    ]


def _run_tiles(summary: Mapping[str, Any]) -> Tiles:
    """Return the key figures of a run: latencies, KV cache, preemptions, goodput."""
    tiles = {
        f"{metric.upper()} {stat} (ms)": text_of(summary[f"{metric}_{stat}_ms"])
        for metric in ("ttft", "tpot", "e2e")
        for stat in ("p50", "p99")
    }
    peak = summary["peak_kv_share"]
    tiles["KV cache, peak"] = percent(peak, 1, UNKNOWN)
    tiles["preemptions"] = text_of(summary["preemptions"])
    if summary["goodput"] is not None:
        goodput_share = summary["goodput"] / summary["request_throughput"] if summary["request_throughput"] else 0.0
        tiles["within objectives"] = percent(goodput_share, 1)
    return Tiles(tiles)


def _facts(session: Session, settings: Mapping[str, Any], load: Mapping[str, Any]) -> Grid:
    """Return cards with the facts behind a run: settings, load, memory, assumptions, versions."""
    plan = {row["deployment_id"]: row for row in session.table("memory_plan").to_pylist()}[settings["deployment_id"]]
    info = session.table("run_info").to_pylist() if "run_info" in session.available() else []
    facts = [row for row in info if not row["fact"].endswith("_sha256")]
    tables = {
        "Deployment": _pairs(settings),
        "Load": _pairs(load),
        "Memory of a GPU": _pairs(plan),
        "Assumed": [{"assumed": row["sentence"]} for row in session.table("assumptions").to_pylist()],
        "Program": [{"fact": row["fact"], "value": row["value"]} for row in facts],
    }
    if "setting_advice" in session.available() and session.table("setting_advice").num_rows:
        tables = {"Changes of one setting that help": session.query(ADVICE_QUERY).to_pylist(), **tables}
    return Grid([Card(name, table=table(rows)) for name, rows in tables.items() if rows])


def _pairs(values: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return columns with their values and units as table rows, without internal columns."""
    shown = {name: value for name, value in values.items() if value is not None and not name.endswith(INTERNAL)}
    return [{"setting": name.removesuffix("_bytes"), "value": _in_units(name, value)} for name, value in shown.items()]


def _in_units(name: str, value: Any) -> str:
    """Return a value with its unit.

    >>> _in_units("kv_bytes", 85_899_345_920), _in_units("gpu_memory_utilization", 0.9), _in_units("tp", 2)
    ('80.0 GiB', '90.0%', '2')
    """
    if name.endswith("_bytes"):
        return f"{gib(value)} GiB"
    if name.endswith(("_share", "utilization", "_ratio")) and isinstance(value, float):
        return percent(value, 1)
    return text_of(value)


def _sweep_page(session: Session) -> str:
    """Return the page of a sweep as HTML."""
    rows = session.table(SWEEP if SWEEP in session.available() else "scenario_summary").to_pylist()
    columns = list(rows[0])
    constant = [name for name in columns if len({str(row[name]) for row in rows}) == 1]
    served = [row for row in rows if row["output_throughput_per_gpu"] is not None]
    common_values = ", ".join(
        f"{name} {text_of(rows[0][name])}"
        for name in columns[2 : columns.index("status")]
        if name in constant and rows[0][name] is not None
    )
    figure_rows = [(figure, session.query(figure.sql).to_pylist()) for figure in sweep_figures(columns, constant)]
    title = f"{len(rows):,} scenarios"
    sentences = _sweep_sentences(served, len(rows), columns)
    return page(f"{title}: simulated serving", [Head(title, common_values, sentences), figures(figure_rows)])


def _sweep_sentences(served: Sequence[Mapping[str, Any]], count: int, columns: Sequence[str]) -> list[str]:
    """Return the findings of a sweep as sentences: scenarios served, within objectives, and the best one."""
    sentences = [f"{len(served):,} of {count:,} scenarios were served."]
    if not served:
        return sentences
    if "meets_slo" in columns:
        meeting_slo = [row for row in served if row["meets_slo"]]
        sentences.append(f"{len(meeting_slo):,} keep the objectives.")
        served = meeting_slo or served
    best = max(served, key=lambda row: (row["output_throughput_per_gpu"], row["scenario_id"]))
    flags = [name for name in columns[2 : columns.index("status")] if best[name] is not None]
    flag_text = ", ".join(f"{name} {text_of(best[name])}" for name in flags)
    sentences.append(
        f"Most output tokens per GPU: scenario {best['scenario_id']} ({flag_text}) with "
        f"{text_of(best['output_throughput_per_gpu'])} tokens/s a GPU, TTFT p99 {text_of(best['ttft_p99_ms'])} ms, "
        f"TPOT p99 {text_of(best['tpot_p99_ms'])} ms."
    )
    return sentences
