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
# flag: column of ``deployments``
DEPLOYMENT_FLAGS = {flag.name: flag.column for flag in FLAGS.values() if flag.column}
# flags that set other flags
OF_LAUNCH = ("launch", "read_launch_files")
SHORTHANDS = (*OF_LAUNCH, "model_like", "max_position_embeddings")
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
