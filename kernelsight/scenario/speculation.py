"""Speculative decoding: the method that flags select, its acceptance by position, and heads as draft models.

What a method is stands in ``draft_acceptance_rates``: what proposes, in how many passes, and the shape of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput

MOST_DRAFTS = 64
# kinds of attention; the first one that the model has is that of its multi-token-prediction layer
MIXERS = ("full", "mla", "sparse", "compressed", "selected", "sliding", "linear", "none")
ALONE = ("speculative_method", "speculative_model", "draft_acceptance_rate", "draft_acceptance")
TREE = ("speculative_num_steps", "speculative_eagle_topk")
# of a head whose config is not known, where the model has no dense feed-forward or plain attention: as in Llama 3.1
HEAD_DIM, KV_HEADS, WIDENING, MULTIPLE = 128, 8, 3.5, 256
# an assumed acceptance rate may be off by this factor in its odds, either way
ODDS = 2.0


@cache
def methods() -> dict[str, dict[str, Any]]:
    """Return the methods of speculative decoding by name: rows of ``draft_acceptance_rates``."""
    return {row["method"]: row for row in facts("draft_acceptance_rates").to_pylist()}


def proposer(flags: Mapping[str, Any]) -> str | None:
    """Return what proposes draft tokens in normalised flags: layer, head, model or tokens; None: nothing."""
    return methods()[flags["speculative_method"]]["proposer"] if "speculative_method" in flags else None


def named_draft(flags: Mapping[str, Any]) -> str | None:
    """Return the draft model, or the checkpoint of a head, that flags name; None: none, or one that is estimated."""
    if proposer(flags) not in ("head", "model"):
        return None
    named = flags.get("speculative_model")
    return None if named == head_name(flags.get("model", ""), flags["speculative_method"]) else named


def with_method(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return flags with ``speculative_method`` filled in; InvalidInput for contradictory flags.

    With num_speculative_tokens 0, drafts are off and other flags of theirs have no effect.

    >>> with_method({"num_speculative_tokens": 3, "draft_acceptance_rate": 0.8})["speculative_method"]
    'mtp'
    """
    if flags.get("num_speculative_tokens") == 0:
        return {name: value for name, value in flags.items() if name not in (*ALONE, *TREE, "num_speculative_tokens")}
    draft_flags = [name for name in (*ALONE, *TREE) if name in flags]
    if "num_speculative_tokens" not in flags:
        if draft_flags:
            raise InvalidInput(
                f"{draft_flags[0]} needs speculative decoding, but num_speculative_tokens is unset; set it."
            )
        return dict(flags)
    if len({"draft_acceptance_rate", "draft_acceptance"} & set(flags)) > 1:
        raise InvalidInput("draft_acceptance and draft_acceptance_rate both say what is accepted; give one of them.")
    method = flags.get("speculative_method", "draft_model" if "speculative_model" in flags else "mtp")
    proposes, named = methods()[method]["proposer"], "speculative_model" in flags
    if (proposes == "model" and not named) or (proposes in ("layer", "tokens") and named):
        raise InvalidInput(
            f"speculative_method is {method}, but speculative_model is "
            f"{flags.get('speculative_model', 'unset')}; set speculative_model only with "
            f"{', '.join(name for name, row in methods().items() if row['proposer'] in ('head', 'model'))}."
        )
    depth, branches, drafts = (flags.get(name, 1) for name in (*TREE, "num_speculative_tokens"))
    if any(name in flags for name in TREE) and (
        proposes not in ("layer", "head") or not depth <= drafts <= depth * branches**2
    ):
        raise InvalidInput(
            f"a tree of {drafts} draft tokens by {method} with speculative_num_steps {depth} and "
            f"speculative_eagle_topk {branches} is none; give mtp or a head {depth} to {depth * branches**2} tokens."
        )
    return dict(flags) | {"speculative_method": method}


def shares_text(value: Any, name: str) -> str:
    """Return shares by position in canonical spelling; InvalidInput: not numbers from 0 to 1 that never rise.

    >>> shares_text("0.80, 0.63,0.48", "draft_acceptance")
    '0.8,0.63,0.48'
    """
    try:
        shares = [float(part) for part in str(value).split(",")]
    except ValueError:
        shares = []
    pairs = zip([1.0, *shares], [*shares, 0.0], strict=True)
    if not 1 <= len(shares) <= MOST_DRAFTS or not all(before >= share >= 0.0 for before, share in pairs):
        raise InvalidInput(
            f"{name} is {value!r}; give the share of draft tokens accepted at each position, from 0 to 1 and never "
            "rising, such as 0.8,0.63,0.48."
        )
    return ",".join(map(str, shares))


