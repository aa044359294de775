"""The page of one simulated scenario: settings, throughput, latencies, kernels, memory, assumptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.number_format import gib, interval, number, percent
from kernelsight.present.figures.files import figures_of
from kernelsight.present.page import Figure, Page, Table, pairs, queried
from kernelsight.present.pages.evidence import evidence_table, formats_line, memory_lines, rests_on

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

LARGEST_KERNELS = 16
# smallest relative change of a metric that advice shows, and how many changes
LEAST_CHANGE, MOST_ADVICE = 0.01, 4
ADVISED = {
    **{"ttft_p99_ms": ("TTFT p99", " ms"), "itl_p99_ms": ("ITL p99", " ms"), "tpot_p99_ms": ("TPOT p99", " ms")},
    **{"e2e_mean_ms": ("mean E2E", " ms"), "output_throughput_per_gpu": ("throughput a GPU", " tok/s")},
}
# suffixes of internal columns, which a page leaves out
INTERNAL = ("_id", "_units", "_blocks", "_row", "_of")
# tables of the figures, computed together, so that the scenario is simulated once
DRAWN = ("steps", "request_events", "request_metrics", "scenario_summary", "kernel_breakdown", "cache_over_time")
DRAWN += ("kernel_breakdown_over_time", "itl_histogram", "replica_totals", "memory_plan")
QUEUE_QUERY = """
select start_s, end_s, sum(waiting_mean) as waiting, max(kv_share_mean) as kv, max(busy_share) as busy
from cache_over_time group by all order by waiting desc, start_s limit 1
"""


def simulation_page(answer: Mapping[str, Any], session: Session | None = None) -> Page:
    """Return the page of one simulated scenario; ``answer`` as printed by `simulate --format json`.

    ``session``: of the run, for figures.
    """
    settings, memory = answer["settings"], answer["memory"]
    rejected = [f"{count} {name}" for name, count in answer["status"].items() if name != "finished"]
    why = [f"rejected requests: {', '.join(rejected)}", *_why_rejected(answer)] if rejected else []
    kernels, load = answer["breakdown"], _load_words(session) if session else ""
    return Page(
        f"{settings['model']} on {answer['gpus']} × {settings['gpu']}{load}",
        answer,
        asked=[_headline(settings), *_replica_lines(answer), rests_on(answer)],
        tiles=_figures(answer),
        sentences=[sentence for sentence in (answer["verdict"], answer["near_capacity"], answer["cliff"]) if sentence],
        figures=tuple if session is None else lambda: _drawn(session, settings, memory),
        tables=[
            _advised(answer),
            Table(rows=_latencies(answer), first=True),
            Table(lines=why),
            Table(
                rows=_kernels(kernels), most=LARGEST_KERNELS, more="smaller rows in table kernel_breakdown", drawn=True
            )
            if kernels
            else Table(lines=["no GPU time was spent"]),
        ],
        evidence=[
            evidence_table(answer["evidence"]),
            Table(lines=memory_lines(memory, settings["max_model_len"], "per replica")),
        ],
        assumed=answer["assumed"],
    )


def _load_words(session: Session) -> str:
    """Return what a run was asked to serve, behind a colon: rate or users, and lengths or trace."""
    load = session.table("scenarios").to_pylist()[0]
    rate, users, trace = (load.get(name) for name in ("request_rate", "max_concurrency", "trace"))
    words = [f"{number(rate)} requests/s"] if rate is not None else []
    words += [f"{users:,} at a time"] if users is not None else []
    words += [
        Path(trace).name
        if trace
        else f"{number(load['input_len'])} prompt and {number(load['output_len'])} output tokens"
    ]
    return f": {', '.join(words)}"


def _drawn(session: Session, settings: Mapping[str, Any], memory: Mapping[str, Any]) -> list[Figure]:
    """Return the figures of a run, and the facts behind it: settings, load, memory, program."""
    session.compute(*DRAWN)
    figures = queried(session, figures_of("run").values())
    load = session.table("scenarios").to_pylist()[0]
    program = session.table("run_info").to_pylist() if "run_info" in session.available() else []
    facts = {"Deployment": settings, "Load": load, "Memory of a GPU": memory}
    facts["Program"] = {row["fact"]: row["value"] for row in program if not row["fact"].endswith("_sha256")}
    figures += [Figure(title, "", rows=_in_units(values)) for title, values in facts.items() if values]
    queue = next(index for index, figure in enumerate(figures) if figure.title == "Batch and queue")
    note = f"{figures[queue].note} {_worst_moment(session.query(QUEUE_QUERY).to_pylist())}"
    return [*figures[:queue], figures[queue]._replace(note=note), *figures[queue + 1 :]]


def _worst_moment(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence on the window with the most waiting requests; ``rows``: of QUEUE_QUERY."""
    if not rows or rows[0]["waiting"] < 1.0:
        return "There is no queue: in every window less than one request waits on average."
    row = rows[0]
    return (
        f"Most requests wait from {number(row['start_s'])} s to {number(row['end_s'])} s: "
        f"{number(row['waiting'], 3)} on average, with {percent(row['kv'])} of the KV cache in use and the engine "
        f"in steps {percent(row['busy'])} of the time."
    )


