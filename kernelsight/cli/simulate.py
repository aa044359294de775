"""`kernelsight simulate`: serve a load, print what a benchmark client would, and where the GPU time went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.report.output import Waiting, as_csv, as_json, check_ending, note, write_table
from kernelsight.report.simulation_page import METRICS, PERCENTILES, simulation_page
from kernelsight.scenario.flags import LOAD_FLAGS
from kernelsight.scenario.load_rules import distribution, first_fault
from kernelsight.scenario.objectives import parse_objectives
from kernelsight.scenario.plan import give_plan
from kernelsight.scenario.refusals import refuse_faults
from kernelsight.scenario.run_info import SAVED_TABLES, give_run_info

if TYPE_CHECKING:
    from pathlib import Path

    from kernelsight.session import Session

STATUS_QUERY = """
select status, count(*) as n
from request_events join requests using (scenario_id, request_id)
where not coalesce(warmup, false)
group by all order by status
"""
MEAN_KV_QUERY = """
select sum(kv_share_mean * (end_s - start_s)) / sum(end_s - start_s) as share from cache_over_time
"""


def load_flags(arguments: Any) -> dict[str, Any]:
    """Return the load's flags of parsed arguments; InvalidInput where the load is stated by halves or twice."""
    flags = {name: value for name in LOAD_FLAGS if (value := getattr(arguments, name, None)) is not None}
    flags |= parse_objectives(arguments.goodput or [])
    flags["keep_steps"] = "steps" in (arguments.keep or [])
    synthetic = [name for name in ("request_rate", "input_len", "output_len") if name in flags]
    if "trace" in flags and synthetic:
        raise InvalidInput(
            f"--trace brings its own arrivals and lengths; leave out --{synthetic[0].replace('_', '-')}."
        )
    if "trace" not in flags:
        if not {"request_rate", "ramp_up_strategy", "max_concurrency"} & set(flags):
            raise InvalidInput(
                "no load is stated; give --trace FILE, or --request-rate R or --max-concurrency C with "
                "--num-prompts, --input-len and --output-len."
            )
        needed = ("num_prompts", "input_len", "output_len") if distribution(flags) != "empirical" else ("num_prompts",)
        missing = [name for name in needed if name not in flags]
        if missing:
            raise InvalidInput(
                f"a synthetic load needs --{', --'.join(name.replace('_', '-') for name in missing)}; give what "
                "is missing, or --trace FILE."
            )
    fault = first_fault(flags)
    if fault:
        raise InvalidInput(". ".join(fault))
    return flags


def summary_json(session: Session, scenario: str) -> dict[str, Any]:
    """Return one scenario's summary in the shape that ``simulate --format json`` prints."""
    row = next(item for item in session.table("scenario_summary").to_pylist() if item["scenario_id"] == scenario)
    nested = {f"{metric}_ms": {name: row[f"{metric}_{name}_ms"] for name in PERCENTILES} for metric in METRICS}
    plans, settings_of = (
        {item["deployment_id"]: item for item in session.table(name).to_pylist()}
        for name in ("memory_plan", "deployment_settings")
    )
    plan, settings = plans[row["deployment_id"]], settings_of[row["deployment_id"]]
    transfers = session.table("kv_transfers").to_pylist()
    sentences = [item["sentence"] for item in session.table("assumptions").to_pylist()]
    events = session.query(STATUS_QUERY).to_pylist()
    return {
        "scenario_id": scenario,
        "model": settings["model"],
        "gpu": settings["gpu"],
        "requests": row["requests"],
        "completed": row["completed"],
        "duration_s": row["duration_s"],
        **nested,
        **{
            name: row[name]
            for name in (
                "queue_share",
                "prefill_share",
                "decode_share",
                "preempted_share",
                "request_throughput",
                "output_throughput",
                "total_throughput",
                "goodput",
                "gpus",
                "output_throughput_per_gpu",
                "output_throughput_per_user",
                "steps",
                "preemptions",
                "draft_tokens",
                "accepted_draft_tokens",
                "prefix_cache_hit_rate",
                "kv_cache_tokens",
                "peak_kv_share",
                "gpu_s",
                "host_exposed_s",
                "idle_s",
            )
        },
        "mean_kv_share": session.query(MEAN_KV_QUERY).to_pylist()[0]["share"],
        "status": {item["status"]: item["n"] for item in events},
        "memory": {name: value for name, value in plan.items() if name != "deployment_id"},
        "settings": settings,
        "breakdown": session.table("kernel_breakdown").drop_columns(["scenario_id"]).to_pylist(),
        "assumed": list(
            dict.fromkeys([*sentences, *(item["assumed"] for item in transfers), *_routing(session, settings_of)])
        ),
        **_prefill_side(session, settings_of),
    }


