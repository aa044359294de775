"""The flags of a scenario, each declared once: for the command line, for grids and for ``what_if``.

A flag's name is a column of a grid; its kind defines the values it takes; ``column`` is its column of ``deployments``.
"""

from __future__ import annotations

import math
import numbers
import os
import re
import reprlib
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from kernelsight.dataflow.numbers import read_number
from kernelsight.errors import InvalidInput

LARGEST_PARALLEL_SIZE = 1024
LARGEST_WHOLE_NUMBER = 2**53
# the simulated clock counts nanoseconds in 64 bits, enough for 290 years
LONGEST_LOAD_S = 1e9
# PEP 440 as engines use it: 0.11.1.dev12+g1a2b3c, 1.0.0rc3, 0.5.6.post2, v0.8.5-rc.1; each number fits 64 bits
VERSION = re.compile(
    r"v?\d{1,18}(\.\d{1,18})*([-._]?(alpha|beta|preview|pre|post|dev|rev|rc|a|b|c|r)[-._]?\d{0,18})*(\+[a-z0-9._-]+)?",
    re.I,
)
TIERS = ("auto", "cross-generation", "points-measured", "target-measured", "roofline")


ENGINES = ("vllm", "sglang", "trtllm")


class Flag(NamedTuple):
    """One flag. ``kind``: text, whole, positive, share, share_or_none, not_negative, span, word, switch, yes, tiers."""

    name: str
    kind: str = "text"
    help: str | None = None
    metavar: str | None = None
    column: str | None = None
    least: float = 1
    most: float = LARGEST_WHOLE_NUMBER
    choices: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """The command-line options that set it."""
        return self.spellings or ("--" + self.name.replace("_", "-"),)


def _of_deployment(name: str, kind: str = "text", help: str | None = None, metavar: str | None = None, **more) -> Flag:
    return Flag(name, kind, help, metavar, **{"column": name, **more})


def _parallel(short: str, name: str, column: str | None, prefix: str = "") -> Flag:
    long = f"--{prefix}{name}-parallel-size"
    return Flag(
        long.lstrip("-").replace("-", "_"),
        "whole",
        f"{name}-parallel size" + (" of the prefill replicas" if prefix else " (default: 1)"),
        "N",
        column=column,
        most=LARGEST_PARALLEL_SIZE,
        spellings=(f"--{prefix}{short}", long) if prefix else (f"-{short}", f"--{short}", long),
    )