def _in_units(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return columns with their values as rows of a table, bytes in GiB, without internal columns."""
    shown = {name: value for name, value in values.items() if not name.endswith(INTERNAL)}
    return pairs(
        {
            name.removesuffix("_bytes"): f"{gib(value)} GiB" if name.endswith("_bytes") and value else _text(value)
            for name, value in shown.items()
        }
    )


def _text(value: Any) -> Any:
    return _on(value) if isinstance(value, bool) else value


def _headline(settings: Mapping[str, Any]) -> str:
    """Return the line on model, GPU, parallel sizes, engine, formats and limits."""
    return (
        f"{settings['model']} on {settings['gpu']}, tp {settings['tp']} pp {settings['pp']} dp {settings['dp']} "
        f"ep {settings['ep']}, {settings['engine']}, {formats_line(settings)}; "
        f"max_num_seqs {settings['max_num_seqs']}, max_num_batched_tokens {settings['max_num_batched_tokens']}, "
        f"{settings['prefill_policy']}, chunked prefill {_on(settings['enable_chunked_prefill'])}, "
        f"asynchronous scheduling {_on(settings['async_scheduling'])}"
    )


def _replica_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return a line on replicas, if there are several or with P/D disaggregation."""
    if "replicas" in answer:
        return [f"replicas: {answer['replicas']} x the above; {answer['gpus']} GPUs"]
    if "prefill_settings" not in answer:
        return []
    prefill = answer["prefill_settings"]
    transfer_ms = number(answer["kv_transfer_mean_ms"], missing="-")
    return [
        f"disaggregated: decode on {answer['decode_replicas']} x the above, prefill on {answer['prefill_replicas']} x "
        f"{prefill['gpu']} tp {prefill['tp']} pp {prefill['pp']} dp {prefill['dp']} ep {prefill['ep']}, "
        f"max_num_batched_tokens {prefill['max_num_batched_tokens']}; {answer['gpus']} GPUs; "
        f"mean KV transfer time {transfer_ms} ms"
    ]


def _figures(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures by name: throughput, capacity, cache, time shares, energy."""
    shares = [answer[f"{phase}_share"] for phase in ("front_end", "queue", "prefill", "decode")]
    seconds = [number(answer[name], missing="-") for name in ("gpu_s", "host_exposed_s", "idle_s")]
    return {
        "requests completed": f"{answer['completed']:,} of {answer['requests']:,}",
        "duration (s)": answer["duration_s"],
        "request throughput (req/s)": answer["request_throughput"],
        "output throughput (tok/s)": answer["output_throughput"],
        "total throughput (tok/s)": answer["total_throughput"],
        "goodput (req/s)": answer["goodput"],
        "capacity (req/s), load": _capacity(answer),
        "engine steps": answer["steps"],
        "preemptions": answer["preemptions"],
        "prefix cache hit rate": answer["prefix_cache_hit_rate"],
        **_tiers_and_sessions(answer),
        "draft tokens accepted": _accepted(answer),
        "KV cache in use, mean / peak": _percents(answer["mean_kv_share"], answer["peak_kv_share"]),
        "request time front end / queued / prefill / decode": _percents(*shares),
        "of which preempted or recomputed": _percents(answer["preempted_share"]) if answer["preempted_share"] else None,
        "GPU busy / waiting for host / idle (s)": " / ".join(seconds),
        **_energy(answer["power_w"], answer["energy"]),
    }


def _energy(power: dict[str, Any], energy: Mapping[str, Any]) -> dict[str, str | None]:
    """Return mean power of all GPUs, and energy and carbon per token and request; None: unknown, or not requested."""

    def with_interval(figures: dict[str, Any], name: str, low: str, high: str) -> str | None:
        if figures[name] is None:
            return None
        return f"{number(figures[name])} (90 % interval {interval(figures[low], figures[high])})"

    servers = power["host_per_gpu"]
    mean_power = with_interval(power, "mean", "low", "high")
    scope = "GPUs alone" if servers is None else f"with {number(servers)} W of the server for each GPU"
    token, request, carbon = "j_per_output_token", "j_per_request", "carbon_g_per_million_tokens"
    return {
        "power, mean (W)": mean_power and f"{mean_power}: {scope}",
        "energy per output token (J)": with_interval(energy, token, f"{token}_low", f"{token}_high"),
        "energy per request (J)": with_interval(energy, request, f"{request}_low", f"{request}_high"),
        "carbon per million tokens (g)": with_interval(energy, carbon, f"{carbon}_low", f"{carbon}_high"),
    }


def _capacity(answer: Mapping[str, Any]) -> str | None:
    """Return capacity, its interval and limit, and the request rate as a share of it; None: unknown."""
    if answer["capacity"] is None:
        return None
    bounds = interval(answer["capacity_low"], answer["capacity_high"])
    limit = "limit: " if answer["capacity_limit"] != "KV cache" else "batch limit: "
    return f"{number(answer['capacity'])} ({bounds}; {limit}{answer['capacity_limit']}), {percent(answer['load'])}"


def _tiers_and_sessions(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hits and transfers of KV tiers, and the times of whole sessions, where there are any."""
    figures: dict[str, Any] = {}
    if answer.get("kv_tiers"):
        figures["of which in the GPU's cache"] = answer["device_hit_rate"]
    for tier in answer.get("kv_tiers", []):
        moved = (tier[name] / 1e9 for name in ("read_bytes", "written_bytes", "evicted_bytes"))
        figures[f"KV tier {tier['tier']}"] = (
            f"{tier['hit_tokens']:,} tokens found; {', '.join(map(number, moved))} GB loaded, written, evicted"
        )
    if "sessions" in answer:
        sessions = answer["sessions"]
        figures["sessions completed"] = f"{sessions['completed']:,} of {sessions['n']:,}"
        times = (number(sessions["duration_s"][name], missing="-") for name in ("mean", "p50", "p99"))
        figures["time of a whole session, mean / p50 / p99 (s)"] = " / ".join(times)
    return figures


def _why_rejected(answer: Mapping[str, Any]) -> list[str]:
    """Return the limits that rejected requests exceed."""
    settings = answer["settings"]
    if "rejected_too_long" not in answer["status"]:
        return []
    longest = f"prompt and output may have {settings['max_model_len']:,} tokens (--max-model-len)"
    budget = settings["max_num_batched_tokens"]
    prompt_limit = f", the prompt {budget:,} (--max-num-batched-tokens, without chunked prefill)"
    return [f"  too long: {longest}{'' if settings['enable_chunked_prefill'] else prompt_limit}"]


def _advised(answer: Mapping[str, Any]) -> Table:
    """Return the advised changes, of each setting the best, with --advise."""
    if "advice" not in answer:
        return Table()
    best = {row["setting"]: row for row in reversed(answer["advice"])}
    lines = [f"  {_advice(row)}" for row in [*reversed(best.values())][:MOST_ADVICE]] or ["  none by 1 % or more"]
    return Table("changes of one setting that help, simulated on the same requests:", lines=lines)


def _advice(row: Mapping[str, Any]) -> str:
    """Return what a change of a setting (a row of advice) moves, the metric that it helps most first."""
    figures = sorted(ADVISED.items(), key=lambda figure: figure[0] != row["most_helped"])
    moved = [
        f"{label} {interval(row[f'{name}_before'], row[f'{name}_after'], 3)}{unit}"
        for name, (label, unit) in figures
        if row[f"{name}_before"] and abs(row[f"{name}_after"] / row[f"{name}_before"] - 1.0) >= LEAST_CHANGE
    ]
    note = " (changes what is computed: check the quality of answers)" if row["changes_numerics"] else ""
    return f"{row['setting']} {row['stated']} to {row['value']}: {', '.join(moved)}{note}"


def _accepted(answer: Mapping[str, Any]) -> str | None:
    """Return how many draft tokens were accepted, and the mean number of tokens per request and step."""
    proposed, accepted = answer["draft_tokens"], answer["accepted_draft_tokens"]
    if not proposed:
        return None
    steps = proposed / answer["settings"]["num_speculative_tokens"]
    return f"{accepted:,} of {proposed:,}: {number(1 + accepted / steps, 3)} tokens per step"


def _latencies(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for TTFT, TPOT, ITL, E2E latency and time in the queue, with 90 % intervals."""
    return [
        {
            "latency (ms)": name.removesuffix("_ms").upper(),
            **{statistic: values[statistic] for statistic in ("mean", "p50", "p90", "p99")},
            **{
                f"90 % interval of {statistic}": _ends(answer["interval_90"].get(name.replace("ms", f"{statistic}_ms")))
                for statistic in ("mean", "p99")
            },
        }
        for name, values in answer.items()
        if name.endswith("_ms") and isinstance(values, Mapping)
    ]


def _ends(bounds: list[float] | None) -> str | None:
    """Return an interval as text; None without one."""
    return bounds and interval(*bounds)


def _kernels(breakdown: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of ``kernel_breakdown``, the largest first."""
    return [
        {
            "phase": row["phase"],
            "family": row["family"],
            "kernel": row["name"],
            "calls": row["calls"],
            "total ms": row["total_us"] / 1000,
            "share": percent(row["share"], 1),
            "bound": row["bound"],
        }
        for row in sorted(breakdown, key=lambda row: -row["total_us"])
    ]


def _percents(*shares: float | None) -> str:
    return " / ".join(percent(share, 1) for share in shares)


def _on(switch: bool) -> str:
    return "on" if switch else "off"
