"""The flags of a scenario, each declared once: for the command line, for grids and for ``what_if``.

A flag's name is a column of a grid; its kind tells which values it takes; ``column`` is its column of ``deployments``.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple

from kernelsight.errors import InvalidInput

LARGEST_PARALLEL_SIZE = 1024
LARGEST_WHOLE_NUMBER = 2**53
# the simulated clock counts nanoseconds in 64 bits, which is room for 290 years
LONGEST_LOAD_S = 1e9
TIERS = ("auto", "cross-generation", "target-measured", "roofline")


class Flag(NamedTuple):
    """One flag. ``kind``: text, whole, positive, share, share_or_none, not_negative, span, word, switch, yes."""

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
        """The words of the command line that set it."""
        return self.spellings or ("--" + self.name.replace("_", "-"),)


def _of_deployment(name: str, kind: str = "text", help: str | None = None, metavar: str | None = None, **more) -> Flag:
    return Flag(name, kind, help, metavar, **{"column": name, **more})


def _parallel(short: str, name: str, column: str | None, prefix: str = "") -> Flag:
    long = f"--{prefix}{name}-parallel-size"
    return Flag(
        long.lstrip("-").replace("-", "_"),
        "whole",
        metavar="N",
        column=column,
        most=LARGEST_PARALLEL_SIZE,
        spellings=(f"--{prefix}{short}" if prefix else f"-{short}", long),
    )


DEPLOYMENT = (
    _of_deployment("model", help="catalogue name, Hugging Face identifier, or path of a config.json"),
    _of_deployment("gpu", help="catalogue name, or a row of --gpus"),
    _parallel("tp", "tensor", "tp"),
    _parallel("pp", "pipeline", "pp"),
    _parallel("dp", "data", "dp"),
    Flag("enable_expert_parallel", "yes", "spread experts over all tp x dp GPUs"),
    _of_deployment("engine", choices=("vllm", "sglang", "trtllm")),
    _of_deployment("engine_version", "version", metavar="V"),
    _of_deployment("dtype", choices=("auto", "bf16", "bfloat16", "fp16", "float16", "half")),
    _of_deployment("kv_cache_dtype", choices=("auto", "bf16", "bfloat16", "fp16", "float16", "fp8", "fp8_e4m3")),
    _of_deployment(
        "quantization", help="one of the table quantizations; left open: as the checkpoint's config says", metavar="Q"
    ),
    _of_deployment(
        "moe_backend",
        help="kernel of routed experts (kernel_implementations); left open: the one that the engine's sweep ran most",
        metavar="KERNEL",
    ),
    _of_deployment("tier", help="which kernel model answers", choices=TIERS),
)
LIMITS = (
    _of_deployment("max_model_len", "whole", metavar="N"),
    _of_deployment("max_num_seqs", "whole", metavar="N"),
    _of_deployment("max_num_batched_tokens", "whole", metavar="N"),
    _of_deployment("long_prefill_token_threshold", "whole", metavar="N", least=0),
    _of_deployment("block_size", "whole", metavar="N"),
    _of_deployment("gpu_memory_utilization", "share", metavar="SHARE"),
    _of_deployment("kv_cache_tokens", "whole", "state the KV capacity instead of deriving it", "N"),
    _of_deployment("enforce_eager", "yes", "no CUDA graphs"),
    _of_deployment("enable_chunked_prefill", "switch", "cut prompts to the token budget"),
    _of_deployment("enable_prefix_caching", "switch", "share blocks by prefix"),
    _of_deployment("async_scheduling", "switch", "prepare step n+1 while n runs"),
)
POLICIES = (
    _of_deployment(
        "scheduling",
        "word",
        "static: a batch is formed, prefilled and decoded to its end before the next one",
        choices=("continuous", "static"),
    ),
    _of_deployment(
        "prefill_policy",
        "word",
        "mixed: prompts and decodes share a step (SGLang's --enable-mixed-chunk); prefill_first: one or the other",
        choices=("mixed", "prefill_first"),
    ),
    _of_deployment(
        "scheduling_policy",
        "word",
        "order of the queue and of preemption; priority: the lower, the earlier",
        choices=("fcfs", "priority"),
    ),
    _of_deployment(
        "capacity_policy",
        "word",
        "KV blocks that an admission needs: of its first chunk; of prompt and answer; of an estimate (SGLang)",
        choices=("max_utilization", "guaranteed_no_evict", "new_token_ratio"),
    ),
    _of_deployment(
        "preemption_policy",
        "word",
        "where KV blocks run short: the newest request; who has generated the fewest tokens (SGLang)",
        choices=("newest", "fewest_generated"),
    ),
    _of_deployment(
        "schedule_conservativeness", "not_negative", "factor on the first estimate, 0.7 of each answer", "X"
    ),
    _of_deployment(
        "batch_wait_timeout_iters",
        "whole",
        "hold prompts back beside decodes for up to N steps (TensorRT-LLM)",
        "N",
        least=0,
    ),
    _of_deployment(
        "batch_wait_timeout_ms",
        "span",
        "a look for new requests lasts so long, beside every step (TensorRT-LLM)",
        "MS",
        least=0.0,
    ),
    _of_deployment(
        "batch_wait_max_tokens_ratio",
        "share_or_none",
        "until the step has this share of max-num-batched-tokens",
        "SHARE",
    ),
    _of_deployment("scheduler_recv_interval", "whole", "look for new requests every N decode steps (SGLang)", "N"),
    _of_deployment("max_num_partial_prefills", "whole", "prompts computed in part at once; 0: no limit", "N", least=0),
    _of_deployment(
        "max_long_partial_prefills",
        "whole",
        "of them, prompts longer than long-prefill-token-threshold: shorter ones pass those that wait",
        "N",
        least=0,
    ),
)
# of speculative decoding
SPECULATION = (
    _of_deployment("num_speculative_tokens", "whole", "tokens proposed for each sequence in each step", "K", most=64),
    _of_deployment(
        "draft_acceptance_rate",
        "share_or_none",
        "probability that a proposed token is accepted, where those before it were",
        "SHARE",
    ),
    _of_deployment(
        "speculative_method",
        "word",
        "who proposes: the model's multi-token-prediction layer (left open), another model, n-grams of the prompt",
        choices=("mtp", "draft_model", "ngram"),
    ),
    Flag("speculative_model", help="the model that proposes, on the same GPUs", metavar="M"),
)
# no word of the command line: it is what enable_expert_parallel comes to
EXPERT_PARALLEL = (
    Flag("expert_parallel_size", "whole", column="ep", most=LARGEST_PARALLEL_SIZE),
    Flag("prefill_expert_parallel_size", "whole", most=LARGEST_PARALLEL_SIZE),
)
# of the engines that compute prompts for others; left open: as those that decode
PREFILL = (
    Flag("prefill_gpu", metavar="G", help="of the engines that compute prompts; all left open: the same"),
    _parallel("tp", "tensor", None, "prefill-"),
    _parallel("pp", "pipeline", None, "prefill-"),
    _parallel("dp", "data", None, "prefill-"),
    Flag("prefill_max_num_seqs", "whole", metavar="N"),
    Flag("prefill_max_num_batched_tokens", "whole", metavar="N"),
    Flag("prefill_gpu_memory_utilization", "share", metavar="SHARE"),
    Flag("prefill_kv_cache_tokens", "whole", metavar="N"),
)
# of a scenario on two deployments: one that computes prompts, and one that decodes
POOLS = (
    Flag(
        "prefill_replicas",
        "whole",
        "so many other engines compute the prompts, and send the KV on",
        "N",
        most=LARGEST_PARALLEL_SIZE,
    ),
    Flag("decode_replicas", "whole", "engines that decode; 1", "N", most=LARGEST_PARALLEL_SIZE),
    Flag(
        "kv_transfer_fabric", help="row of fabrics that the KV goes over, one port a GPU; infiniband_ndr", metavar="F"
    ),
)
LOAD = (
    Flag(
        "trace",
        help="Azure, Mooncake or BurstGPT trace, or JSONL, CSV, Parquet with arrival_s, prompt_tokens, output_tokens",
        metavar="FILE",
    ),
    Flag("request_rate", "positive", "open loop: requests per second", "R"),
    Flag("burstiness", "positive", "shape of the gamma distribution of the gaps; 1 is Poisson", "K"),
    Flag(
        "ramp_up_strategy",
        "word",
        "open loop: the rate goes from its start to its end, request by request",
        choices=("linear", "exponential"),
    ),
    Flag("ramp_up_start_rps", "positive", "requests per second at the first request", "R"),
    Flag("ramp_up_end_rps", "positive", "requests per second at the last request", "R"),
    Flag("max_concurrency", "whole", "closed loop: requests in flight at the client", "C"),
    Flag("num_prompts", "whole", "requests, or how many of the trace", "N"),
    Flag("num_warmups", "whole", "copies of the first request that end before the others begin", "N", least=0),
    Flag("num_priorities", "whole", "priorities from 0, the first, in equal parts of the requests", "N"),
    Flag("num_turns", "whole", "requests of a session, each after the one before it", "N"),
    Flag(
        "think_time_s",
        "span",
        "seconds between one turn and the next",
        "S",
        least=0.0,
        spellings=("--think-time",),
    ),
    Flag("seed", "whole", metavar="S", least=0),
)
LENGTHS = (
    Flag("input_len", "whole", "tokens of a prompt", "L", spellings=("--input-len", "--isl")),
    Flag(
        "output_len",
        "whole",
        "tokens that are generated, as with vLLM's --ignore-eos",
        "O",
        spellings=("--output-len", "--osl"),
    ),
    Flag("range_ratio", "share", "lengths uniform in [LOW, 1] x nominal", "LOW"),
    Flag(
        "length_distribution",
        "word",
        "left open: as the flags beside it say",
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
        help="empirical: pairs of lengths from a trace file, drawn with replacement",
        metavar="FILE",
    ),
    Flag(
        "prefix_len",
        "whole",
        "tokens of a shared prefix, before the L tokens of each prompt",
        "P",
        least=0,
        spellings=("--prefix-len", "--random-prefix-len"),
    ),
    Flag("num_prefixes", "whole", "different prefixes; left open: 1", "N"),
)
ROUTER = (
    Flag(
        "router",
        "word",
        "in turn (left open); to the fewest requests that wait or run; to where the prefix was sent before",
        choices=("round_robin", "least_loaded", "prefix_aware"),
    ),
    Flag("router_cache_threshold", "share_or_none", "prefix_aware: of the prompt, to count; 0.5", "SHARE"),
    Flag(
        "router_balance_abs_threshold",
        "whole",
        "prefix_aware: requests by which loads may differ before the least loaded replica is taken; 32",
        "N",
        least=0,
    ),
    Flag("router_balance_rel_threshold", "span", "prefix_aware: and as a factor; 1.0001", "FACTOR", least=1.0),
)
# columns of scenarios that the command line spells otherwise (--goodput, --keep)
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
        KEPT,
    )
    for flag in group
}
# flag: column of ``deployments``
DEPLOYMENT_FLAGS = {flag.name: flag.column for flag in FLAGS.values() if flag.column}
# flags that are a deployment of their own: the model that proposes tokens
DRAFT_FLAGS = tuple(flag.name for flag in SPECULATION if not flag.column)
# flag: the flag of the engines that decode which it stands for where others compute the prompts
PREFILL_FLAGS = {
    name: own for name in FLAGS if (own := name.removeprefix("prefill_")) != name and own in DEPLOYMENT_FLAGS
}
POOL_FLAGS = tuple(flag.name for flag in POOLS)
LOAD_FLAGS = tuple(flag.name for group in (LOAD, LENGTHS, ROUTER, KEPT) for flag in group)
# spelled so by other tools, or shorter
ALIASES = {
    alias: flag.name
    for flag in FLAGS.values()
    for option in flag.options
    if (alias := option.lstrip("-").replace("-", "_")) != flag.name
} | {"ep": "expert_parallel_size"}


# kind: whether a value is inside, and what to give instead
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
    """Return a flag's value in its own type, so that 8 and 8.0 name the same scenario; InvalidInput tells the range."""
    flag = FLAGS[name]
    if value == "":
        raise InvalidInput(f"{name} is empty; give a value, or leave it out.")
    if isinstance(value, str) and (flag.kind == "whole" or flag.kind in RANGES):
        value = _read_number(value)  # one word in a column of a CSV makes texts of its numbers
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
    if flag.kind == "version" and not any(letter.isdigit() for letter in str(value)):
        raise InvalidInput(f"{name} is {value!r}; give a version such as 0.11.0, or leave it out.")
    if flag.kind == "word" and value not in flag.choices:
        raise InvalidInput(f"{name} is {value!r}; give one of {', '.join(flag.choices)}.")
    return value


def _read_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