DEPLOYMENT = (
    Flag(
        "launch",
        help="launch line of vLLM, SGLang or TensorRT-LLM in quotes, or @FILE with one (shell script, docker run, "
        "Kubernetes manifest): stands for the flags below; flags beside it have precedence",
        metavar="LINE",
    ),
    Flag(
        "read_launch_files",
        "yes",
        "read the files of options that the launch line names, such as --config; without this flag none is read",
    ),
    _of_deployment("model", help="catalogue name, Hugging Face identifier, or path to a config.json"),
    Flag(
        "model_like",
        help="model of the same shape and formats, for a private model without a config.json",
        metavar="M",
    ),
    Flag(
        "max_position_embeddings",
        "whole",
        help="positions that the model's RoPE reaches, such as with YaRN (default: as in the model's config)",
        metavar="N",
    ),
    _of_deployment(
        "gpu", help="catalogue name, name in nvidia-smi or of a cloud instance, or a GPU of the --gpus file"
    ),
    _parallel("tp", "tensor", "tp"),
    _parallel("pp", "pipeline", "pp"),
    _parallel("dp", "data", "dp"),
    Flag("enable_expert_parallel", "yes", "spread experts over all tp x dp GPUs"),
    _of_deployment("engine", help="serving engine (default: vllm)", choices=ENGINES),
    _of_deployment("engine_version", "version", "version of the engine (default: newest known)", "V"),
    _of_deployment(
        "dtype",
        help="type of unquantised weights and activations",
        choices=("auto", "bf16", "bfloat16", "fp16", "float16", "half"),
    ),
    _of_deployment(
        "kv_cache_dtype",
        help="type of the KV cache",
        choices=("auto", "bf16", "bfloat16", "fp16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"),
    ),
    _of_deployment(
        "quantization", help="a row of the table quantizations (default: as in the checkpoint's config)", metavar="Q"
    ),
    _of_deployment(
        "moe_backend",
        help="kernel of the routed experts, from the table kernel_implementations (default: the one that the engine's "
        "kernel sweeps use most)",
        metavar="KERNEL",
    ),
    _of_deployment(
        "sampling",
        help="how tokens are chosen: greedy (default), random, or top_p, after a top-p or top-k filter, for which vLLM "
        "0.11.1 to 0.16 sorts all logits",
        choices=("greedy", "random", "top_p"),
    ),
    _of_deployment(
        "api_server_count",
        "whole",
        "processes of the front end, which detokenise and stream side by side (vLLM; default: 1)",
        "N",
        most=LARGEST_PARALLEL_SIZE,
    ),
    _of_deployment("tier", help="kernel latency model to use", choices=TIERS),
    _of_deployment(
        "power_limit_w",
        "positive",
        "power limit of each GPU: its clock falls until the power fits (default: that of the board)",
        "W",
        spellings=("--power-limit",),
    ),
)
LIMITS = (
    _of_deployment("max_model_len", "whole", "longest sequence, prompt and output tokens", "N"),
    _of_deployment("max_num_seqs", "whole", "maximum number of sequences in a batch", "N"),
    _of_deployment("max_num_batched_tokens", "whole", "maximum number of tokens in a step", "N"),
    _of_deployment(
        "long_prefill_token_threshold",
        "whole",
        "largest prefill chunk of one prompt; 0: the token budget",
        "N",
        least=0,
    ),
    _of_deployment("block_size", "whole", "tokens per KV cache block", "N"),
    _of_deployment("gpu_memory_utilization", "share", "share of GPU memory the engine may use", "SHARE"),
    _of_deployment("kv_cache_tokens", "whole", "KV cache capacity in tokens (default: derived from GPU memory)", "N"),
    _of_deployment(
        "kv_tier",
        "tiers",
        "KV tier behind the GPU's prefix cache, of each engine: host:200GiB, disk:2TiB or store:unlimited, with "
        ":read=GB/s, :write=GB/s, :latency=us (repeatable, or joined by +); none",
        "TIER",
    ),
    _of_deployment(
        "kv_write_policy",
        "word",
        "when KV blocks are written to the tiers: as they are computed, as the GPU's cache evicts them, or likewise "
        "and moved (default: as the engine does)",
        choices=("through", "back", "on_eviction"),
    ),
    _of_deployment("enforce_eager", "yes", "run without CUDA graphs"),
    _of_deployment(
        "max_cudagraph_capture_size", "whole", "largest decode batch that runs as a CUDA graph, in tokens", "N"
    ),
    _of_deployment("enable_chunked_prefill", "switch", "split prompts into chunks that fit the token budget"),
    _of_deployment("enable_prefix_caching", "switch", "reuse KV cache blocks of shared prompt prefixes"),
    _of_deployment("async_scheduling", "switch", "schedule the next step while the current one runs"),
)
POLICIES = (
    _of_deployment(
        "scheduling",
        "word",
        "continuous batching, or static: each batch finishes before the next one starts",
        choices=("continuous", "static"),
    ),
    _of_deployment(
        "prefill_policy",
        "word",
        "mixed: prefill and decode share a step (SGLang: --enable-mixed-chunk); prefill_first: steps with prefill "
        "only or decode only",
        choices=("mixed", "prefill_first"),
    ),
    _of_deployment(
        "scheduling_policy",
        "word",
        "queue and preemption order; priority: requests with a lower value first",
        choices=("fcfs", "priority"),
    ),
    _of_deployment(
        "capacity_policy",
        "word",
        "KV blocks required to admit a request: first chunk; whole prompt (vLLM); full prompt and output; estimated "
        "output (SGLang)",
        choices=("max_utilization", "prompt_fits", "guaranteed_no_evict", "new_token_ratio"),
    ),
    _of_deployment(
        "preemption_policy",
        "word",
        "preemption victim when KV blocks run out: newest request, or fewest generated tokens (SGLang)",
        choices=("newest", "fewest_generated"),
    ),
    _of_deployment(
        "schedule_conservativeness",
        "not_negative",
        "new_token_ratio: factor on the initial estimate of 0.7 of each output (SGLang)",
        "X",
    ),
    _of_deployment(
        "batch_wait_timeout_iters",
        "whole",
        "delay prefills for up to N steps while decodes run (TensorRT-LLM)",
        "N",
        least=0,
    ),
    _of_deployment(
        "batch_wait_timeout_ms",
        "span",
        "time to wait for new requests in each step (TensorRT-LLM)",
        "MS",
        least=0.0,
    ),
    _of_deployment(
        "batch_wait_max_tokens_ratio",
        "share_or_none",
        "stop delaying prefills once the step holds this share of max-num-batched-tokens (TensorRT-LLM)",
        "SHARE",
    ),
    _of_deployment("scheduler_recv_interval", "whole", "poll for new requests every N decode steps (SGLang)", "N"),
    _of_deployment(
        "max_num_partial_prefills", "whole", "maximum number of concurrent partial prefills; 0: no limit", "N", least=0
    ),
    _of_deployment(
        "max_long_partial_prefills",
        "whole",
        "maximum number of them longer than long-prefill-token-threshold; shorter prompts may overtake waiting ones",
        "N",
        least=0,
    ),
    _of_deployment(
        "expert_exchange",
        "word",
        "how tokens reach the experts of other data-parallel ranks: gathered, or sent from rank to rank (DeepEP, pplx)",
        choices=("all_gather", "all_to_all"),
    ),
    _of_deployment(
        "attention_dp_balance",
        "switch",
        "data-parallel ranks that share experts hold prompts back until every rank has one (TensorRT-LLM)",
    ),
    _of_deployment(
        "attention_dp_timeout_iters",
        "whole",
        "with attention-dp-balance: do not wait longer than N steps for a rank without prompts (TensorRT-LLM)",
        "N",
        least=0,
    ),
    _of_deployment(
        "attention_dp_batching_wait_iters",
        "whole",
        "with attention-dp-balance: wait N steps for more prompts once every rank has one (TensorRT-LLM)",
        "N",
        least=0,
    ),
)

