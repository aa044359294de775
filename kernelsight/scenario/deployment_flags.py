"""Flags of a deployment: model, GPU and engine, limits, scheduling policies, speculative decoding, prefill pool."""

from __future__ import annotations

from kernelsight.scenario.flag import LARGEST_PARALLEL_SIZE, Flag

TIERS = ("auto", "cross-generation", "points-measured", "target-measured", "roofline")
ENGINES = ("vllm", "sglang", "trtllm")


def _of_deployment(name: str, kind: str = "text", help: str | None = None, metavar: str | None = None, **more) -> Flag:
    """Return a flag whose column of ``deployments`` has its name."""
    return Flag(name, kind, help, metavar, **{"column": name, **more})


def _parallel(short: str, name: str, column: str | None, prefix: str = "") -> Flag:
    """Return the flag of a parallel size, such as --tensor-parallel-size; ``prefix``: "prefill-" for that pool."""
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
        "architecture",
        help="file that states how the model's config.json is read, for an architecture that is not known",
        metavar="FILE",
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
    _of_deployment(
        "request_delay_ms",
        "span",
        "time of each request before the engine's front end: of a client, proxy or gateway (default: 0)",
        "MS",
        least=0.0,
    ),
    _of_deployment(
        "cpu",
        help="CPU of the server, from the table cpus: times of the host go with the speed of one thread (default: the "
        "one that the GPU is sold with, else x86)",
        metavar="CPU",
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
    _of_deployment(
        "windows_freed",
        "switch",
        "layers with a sliding window free the KV cache of what lies before it (default: as the engine does)",
    ),
    _of_deployment(
        "swa_full_tokens_ratio",
        "share",
        "tokens of the KV cache of sliding-window layers over those of the other layers (SGLang; default: 0.8)",
        "SHARE",
    ),
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
    _of_deployment(
        "prompt_graphs",
        "word",
        "CUDA graphs of steps with prompts: in pieces between attention layers, up to the largest captured size "
        "(piecewise) or to the tokens of a step (chunk), or none (default: as the engine does)",
        choices=("piecewise", "chunk", "none"),
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
    _of_deployment(
        "prefill_schedule_interval",
        "whole",
        "data-parallel ranks that share experts compute prompts in every Nth step (vLLM)",
        "N",
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
# flags of Python and grids that the command line has as another
ON_COMMAND_LINE = {"expert_parallel_size": "enable_expert_parallel"}
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
