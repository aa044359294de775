"""All flags of a scenario by name: one declaration for the command line, for grids and for Python keywords.

A flag's name is a column of a grid; its kind defines the values it takes; ``column`` is its column of ``deployments``.
"""

from __future__ import annotations

from kernelsight.scenario.deployment_flags import DEPLOYMENT, EXPERT_PARALLEL, LIMITS, POLICIES, PREFILL, SPECULATION
from kernelsight.scenario.load_flags import GOODPUT, LENGTHS, LOAD, POOLS, ROUTER, SITE

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
        GOODPUT,
    )
    for flag in group
}
# flags that --help shows; --help-all shows all
EVERYDAY = frozenset(
    """
    launch model gpu tensor_parallel_size pipeline_parallel_size data_parallel_size enable_expert_parallel engine
    engine_version kv_cache_dtype quantization max_model_len max_num_seqs max_num_batched_tokens gpu_memory_utilization
    enable_prefix_caching num_speculative_tokens prefill_replicas decode_replicas trace request_rate max_concurrency
    num_prompts num_turns think_time_s input_len output_len prefix_len replicas router
    """.split()
)
# flag: column of ``deployments``
DEPLOYMENT_FLAGS = {flag.name: flag.column for flag in FLAGS.values() if flag.column}
# flags that set other flags
OF_LAUNCH = ("launch", "read_launch_files")
SHORTHANDS = (*OF_LAUNCH, "model_like", "architecture", "max_position_embeddings")
# flags that define a second deployment: the draft model
DRAFT_FLAGS = tuple(flag.name for flag in SPECULATION if not flag.column)
# prefill-pool flag: decode-pool flag that it overrides
PREFILL_FLAGS = {
    name: decode_name
    for name in FLAGS
    if (decode_name := name.removeprefix("prefill_")) != name and decode_name in DEPLOYMENT_FLAGS
}
POOL_FLAGS = tuple(flag.name for flag in POOLS)
LOAD_FLAGS = tuple(flag.name for group in (LOAD, LENGTHS, ROUTER, SITE, GOODPUT) for flag in group)
# other spellings: those of other tools, and short forms
ALIASES = {
    alias: flag.name
    for flag in FLAGS.values()
    for option in flag.options
    if (alias := option.lstrip("-").replace("-", "_")) != flag.name
} | {"ep": "expert_parallel_size"}
