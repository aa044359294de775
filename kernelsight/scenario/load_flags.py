"""Flags of a scenario besides its deployment: P/D pools, load, lengths, router, and power and carbon of the site."""

from __future__ import annotations

from kernelsight.scenario.flag import LARGEST_PARALLEL_SIZE, Flag

# P/D disaggregation
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
    Flag(
        "concurrency_ramp_s",
        "span",
        "closed loop: seconds over which its users (or sessions) join, one after another at equal distances (default: "
        "the pauses of one conversation)",
        "S",
        least=0.0,
        spellings=("--concurrency-ramp", "--concurrency-ramp-duration"),
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
        "mean seconds between the turns of a conversation",
        "S",
        least=0.0,
        spellings=("--think-time",),
    ),
    Flag(
        "think_time_cv",
        "not_negative",
        "spread of think times: standard deviation / mean (default: 1, as TPC-C draws them; 0: all equal)",
        "CV",
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
# power and carbon of the data centre
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
# columns of scenarios that another command-line option sets (--goodput)
GOODPUT = (
    Flag("goodput_ttft_ms", "positive"),
    Flag("goodput_tpot_ms", "positive"),
    Flag("goodput_e2el_ms", "positive"),
)
