"""The terminal page of `kernelsight simulate`: settings, throughput, latencies, kernels, memory, assumptions."""

from __future__ import annotations

from typing import Any

from kernelsight.cli.pages.advice_lines import advice_lines
from kernelsight.cli.pages.formats_line import evidence_lines, formats_line, rests_on
from kernelsight.number_format import gib, interval, number, percent
from kernelsight.present.output import table_lines, terminal_width
from kernelsight.sweeps.run_summary import METRICS, PERCENTILES

LARGEST_KERNELS = 16


def simulation_page(answer: dict[str, Any]) -> list[str]:
    """Return the lines of the report of one simulated scenario; ``answer`` as printed by `simulate --format json`."""
    rejected = [f"{count} {name}" for name, count in answer["status"].items() if name != "finished"]
    sections = (
        [_headline(answer["settings"]), *_replica_lines(answer), rests_on(answer)],
        [
            *_figures(answer),
            *(sentence for sentence in (answer["verdict"], answer["near_capacity"], answer["cliff"]) if sentence),
        ],
        _advised(answer),
        _latencies(answer),
        [f"rejected requests: {', '.join(rejected)}", *_why_rejected(answer)] if rejected else [],
        _kernels(answer["breakdown"]),
        evidence_lines(answer["evidence"]),
        [*_memory(answer["memory"], answer["settings"]), "assumed:", *(f"  - {why}" for why in answer["assumed"])],
    )
    return [line for lines in sections if lines for line in ["", *lines]][1:]


def _headline(settings: dict[str, Any]) -> str:
    """Return the line on model, GPU, parallel sizes, engine, formats and limits."""
    return (
        f"{settings['model']} on {settings['gpu']}, tp {settings['tp']} pp {settings['pp']} dp {settings['dp']} "
        f"ep {settings['ep']}, {settings['engine']}, {formats_line(settings)}; "
        f"max_num_seqs {settings['max_num_seqs']}, max_num_batched_tokens {settings['max_num_batched_tokens']}, "
        f"{settings['prefill_policy']}, chunked prefill {_on(settings['enable_chunked_prefill'])}, "
        f"asynchronous scheduling {_on(settings['async_scheduling'])}"
    )


def _replica_lines(answer: dict[str, Any]) -> list[str]:
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


def _figures(answer: dict[str, Any]) -> list[str]:
    """Return the lines of name and value: throughput, capacity, cache, time shares, energy."""
    shares = [answer[f"{phase}_share"] for phase in ("front_end", "queue", "prefill", "decode")]
    seconds = [number(answer[name], missing="-") for name in ("gpu_s", "host_exposed_s", "idle_s")]
    figures = {
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
    width = max(len(name) for name in figures)
    return [f"{name:<{width}}  {number(value)}" for name, value in figures.items() if value is not None]


def _energy(power: dict[str, Any], energy: dict[str, Any]) -> dict[str, str | None]:
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


def _capacity(answer: dict[str, Any]) -> str | None:
    """Return capacity, its interval and limit, and the request rate as a share of it; None: unknown."""
    if answer["capacity"] is None:
        return None
    bounds = interval(answer["capacity_low"], answer["capacity_high"])
    return f"{number(answer['capacity'])} ({bounds}; limit: {answer['capacity_limit']}), {percent(answer['load'])}"


def _tiers_and_sessions(answer: dict[str, Any]) -> dict[str, Any]:
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


def _why_rejected(answer: dict[str, Any]) -> list[str]:
    """Return the limits that rejected requests exceed."""
    settings = answer["settings"]
    if "rejected_too_long" not in answer["status"]:
        return []
    longest = f"prompt and output may have {settings['max_model_len']:,} tokens (--max-model-len)"
    budget = settings["max_num_batched_tokens"]
    prompt_limit = f", the prompt {budget:,} (--max-num-batched-tokens, without chunked prefill)"
    return [f"  too long: {longest}{'' if settings['enable_chunked_prefill'] else prompt_limit}"]


def _advised(answer: dict[str, Any]) -> list[str]:
    """Return the lines on advised changes of one setting, with --advise."""
    if "advice" not in answer:
        return []
    lines = [f"  {line}" for line in advice_lines(answer["advice"])]
    return ["changes of one setting that help, simulated on the same requests:", *(lines or ["  none by 1 % or more"])]


def _accepted(answer: dict[str, Any]) -> str | None:
    """Return how many draft tokens were accepted, and the mean number of tokens per request and step."""
    proposed, accepted = answer["draft_tokens"], answer["accepted_draft_tokens"]
    if not proposed:
        return None
    steps = proposed / answer["settings"]["num_speculative_tokens"]
    return f"{accepted:,} of {proposed:,}: {number(1 + accepted / steps, 3)} tokens per step"


def _latencies(answer: dict[str, Any]) -> list[str]:
    """Return a table of TTFT, TPOT, ITL and E2E latency with 90 % intervals."""
    rows = [
        {
            "latency (ms)": metric.upper(),
            **{name: answer[f"{metric}_ms"][name] for name in PERCENTILES},
            **{
                f"90 % interval of {name}": _ends(answer["interval_90"].get(f"{metric}_{name}_ms"))
                for name in ("mean", "p99")
            },
        }
        for metric in METRICS
    ]
    return table_lines(rows, list(rows[0]), terminal_width())


def _ends(bounds: list[float] | None) -> str | None:
    """Return an interval as text; None without one."""
    return bounds and interval(*bounds)


def _kernels(breakdown: list[dict[str, Any]]) -> list[str]:
    """Return the largest rows of ``kernel_breakdown`` as a table, and the number of rows not shown."""
    if not breakdown:
        return ["no GPU time was spent"]
    rows = [
        {
            "phase": row["phase"],
            "family": row["family"],
            "kernel": row["name"],
            "calls": row["calls"],
            "total ms": row["total_us"] / 1000,
            "share": percent(row["share"], 1),
            "bound": row["bound"],
        }
        for row in sorted(breakdown, key=lambda row: -row["total_us"])[:LARGEST_KERNELS]
    ]
    hidden = len(breakdown) - len(rows)
    more = [f"... and {hidden} smaller rows in table kernel_breakdown"] if hidden else []
    return [*table_lines(rows, list(rows[0]), terminal_width()), *more]


def _memory(memory: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Return the lines on memory of a GPU and capacity of the KV cache."""
    memory_parts = ", ".join(
        f"{label} {gib(memory[name])}"
        for label, name in (
            ("weights", "weights_bytes"),
            ("activations", "activations_bytes"),
            ("graphs", "graphs_bytes"),
            ("KV cache", "kv_bytes"),
        )
    )
    return [
        f"memory per GPU: {gib(memory['memory_bytes'])} GiB, usable {gib(memory['usable_bytes'])}: {memory_parts}",
        f"KV cache: {memory['kv_cache_tokens']:,} tokens per replica; fits {number(memory['max_concurrency'])} "
        f"requests of {settings['max_model_len']:,} tokens",
    ]


def _percents(*shares: float | None) -> str:
    return " / ".join(percent(share, 1) for share in shares)


def _on(switch: bool) -> str:
    return "on" if switch else "off"