def accepted_by_position(settings: Mapping[str, Any]) -> tuple[float, ...]:
    """Return, by position, the probability that a draft token is accepted if those before it were, shape [64].

    ``settings``: the columns of ``deployment_settings``. Positions beyond the stated ones go on at the last ratio.

    >>> [round(rate, 2) for rate in accepted_by_position({"draft_acceptance": "0.8,0.6"})[:3]]
    [0.8, 0.75, 0.75]
    """
    if not settings.get("draft_acceptance"):
        return (settings["draft_acceptance_rate"],) * MOST_DRAFTS
    shares = [1.0, *map(float, settings["draft_acceptance"].split(","))]
    rates = [after / before if before else 0.0 for before, after in zip(shares, shares[1:], strict=False)]
    return (*rates, *[rates[-1]] * (MOST_DRAFTS - len(rates)))


def moved_rate(rate: float, sign: float) -> float:
    """Return an assumed acceptance rate at the low (-1) or high (1) end of its interval.

    >>> round(moved_rate(0.5, -1.0), 3), round(moved_rate(0.5, 1.0), 3)
    (0.333, 0.667)
    """
    odds = rate / (1.0 - rate) * ODDS**sign if rate < 1.0 else math.inf
    return odds / (1.0 + odds) if odds < math.inf else 1.0


def layer_rows(
    model: Mapping[str, Any], layers: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the ``models`` and ``model_layers`` rows of a model's multi-token-prediction layer as a draft model.

    One layer of the model's last kind, after a projection of the last token's embedding and the previous hidden
    state; embedding and output head are the model's (DeepSeek-V3 technical report, arXiv 2412.19437, section 2.2). If
    a checkpoint has several such layers, each draft token runs one of them. InvalidInput: the checkpoint has none.
    """
    if not model["mtp_layers"]:
        raise InvalidInput(
            f"{model['model']} has no multi-token-prediction layer; name another source of drafts, such as "
            "--speculative-method ngram, eagle3, or draft_model with --speculative-model M."
        )
    kind = min(layers, key=lambda layer: (MIXERS.index(layer["attention"]), layer["ffn"] != "moe"))
    row = dict(model) | {
        **{"model": head_name(model["model"], "mtp"), "huggingface_id": None, "layer_count": 1},
        **{"mtp_layers": 0, "mtp_format": None, "draft_inputs": methods()["mtp"]["draft_inputs"], "notes": None},
        "source": f"multi-token-prediction layer of {model['model']}: {model['source']}",
    }
    if model["mtp_format"] == model["dtype"]:
        row |= _whole_format(model["dtype"])
    return row, [dict(kind) | {"model": row["model"], "count": 1}]


def head_rows(
    model: Mapping[str, Any], layers: Iterable[Mapping[str, Any]], method: str, name: str | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the rows of a head whose config is not known: estimated from the model that it drafts for.

    ``name``: of its checkpoint. Its dense layers have the sizes of the model's, in 16 bit.
    """
    from kernelsight.models.config import read_config

    shape, own = methods()[method], next((row for row in layers if row["attention"] in ("full", "sliding")), {})
    hidden = model["hidden"]
    heads = own.get("heads") or hidden // HEAD_DIM
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": shape["head_layers"],
        "intermediate_size": model["intermediate"] or math.ceil(WIDENING * hidden / MULTIPLE) * MULTIPLE,
        "num_attention_heads": heads,
        "num_key_value_heads": own.get("kv_heads") or math.gcd(KV_HEADS, heads),
        "head_dim": own.get("head_dim") or HEAD_DIM,
        "vocab_size": shape["draft_vocab"] or model["vocab"],
        "max_position_embeddings": model["max_positions"],
        "torch_dtype": {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[model["dtype"]],
    }
    said = f"the sizes of the {method} head{f' {name}' if name else ''} are estimated from those of {model['model']}"
    row, rows = read_config(
        config, model=head_name(model["model"], method), huggingface_id=None, source=f"{said}; {shape['head_source']}"
    )
    row |= {column: shape[column] for column in ("draft_inputs", "qkv_inputs", "fused_states")}
    return row | {"notes": f"{said}: give its config.json (--speculative-model FILE)"}, rows


def head_name(model: str, method: str) -> str:
    """Return the name under which a model's layer or head of a method stands among the models."""
    return f"{model}.{method}"


def _whole_format(dtype: str) -> dict[str, str]:
    return {**dict.fromkeys(("attention_format", "ffn_format", "expert_format"), dtype), "activation_scales": "none"}
