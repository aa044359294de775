"""Limits of a config.json: refuses windows, heads, RoPE scalings and totals that no model has; longest RoPE context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelsight import errors
from kernelsight.files.numbers import is_number
from kernelsight.models.config_fields import LARGEST, ConfigFields
from kernelsight.number_format import number

# a thousand times the largest published model; below it bytes, FLOP of a step and their sums fit 64 bits
MOST_PARAMETERS = 10**15
# fields of rope_scaling and rope_parameters that multiply or divide
FACTORS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "rope_theta")


def check_heads(fields: ConfigFields, columns: Mapping[str, Any]) -> None:
    """Raise InvalidInput for head_dim or rotary_dim that RoPE cannot rotate: odd, or more of a head than it has."""
    for name in ("head_dim", "rotary_dim"):
        if columns[name] % 2:
            expected = "an even number: positions rotate pairs of values"
            raise errors.config_field_wrong(fields.label, name, columns[name], expected)
    if columns["rotary_dim"] > columns["head_dim"]:
        expected = f"at most head_dim ({columns['head_dim']})"
        raise errors.config_field_wrong(fields.label, "rotary_dim", columns["rotary_dim"], expected)


def check_total(fields: ConfigFields, columns: Mapping[str, Any]) -> None:
    """Raise InvalidInput where the sizes make more than MOST_PARAMETERS parameters; ``columns``: of ``models``."""

    def size(name: str) -> int:
        return columns.get(name) or 0

    heads = (size("heads") + size("kv_heads")) * size("head_dim")
    linear = (size("linear_key_heads") + size("linear_value_heads")) * (
        size("linear_key_head_dim") + size("linear_value_head_dim")
    )
    experts = size("experts") * size("expert_intermediate") + size("shared_intermediate")
    latent = size("q_lora_rank") + size("kv_lora_rank")
    layer = 3 * (heads + linear + size("intermediate") + experts + latent)
    total = size("hidden") * (2 * size("vocab") + size("layer_count") * layer)
    if total > MOST_PARAMETERS:
        raise errors.InvalidInput(
            f"config of {fields.label}: its sizes make about {number(total / 1e12, 3)} trillion parameters, more "
            f"than the {number(MOST_PARAMETERS / 1e12)} trillion that can be simulated; correct hidden_size, "
            "vocab_size or the sizes of its layers."
        )


def check_rope(fields: ConfigFields) -> None:
    """Raise InvalidInput for RoPE scaling that is no object, or with a factor that is no finite number above 0."""
    for name in ("rope_scaling", "rope_parameters"):
        scaling = fields.inside(name, default=None)
        if scaling is None:
            continue
        # newer configs have one object for each kind of layer
        nested = [scaling.inside(key) for key, value in scaling.values.items() if isinstance(value, Mapping)]
        for parameters in (scaling, *nested):
            for factor in FACTORS:
                value = parameters.values.get(factor)
                if value is not None and not _is_factor(value):
                    raise errors.config_field_wrong(parameters.label, factor, value, "a finite number above 0")


def longest_context(fields: ConfigFields, positions: int) -> int:
    """Return the longest context, tokens: with YaRN original positions times factor where that exceeds ``positions``.

    As engines do for a checkpoint whose max_position_embeddings is that of its training.

    >>> yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    >>> longest_context(ConfigFields({"rope_scaling": yarn}, "my-model"), 40960)
    131072
    """
    for name in ("rope_scaling", "rope_parameters"):
        scaling = fields.inside(name, default=None)
        if scaling is None or (scaling.values.get("rope_type") or scaling.values.get("type")) != "yarn":
            continue
        trained, factor = (scaling.values.get(field) for field in ("original_max_position_embeddings", "factor"))
        if not _is_factor(trained) or not _is_factor(factor):
            continue
        reached = trained * factor
        if reached > LARGEST:
            raise errors.config_field_wrong(
                scaling.label, "factor", factor, f"one that reaches at most {LARGEST} tokens"
            )
        return max(positions, int(reached))
    return positions


def _is_factor(value: Any) -> bool:
    return is_number(value) and value > 0
