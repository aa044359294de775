"""Predicts one forward step, kernel by kernel (``predict``), or the latencies of a table of kernel calls."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput
from kernelsight.escape import html_table, visible
from kernelsight.kernels.portability import danger_sentences, in_danger
from kernelsight.number_format import interval, number
from kernelsight.scenario.alternatives import graphs_end, graphs_for
from kernelsight.scenario.refusals import refuse_faults
from kernelsight.scenario.scenario_rows import deployment_row, gpu_assumptions, normalise, resolve_names

if TYPE_CHECKING:
    import altair
    import pyarrow as pa

    from kernelsight.dataflow.session import Session
    from kernelsight.present.page import Page

PHASES = ("prefill", "decode", "mixed")
# sizes that a step of each phase needs
NEEDED = {"prefill": ("input_len",), "decode": ("context_len",), "mixed": ("input_len", "context_len")}
MEANS = {"input_len": "the new tokens of each prompt", "context_len": "the tokens of each sequence in the cache"}
# least speed-up by wider CUDA graphs that is worth a sentence
LEAST_FACTOR = 1.05
# larger steps have tensor sizes beyond 64 bits
LARGEST_STEP_TOKENS = 10**9
# columns in which launches of several kinds of layers must agree to count as one kernel: of calls, of latencies
OF_CALL = ("family", "name", "shape", "math", "format", "flops", "bytes")
OF_LATENCY = {name: name for name in ("roofline_us", "bound", "eta", "latency_us")}
OF_LATENCY |= {"p05_us": "latency_p05_us", "p95_us": "latency_p95_us", "tier": "tier", "evidence": "evidence"}
OF_LATENCY |= {name: name for name in ("implementation", "measured_version")}


class Prediction:
    """One forward step, kernel by kernel, with its interval and what it rests on.

    >>> import kernelsight as ks
    >>> with ks.connect() as s:
    ...     step = s.predict(model="qwen3-0.6b", gpu="l4", phase="decode", batch_size=8, context_len=1024)
    ...     step.p05_us < step.total_us < step.p95_us, step.kernels.column("family")[0].as_py()
    (True, 'decode_attention')
    """

    def __init__(self, step: dict[str, Any], gpu: Mapping[str, Any]) -> None:
        self._step, self._gpu = step, gpu

    @classmethod
    def of(cls, session: Session, flags: dict[str, Any], phase: str, sizes: dict[str, Any]) -> Prediction:
        """Predict one step; see ``predict_step``."""
        step = predict_step(session, flags, phase, sizes)
        return cls(step, next(row for row in session.table("gpus").to_pylist() if row["gpu"] == step["gpu"]))

    @property
    def total_us(self) -> float:
        """Time of the step in microseconds, exposed host time included."""
        return self._step["total_us"]

    @property
    def p05_us(self) -> float:
        """Lower end of the 90 % interval of the step, microseconds."""
        return self._step["p05_us"]

    @property
    def p95_us(self) -> float:
        """Upper end of the 90 % interval of the step, microseconds."""
        return self._step["p95_us"]

    @property
    def cliff(self) -> str | None:
        """A limit of the step that a neighbour setting removes, and by which factor; None: there is none."""
        return self._step["cliff"]

    @property
    def assumed(self) -> list[str]:
        """What the prediction assumes without a measurement, one sentence each."""
        return self._step["assumed"]

    @property
    def kernels(self) -> pa.Table:
        """One row per kernel, the longest first: count, shape, FLOP, bytes, roofline, eta, latency, share, tier."""
        import pyarrow as pa

        return pa.Table.from_pylist(self._step["kernels"])

    def as_dict(self) -> dict[str, Any]:
        """Return the step in the shape that ``predict --format json`` prints."""
        return self._step

    def plot(self) -> altair.Chart:
        """Return the roofline of the kernels as a Vega-Lite chart for a notebook (needs the extra ``report``).

        InvalidInput: no kernel has FLOP and bytes.
        """
        from kernelsight.present.figures.charts import chart_of

        figures = self.page().figures()
        if not figures:
            raise InvalidInput("the step has no kernel with FLOP and bytes, so that there is no roofline to draw.")
        return chart_of(figures[0])

    def page(self) -> Page:
        """Return what ``predict`` shows, for terminal, HTML and JSON."""
        from kernelsight.present.pages.predict import predict_page

        return predict_page(self._step, self._gpu)

    def __repr__(self) -> str:
        step = self._step
        return visible(
            f"Prediction({step['model']} on {step['gpu']}, {step['phase']} of {step['tokens']:,} tokens: "
            f"{number(step['total_us'])} us, 90 % interval {interval(step['p05_us'], step['p95_us'])} us)"
        )

    def _repr_html_(self) -> str:
        names = ("name", "family", "count", "latency_us", "share", "bound", "tier")
        return html_table(repr(self), names, [[row[name] for name in names] for row in self._step["kernels"]])


def step_shape(
    phase: str, batch_size: int, input_len: int | None, context_len: int | None, window: int | None
) -> dict[str, Any]:
    """Return the ``step_shapes`` row of a whole step; lengths in tokens.

    prefill: ``batch_size`` prompts of ``input_len`` new tokens after ``context_len`` cached ones.
    decode: ``batch_size`` sequences with ``context_len`` tokens in the cache.
    mixed: such a decode and one prefill chunk of ``input_len`` tokens.
    ``window``: of the model's sliding attention, None: none. InvalidInput: a size is missing, or does not apply.
    """
    given = {"input_len": input_len, "context_len": context_len}
    for name in NEEDED[phase]:
        if given[name] is None:
            raise InvalidInput(f"--phase {phase} needs --{name.replace('_', '-')}: {MEANS[name]}.")
    chunk, context = (input_len or 0 if phase != "decode" else 0), context_len or 0
    if phase == "decode" and input_len is not None:
        raise InvalidInput(
            "--input-len does not apply to a decode step, which has one new token per sequence; remove it, or use "
            "--phase mixed."
        )
    decodes = batch_size if phase != "prefill" else 0
    prompts = batch_size if phase == "prefill" else int(phase == "mixed")
    shape = whole_step(0, decodes, context, prompts, chunk, context if phase == "prefill" else 0)
    return {**shape, "decode_window_context": min(context, window) if decodes and window else shape["decode_context"]}


def whole_step(number: int, decodes: int, context: int, prompts: int, chunk: int, cached: int) -> dict[str, Any]:
    """Return the ``step_shapes`` row of ``decodes`` sequences with ``context`` tokens each, and ``prompts`` chunks.

    ``number``: its step_shape_id; ``chunk``, ``cached``: new and cached tokens of each chunk. The row lacks the columns
    of the deployment and of its attention windows.
    """
    return {
        "step_shape_id": number,
        "part": "whole",
        "x": 0.0,
        "y": 0.0,
        "tokens": decodes + prompts * chunk,
        "expert_tokens": None,
        "sampled": decodes + prompts,
        "adapters": None,
        "decode_requests": decodes,
        "decode_context": context if decodes else None,
        "prefill_requests": prompts,
        "prefill_tokens": chunk,
        "prefill_cached": cached,
    }


def step_kernels(calls: pa.Table, latencies: pa.Table) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the kernels of one step, the longest total time first, and its rows of ``kernel_evidence``.

    Equal launches of several kinds of layers are one row with their number as ``count``, under the first call's name.
    """
    priced = {row["call"]: row for row in latencies.to_pylist()}
    kernels: dict[tuple[Any, ...], dict[str, Any]] = {}
    evidence: dict[tuple[Any, ...], dict[str, Any]] = {}
    for call in calls.to_pylist():
        latency = priced[call["call"]]
        columns = {name: call[name] for name in OF_CALL}
        columns |= {name: latency[column] for name, column in OF_LATENCY.items()}
        columns["energy_mj"] = latency["energy_j"] * 1e3
        key = (*(call["shape"] or {}).items(), *(value for name, value in columns.items() if name != "shape"))
        first = {"family": columns["family"], "name": columns["name"], "call": call["call"], "count": 0}
        kernel = kernels.setdefault(key, first | columns)
        kernel |= {"call": min(kernel["call"], call["call"]), "count": kernel["count"] + call["count"]}
        basis = {name: call[name] for name in ("deployment_id", "family")}
        basis |= {name: latency[name] for name in ("tier", "evidence")}
        evidence_row = evidence.setdefault(tuple(basis.values()), basis | {"gpu_us": 0.0})
        evidence_row["gpu_us"] += call["count"] * latency["latency_us"]
    ordered = sorted(kernels.values(), key=lambda row: (-row["count"] * row["latency_us"], row["call"]))
    return ordered, list(evidence.values())