SPECULATION = (
    _of_deployment("num_speculative_tokens", "whole", "draft tokens per sequence and step", "K", most=64),
    _of_deployment(
        "draft_acceptance_rate",
        "share_or_none",
        "probability that a draft token is accepted, given that all earlier ones were (default: that of the method in "
        "the table draft_acceptance_rates)",
        "SHARE",
    ),
    _of_deployment(
        "speculative_method",
        "word",
        "source of draft tokens: the model's multi-token-prediction layer (default), a draft model, or prompt n-grams",
        choices=("mtp", "draft_model", "ngram"),
    ),
    Flag("speculative_model", help="draft model, run on the same GPUs", metavar="M"),
)
# not on the command line: enable_expert_parallel sets it
EXPERT_PARALLEL = (
    Flag("expert_parallel_size", "whole", column="ep", most=LARGEST_PARALLEL_SIZE),
    Flag("prefill_expert_parallel_size", "whole", most=LARGEST_PARALLEL_SIZE),
)
# prefill pool of P/D disaggregation; unset flags take the decode pool's values
PREFILL = (
    Flag(
        "prefill_gpu", metavar="G", help="GPU of the prefill replicas (default of every --prefill flag: as for decode)"
    ),
    _parallel("tp", "tensor", None, "prefill-"),
    _parallel("pp", "pipeline", None, "prefill-"),
    _parallel("dp", "data", None, "prefill-"),
    Flag("prefill_max_num_seqs", "whole", "--max-num-seqs of the prefill replicas", "N"),
    Flag("prefill_max_num_batched_tokens", "whole", "--max-num-batched-tokens of the prefill replicas", "N"),
    Flag("prefill_gpu_memory_utilization", "share", "--gpu-memory-utilization of the prefill replicas", "SHARE"),
    Flag("prefill_kv_cache_tokens", "whole", "--kv-cache-tokens of the prefill replicas", "N"),
)
# of a scenario on two deployments: prefill and decode
POOLS = (
    Flag(
        "prefill_replicas",
        "whole",
        "number of prefill replicas (P/D disaggregation)",
        "N",
        most=LARGEST_PARALLEL_SIZE,
    ),
    Flag("decode_replicas", "whole", "number of decode replicas (default: 1)", "N", most=LARGEST_PARALLEL_SIZE),
    Flag(
        "kv_transfer_fabric",
        help="fabric of the KV transfer, a row of the table fabrics, one port per GPU (default: infiniband_ndr)",
        metavar="F",
    ),
)
LOAD = (
    Flag(
        "trace",
        help="Azure, Mooncake or BurstGPT trace; JSONL, CSV or Parquet with arrival_s, prompt_tokens, output_tokens; "
        "or recorded conversations: a JSON file, or a folder of them",
        metavar="FILE",
    ),
    Flag("request_rate", "positive", "open loop: requests (sessions) per second; inf: all at once", "R"),
    Flag("burstiness", "positive", "shape of the gamma distribution of inter-arrival times; 1: Poisson", "K"),
    Flag(
        "ramp_up_strategy",
        "word",
        "open loop: change the rate with each request, from --ramp-up-start-rps to --ramp-up-end-rps",
        choices=("linear", "exponential"),
    ),
    Flag("ramp_up_start_rps", "positive", "requests per second at the first request", "R"),
    Flag("ramp_up_end_rps", "positive", "requests per second at the last request", "R"),
    Flag(
        "max_concurrency",
        "whole",
        "closed loop: maximum number of requests in flight, or of sessions: the next begins when one has ended",
        "C",
        spellings=("--max-concurrency", "--sessions"),
    ),
    Flag("num_prompts", "whole", "number of requests, or the first N of the trace", "N"),
    Flag(
        "num_warmups",
        "whole",
        "warm-up requests beside the measured ones: copies of the first, sent before them (any number, as with vLLM)",
        "N",
        least=0,
    ),
    Flag(
        "num_priorities",
        "whole",
        "priority levels, 0 served first, assigned at random in equal parts; with --scheduling-policy priority",
        "N",
    ),
    Flag("num_turns", "whole", "turns per conversation; each request starts after the previous one finishes", "N"),
    Flag(
        "think_time_s",
        "span",
        "seconds between the turns of a conversation",
        "S",
        least=0.0,
        spellings=("--think-time",),
    ),
    Flag(
        "think_time_limit_s",
        "span",
        "longest pause before a request that waits for others; longer ones of a trace are cut to it",
        "S",
        least=0.0,
        spellings=("--think-time-limit",),
    ),
    Flag(
        "shared_prefix",
        "yes",
        "recorded conversations: the blocks of tools and system prompt are common to all (default: to those that state "
        "equal numbers of tokens)",
    ),
    Flag("seed", "whole", "seed of arrivals and lengths", "S", least=0),
)
LENGTHS = (
    Flag("input_len", "whole", "prompt tokens per request", "L", spellings=("--input-len", "--isl")),
    Flag(
        "output_len",
        "whole",
        "output tokens per request, as with vLLM's --ignore-eos",
        "O",
        spellings=("--output-len", "--osl"),
    ),
    Flag("range_ratio", "share", "draw lengths uniformly from [LOW, 1] x nominal length", "LOW"),
    Flag(
        "length_distribution",
        "word",
        "distribution of prompt and output lengths (default: set by the other length flags)",
        choices=("fixed", "uniform", "lognormal", "empirical"),
    ),
    Flag(
        "input_len_cv",
        "positive",
        "lognormal prompt lengths: standard deviation / mean, around --input-len",
        "CV",
    ),
    Flag(
        "output_len_cv",
        "positive",
        "lognormal output lengths: standard deviation / mean, around --output-len",
        "CV",
    ),
    Flag(
        "lengths_from",
        help="empirical: (prompt, output) length pairs drawn with replacement from a trace file",
        metavar="FILE",
    ),
    Flag(
        "prefix_len",
        "whole",
        "tokens of a shared prefix, added to each prompt",
        "P",
        least=0,
        spellings=("--prefix-len", "--random-prefix-len"),
    ),
    Flag("num_prefixes", "whole", "number of distinct prefixes (default: 1)", "N"),
)
# of the place where the servers stand
SITE = (
    Flag(
        "host_power_w",
        "span",
        "power of the server beside its GPUs, for each GPU: CPUs, memory, network, fans (default: not counted)",
        "W",
        least=0.0,
        spellings=("--host-power",),
    ),
    Flag("pue", "span", "power usage effectiveness, in carbon and the cost of energy (default: 1)", "X", least=1.0),
    Flag(
        "carbon_intensity_g_per_kwh",
        "span",
        "CO2 equivalent of a kilowatt-hour, in grams",
        "G",
        least=0.0,
        spellings=("--carbon-intensity",),
    ),
)
ROUTER = (
    Flag(
        "replicas",
        "whole",
        "copies of the deployment, each with GPUs of its own (default: 1); prefill and decode replicas of P/D "
        "disaggregation have flags of their own",
        "N",
        most=LARGEST_PARALLEL_SIZE,
    ),
    Flag(
        "router",
        "word",
        "round_robin (default, but for ranks that share experts, where it is the engine's); least_loaded: fewest "
        "waiting and running requests; prefix_aware: replica with the longest cached prefix; session_affinity: replica "
        "that the session began on; scored: highest sum of weighted scores, as llm-d's scheduler",
        choices=("round_robin", "least_loaded", "prefix_aware", "session_affinity", "scored"),
    ),
    Flag(
        "router_weights",
        "weights",
        "scored: weights of cached prefix, KV cache use, queue, running requests and load (default: "
        "prefix=3,kv_use=2,queue=2), and of a block in a KV tier against one on the GPU (tier=0.8)",
        "NAME=W,…",
    ),
    Flag(
        "router_cache_threshold",
        "share_or_none",
        "prefix_aware: least share of the prompt that must match (default: 0.5)",
        "SHARE",
    ),
    Flag(
        "router_balance_abs_threshold",
        "whole",
        "prefix_aware: load difference in requests above which the least loaded replica is used (default: 32)",
        "N",
        least=0,
    ),
    Flag(
        "router_balance_rel_threshold",
        "span",
        "prefix_aware: and load ratio above which it is used (default: 1.0001)",
        "FACTOR",
        least=1.0,
    ),
)
# columns of scenarios that other command-line options set (--goodput, --keep)
KEPT = (
    Flag("goodput_ttft_ms", "positive"),
    Flag("goodput_tpot_ms", "positive"),
    Flag("goodput_e2el_ms", "positive"),
)

