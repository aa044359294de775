"""All flags of a scenario by name: one declaration for the command line, for grids and for Python keywords.

A flag's name is a column of a grid; its kind defines the values it takes. They are the ``options`` of the contracts of
``deployments`` and ``scenarios``.
"""

from __future__ import annotations

from kernelsight.scenario.flag import options_of

_GROUPS = options_of("deployments") | options_of("scenarios")
DEPLOYMENT, LIMITS, POLICIES, SPECULATION = (
    _GROUPS[name] for name in ("deployment", "limits", "policies", "speculation")
)
# prefill pool of P/D disaggregation; unset flags take the decode pool's values
PREFILL, POOLS = _GROUPS["prefill"], _GROUPS["pools"]
LOAD, LENGTHS, ROUTER, SITE = (_GROUPS[name] for name in ("load", "lengths", "router", "site"))
FLAGS = {flag.name: flag for group in _GROUPS.values() for flag in group}
ENGINES, TIERS = FLAGS["engine"].choices, FLAGS["tier"].choices
# flag: column of ``deployments``
DEPLOYMENT_FLAGS = {
    flag.name: flag.column for group in options_of("deployments").values() for flag in group if flag.column
}
# flags that set other flags
OF_LAUNCH = ("launch", "read_launch_files")
SHORTHANDS = (*OF_LAUNCH, "model_like", "architecture", "max_position_embeddings")
# flags that define a second deployment: the draft model
DRAFT_FLAGS = tuple(flag.name for flag in SPECULATION if not flag.column)
# flags of Python and grids that the command line has as another
ON_COMMAND_LINE = {"expert_parallel_size": "enable_expert_parallel"}
# prefill-pool flag: decode-pool flag that it overrides
PREFILL_FLAGS = {
    name: decode_name
    for name in FLAGS
    if (decode_name := name.removeprefix("prefill_")) != name and decode_name in DEPLOYMENT_FLAGS
}
POOL_FLAGS = tuple(flag.name for flag in POOLS)
LOAD_FLAGS = tuple(flag.name for group in (LOAD, LENGTHS, ROUTER, SITE, _GROUPS["goodput"]) for flag in group)
# other spellings: those of other tools, and short forms
ALIASES = {
    alias: flag.name
    for flag in FLAGS.values()
    for option in flag.options
    if (alias := option.lstrip("-").replace("-", "_")) != flag.name
} | {"ep": "expert_parallel_size"}