def _routing(session: Session, settings_of: dict[str, dict[str, Any]]) -> list[str]:
    """Return what becomes of a prefix-aware router that has no prefixes to look at."""
    scenario = session.table("scenarios").to_pylist()[0]
    front = scenario["prefill_deployment_id"] or scenario["deployment_id"]
    engines = settings_of[front]["dp"] * (scenario["prefill_replicas"] or 1)
    if scenario["router"] != "prefix_aware" or engines == 1:
        return []
    plan = next(row for row in session.table("memory_plan").to_pylist() if row["deployment_id"] == front)
    requests = session.table("requests")
    if requests["hash_ids"].null_count == requests.num_rows:
        why = "no request states block hashes"
    elif not settings_of[front]["enable_prefix_caching"]:
        why = "prefix caching is off"
    elif plan["full_units"] == 0 or plan["sequence_units"] > 0:
        why = f"prefixes of {settings_of[front]['model']} are not shared here"
    else:
        return []
    return [f"{why}: the prefix-aware router sends each request to the least loaded replica"]


def _prefill_side(session: Session, settings_of: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return what disaggregated serving adds: the engines that compute prompts, and the mean transfer of their KV."""
    scenario = session.table("scenarios").to_pylist()[0]
    if scenario["prefill_deployment_id"] is None:
        return {}
    replicas = {name: scenario[name] or 1 for name in ("prefill_replicas", "decode_replicas")}
    transfer_ms = session.query("select avg(kv_transfer_ms) as mean from request_metrics").to_pylist()[0]["mean"]
    prefill = settings_of[scenario["prefill_deployment_id"]]
    return {"prefill_settings": prefill, **replicas, "kv_transfer_mean_ms": transfer_ms}


def run(arguments: Any) -> None:
    """Run the verb for parsed arguments."""
    from kernelsight.cli.options import deployment_flags, open_session

    target = check_ending(arguments.output)
    load = load_flags(arguments)
    with open_session(arguments) as session:
        scenario = give_plan(session, [deployment_flags(arguments) | load])[0]
        refuse_faults(session)
        session.table("requests")
        with Waiting("serving (the first run after an install also compiles the scheduler)"):
            answer = summary_json(session, scenario)
        give_run_info(session, load.get("seed", 0))
        try:
            if target:
                _save(session, target, keep_steps=load["keep_steps"])
        except RunFailed:
            _print(session, answer, arguments.format)  # what took long to compute is not lost with the disk
            raise
        _print(session, answer, arguments.format)
        if answer["completed"] == 0:
            note(
                f"no request could be served: a replica's KV cache holds {answer['kv_cache_tokens']:,} tokens, and the "
                f"model takes {answer['settings']['max_model_len']:,}; table request_metrics says why of each."
            )


def _print(session: Session, answer: dict[str, Any], form: str) -> None:
    if form == "json":
        print(as_json(answer))
    elif form == "csv":
        summary = session.table("scenario_summary")
        print(as_csv(summary.to_pylist(), summary.column_names), end="")
    else:
        print(simulation_page(answer))


def _save(session: Session, target: Path, *, keep_steps: bool) -> None:
    if target.suffix == ".duckdb":
        session.save(target, [*SAVED_TABLES, *(["steps"] if keep_steps else [])])
    else:
        write_table(session.table("request_metrics"), target)