def predict_step(session: Session, flags: dict[str, Any], phase: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return one forward step as a dict: totals, kernels by their time, memory, settings and assumptions.

    Units end the names. ``flags``: deployment flags as ``simulate`` takes them; ``sizes``: batch_size (None: 1),
    input_len, context_len, in sequences and tokens. InvalidInput: no such phase, a size is missing or wrong, a flag is
    invalid, or the model does not fit.
    """
    if phase not in PHASES:
        raise InvalidInput(f"--phase is {phase!r}; give one of {', '.join(PHASES)}.")
    sizes = {name: _size(name, value) for name, value in sizes.items()}
    normalised = normalise(flags)
    gpu_sentences = gpu_assumptions(session, normalised)
    deployment = deployment_row(resolve_names(session, normalised))
    session.give("deployments", [deployment])
    refuse_faults(session)
    layout = session.table("kv_layout").to_pylist()[0]
    model = next(row for row in session.table("models").to_pylist() if row["model"] == deployment["model"])
    shape = step_shape(
        phase,
        sizes["batch_size"] or 1,
        sizes["input_len"],
        sizes["context_len"],
        layout["window_tokens"] or model["index_top_k"],
    )
    settings = session.table("deployment_settings").to_pylist()[0]
    _check_lengths(phase, sizes, shape["tokens"], settings["max_model_len"])
    session.give("step_shapes", [{"deployment_id": deployment["deployment_id"], **shape}])
    kernels, evidence = step_kernels(session.table("kernel_calls"), session.table("kernel_latencies"))
    totals = session.table("step_totals").to_pylist()[0]
    total = totals["total_us"]
    gpu_power = next(row for row in session.table("gpu_power").to_pylist() if row["gpu"] == deployment["gpu"])
    kernels.append(_host_row(totals, settings["tier"], gpu_power["idle_w"] + gpu_power["active_w"]))
    power_w = _limit_power(kernels, total, gpu_power, settings["power_limit_w"])
    for kernel in kernels:
        kernel["shape"] = {name: value for name, value in (kernel["shape"] or {}).items() if value is not None}
        kernel["share"] = kernel["count"] * kernel["latency_us"] / total
        kernel["loss_us"] = kernel["count"] * (kernel["latency_us"] - kernel["roofline_us"])
        kernel["loss_share"] = kernel["loss_us"] / total
    memory_plan = session.table("memory_plan").to_pylist()[0]
    memory_plan.pop("deployment_id")
    session.give("kernel_evidence", evidence)
    tiers = session.table("deployment_tiers").to_pylist()[0]
    gpu_sentences += danger_sentences(in_danger(evidence, lambda: session.table("eta_portability")))
    return {
        "model": deployment["model"],
        "gpu": deployment["gpu"],
        "phase": phase,
        "tokens": shape["tokens"],
        "sequences": shape["sampled"],
        **{name: totals[name] for name in ("total_us", "p05_us", "p95_us", "gpu_us", "host_us")},
        # of one GPU
        "energy_mj": power_w * total / 1e3,
        "power_w": {
            end: min(power_w * factor, gpu_power["limit_w"])
            for end, factor in _interval_factors(gpu_power["power_log_half"]).items()
        },
        **{name: tiers[name] for name in ("tier", "measured_share", "not_measured")},
        "evidence": session.table("deployment_evidence").drop_columns(["deployment_id"]).to_pylist(),
        "kernels": kernels,
        "memory": memory_plan,
        "settings": settings,
        "cliff": _cliff(session, normalised, settings, shape, total),
        "assumed": gpu_sentences + _assumed(session, shape, memory_plan, settings),
    }


def _check_lengths(phase: str, sizes: dict[str, Any], tokens: int, max_model_len: int) -> None:
    """Raise InvalidInput for a sequence longer than max_model_len, or a step above LARGEST_STEP_TOKENS."""
    longest = (sizes["context_len"] or 0) + (sizes["input_len"] or 1 if phase == "prefill" else 1)
    if longest > max_model_len or (phase == "mixed" and sizes["input_len"] > max_model_len):
        raise InvalidInput(
            f"the step has a sequence of {max(longest, sizes['input_len'] or 0):,} tokens, more than "
            f"max_model_len {max_model_len:,}; use shorter sequences."
        )
    if tokens > LARGEST_STEP_TOKENS:
        raise InvalidInput(f"the step has {tokens} tokens; use at most {LARGEST_STEP_TOKENS}.")


def _limit_power(kernels: list[dict[str, Any]], total_us: float, power: dict[str, Any], limit_w: float | None) -> float:
    """Return the mean power of a step within the board's limit, watts; scales the energy of ``kernels`` in place.

    ``power``: the GPU's row of ``gpu_power``; ``limit_w``: the deployment's power limit, None: the board's.
    """
    from kernelsight.kernels.energy import held

    free_w = 1e3 * sum(kernel["count"] * kernel["energy_mj"] for kernel in kernels) / total_us
    power_w = float(held(free_w, min(power["cap_w"], limit_w or math.inf), power["cap_sharpness"]))
    for kernel in kernels:
        kernel["energy_mj"] *= power_w / free_w
    return power_w


def _cliff(
    session: Session, flags: dict[str, Any], settings: dict[str, Any], shape: dict[str, Any], total_us: float
) -> str | None:
    """Return the sentence on a decode batch above the largest CUDA graph; None: wider graphs gain too little."""
    batch, largest = shape["decode_requests"], settings["graph_max_tokens"]
    if shape["prefill_requests"] or not largest or batch <= largest or settings["num_speculative_tokens"]:
        return None
    with session.fork() as fork:
        wider = deployment_row(resolve_names(fork, flags | {"max_cudagraph_capture_size": graphs_for(batch)}))
        fork.give("deployments", [wider])
        fork.give("step_shapes", [{"deployment_id": wider["deployment_id"], **shape}])
        (totals,) = fork.table("step_totals").to_pylist()
    factor = total_us / totals["total_us"]
    if factor < LEAST_FACTOR:
        return None
    return graphs_end(largest, f"{batch:,} sequences exceed", batch, "this step", factor)


def _size(name: str, value: Any) -> int | None:
    """Return a size of a step as an integer, or None; InvalidInput: it is no whole number, or too small."""
    if value is None:
        return None
    smallest = 0 if name == "context_len" else 1
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or value != value // 1 or value < smallest:
        raise InvalidInput(f"--{name.replace('_', '-')} is {value!r}; give a whole number of at least {smallest}.")
    return int(value)


def _interval_factors(log_half: float) -> dict[str, float]:
    """Return the factors of a mean, and of the low and high end of its 90 % interval; ``log_half``: its half width."""
    return {"mean": 1.0, "low": math.exp(-log_half), "high": math.exp(log_half)}


def _host_row(totals: dict[str, Any], tier: str, active_w: float) -> dict[str, Any]:
    """Return exposed host time as a row of kernels; a GPU draws ``active_w`` in it, watts."""
    host = totals["host_us"]
    return {
        "family": "host",
        "name": "host",
        "call": "host",
        "count": 1,
        "shape": {},
        "math": None,
        "format": None,
        "flops": 0.0,
        "bytes": 0.0,
        "roofline_us": 0.0,
        "bound": "host",
        "eta": None,
        "latency_us": host,
        "p05_us": totals["host_p05_us"],
        "p95_us": totals["host_p95_us"],
        "tier": tier,
        **dict.fromkeys(("implementation", "measured_version")),
        "evidence": "host_settings",
        "energy_mj": host * active_w / 1e3,
    }


def _assumed(
    session: Session, shape: dict[str, Any], memory_plan: dict[str, Any], settings: dict[str, Any]
) -> list[str]:
    """Return the assumptions that apply to one step, and which limits of the engine it exceeds, as sentences."""
    sentences = [
        row["sentence"]
        for row in session.table("assumptions").to_pylist()
        if row["subject"] not in ("prefix caching", "data parallel", "pipeline")
    ]
    if shape["prefill_requests"] and shape["decode_requests"]:
        sentences.append("the chunk completes its prompt, so one token is sampled for it")
    kv_tokens = shape["decode_requests"] * ((shape["decode_context"] or 0) + 1) + shape["prefill_requests"] * (
        shape["prefill_cached"] + shape["prefill_tokens"]
    )
    if kv_tokens > memory_plan["kv_cache_tokens"]:
        sentences.append(
            f"the step needs {kv_tokens:,} tokens of KV cache, but only {memory_plan['kv_cache_tokens']:,} fit: the "
            "engine could not run it"
        )
    for limit, size, what in (
        ("max_num_seqs", shape["sampled"], "sequences"),
        ("max_num_batched_tokens", shape["tokens"], "new tokens"),
    ):
        if size > settings[limit]:
            sentences.append(
                f"the step has {size:,} {what}, more than {limit} {settings[limit]:,}: the engine would take several"
            )
    return sentences


def predict_calls(session: Session, path: str, gpu: str, tier: str | None) -> pa.Table:
    """Return ``kernel_latencies`` rows of a Parquet file of kernel calls on one GPU, in the file's order.

    ``path``: a file that :func:`read_calls` accepts; ``tier``: None: auto. Where it states no engine, intervals hold
    for calls that any harness times. InvalidInput, UnknownName, ContractBroken: as :func:`read_calls` and
    :func:`call_latencies`.
    """
    from kernelsight.files.parquet_files import read_schema
    from kernelsight.forward.call_files import read_calls

    gpu = resolve_names(session, {"gpu": gpu})["gpu"]
    calls = read_calls(Path(path), gpu, session.graph.known("kernel_calls"))
    is_engine = "engine" in read_schema(Path(path), InvalidInput).names
    return latencies_of_calls(session, calls, tier, is_engine)


def latencies_of_calls(session: Session, calls: pa.Table, tier: str | None, is_engine: bool) -> pa.Table:
    """Return ``kernel_latencies`` rows of ``kernel_calls`` rows; ``is_engine``: an engine runs them, no harness."""
    from kernelsight.kernels.calls import call_latencies
    from kernelsight.kernels.intervals import HARNESS

    names = ("gpus", "fabrics", "eta_coefficients", "kernel_implementations", "dies", "gpu_power")
    return call_latencies(calls, tier or "auto", None if is_engine else HARNESS, *map(session.table, names))