FLAGS = {
    flag.name: flag
    for group in (
        DEPLOYMENT,
        LIMITS,
        POLICIES,
        SPECULATION,
        EXPERT_PARALLEL,
        PREFILL,
        POOLS,
        LOAD,
        LENGTHS,
        ROUTER,
        SITE,
        KEPT,
    )
    for flag in group
}
# flag: column of ``deployments``
DEPLOYMENT_FLAGS = {flag.name: flag.column for flag in FLAGS.values() if flag.column}
# flags that come before a deployment: they say what others are
OF_LAUNCH = ("launch", "read_launch_files")
SHORTHANDS = (*OF_LAUNCH, "model_like", "max_position_embeddings")
# flags that define a second deployment: the draft model
DRAFT_FLAGS = tuple(flag.name for flag in SPECULATION if not flag.column)
# prefill-pool flag -> decode-pool flag it overrides
PREFILL_FLAGS = {
    name: own for name in FLAGS if (own := name.removeprefix("prefill_")) != name and own in DEPLOYMENT_FLAGS
}
POOL_FLAGS = tuple(flag.name for flag in POOLS)
LOAD_FLAGS = tuple(flag.name for group in (LOAD, LENGTHS, ROUTER, SITE, KEPT) for flag in group)
# spellings of other tools, and short forms
ALIASES = {
    alias: flag.name
    for flag in FLAGS.values()
    for option in flag.options
    if (alias := option.lstrip("-").replace("-", "_")) != flag.name
} | {"ep": "expert_parallel_size"}


# kind -> (value is in range, description of the range)
RANGES: Mapping[str, tuple] = {
    "positive": (lambda value, flag: value > 0, lambda flag: "a finite number above 0"),
    "share": (lambda value, flag: 0 < value <= 1, lambda flag: "a number above 0 and at most 1"),
    "share_or_none": (lambda value, flag: 0 <= value <= 1, lambda flag: "a number from 0 to 1"),
    "not_negative": (lambda value, flag: value >= 0, lambda flag: "a finite number, 0 or more"),
    "span": (
        lambda value, flag: flag.least <= value <= LONGEST_LOAD_S,
        lambda flag: f"a number from {flag.least:g} to {LONGEST_LOAD_S:g}",
    ),
}


def checked(name: str, value: Any) -> Any:
    """Return a flag's value in its own type, so that 8 and 8.0 name the same scenario; InvalidInput gives the range."""
    # numbers of a grid come back in thousands of its rows; 0 is left out, because -0.0 equals it
    return _checked_number(name, value) if type(value) in (int, float) and value else _checked(name, value)


@lru_cache(maxsize=4096, typed=True)
def _checked_number(name: str, value: float) -> Any:
    return _checked(name, value)


def _checked(name: str, value: Any) -> Any:
    flag = FLAGS[name]
    if isinstance(value, Decimal) and value.is_finite():  # SQL's sums and literals: 64 as HUGEINT, 0.5
        value = int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if hasattr(value, "__len__") and not isinstance(value, str):
        raise InvalidInput(
            f"{name} is {reprlib.repr(value)}; one scenario takes one value, a grid of what_if takes lists."
        )
    if value == "":
        raise InvalidInput(f"{name} is empty; give a value, or leave it unset.")
    if isinstance(value, str) and (flag.kind == "whole" or flag.kind in RANGES):
        value = read_number(value)  # such as 16k; a CSV column with one non-number is read as text
    if flag.kind == "whole":
        if not _is_number(value) or value != math.floor(value) or not flag.least <= value <= flag.most:
            bound = f"of at least {flag.least}"
            if flag.most < LARGEST_WHOLE_NUMBER:
                bound = f"from {flag.least} to {flag.most}"
            raise InvalidInput(f"{name} is {value!r}; give a whole number {bound}.")
        return int(value)
    if flag.kind in RANGES:
        inside, what = RANGES[flag.kind]
        if not _is_number(value) or not inside(value, flag):
            raise InvalidInput(f"{name} is {value!r}; give {what(flag)}.")
        return float(value)
    if flag.kind == "tiers":
        from kernelsight.scenario.kv_tiers import parse_tiers, tiers_text

        return tiers_text(parse_tiers(value, name))
    if flag.kind == "weights":
        from kernelsight.scenario.router_weights import parse_weights, weights_text

        return weights_text(parse_weights(value, name))
    if flag.kind == "version" and not (isinstance(value, str) and VERSION.fullmatch(value)):
        raise InvalidInput(f"{name} is {value!r}; give a version such as 0.11.0, or leave it unset.")
    if flag.kind == "word" and value not in flag.choices:
        raise InvalidInput(f"{name} is {value!r}; give one of {', '.join(flag.choices)}.")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
