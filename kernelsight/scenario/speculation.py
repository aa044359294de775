"""Speculative decoding: the method that flags select, and a multi-token-prediction (MTP) layer as a draft model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kernelsight.errors import InvalidInput

MTP_SUFFIX = ".mtp"
# kinds of attention; the first one that the model has is that of its multi-token-prediction layer
MIXERS = ("full", "mla", "sparse", "compressed", "selected", "sliding", "linear", "none")


def with_method(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return flags with ``speculative_method`` filled in; InvalidInput for contradictory flags.

    >>> with_method({"num_speculative_tokens": 3, "draft_acceptance_rate": 0.8})["speculative_method"]
    'mtp'
    """
    draft_flags = [
        name for name in ("speculative_method", "speculative_model", "draft_acceptance_rate") if name in flags
    ]
    if "num_speculative_tokens" not in flags:
        if draft_flags:
            raise InvalidInput(
                f"{draft_flags[0]} needs speculative decoding, but num_speculative_tokens is unset; set it."
            )
        return dict(flags)
    method = flags.get("speculative_method", "draft_model" if "speculative_model" in flags else "mtp")
    if (method == "draft_model") != ("speculative_model" in flags):
        raise InvalidInput(
            f"speculative_method is {method}, but speculative_model is "
            f"{flags.get('speculative_model', 'unset')}; set speculative_model only with draft_model."
        )
    return dict(flags) | {"speculative_method": method}


def mtp_rows(
    model: Mapping[str, Any], layers: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the ``models`` and ``model_layers`` rows of a model's multi-token-prediction layer as a draft model.

    One layer of the model's last kind, after a projection of the last token's embedding and the previous hidden
    state; embedding and output head are the model's (DeepSeek-V3 technical report, arXiv 2412.19437, section 2.2). If
    a checkpoint has several such layers, each draft token runs one of them. InvalidInput: the checkpoint has none.
    """
    if not model["mtp_layers"]:
        raise InvalidInput(
            f"{model['model']} has no multi-token-prediction layer; use a draft model "
            "(--speculative-method draft_model --speculative-model M) or n-grams (--speculative-method ngram)."
        )
    kind = min(layers, key=lambda layer: (MIXERS.index(layer["attention"]), layer["ffn"] != "moe"))
    row = dict(model) | {
        **{"model": model["model"] + MTP_SUFFIX, "huggingface_id": None, "layer_count": 1},
        **{"mtp_layers": 0, "mtp_format": None, "draft_inputs": 2, "notes": None},
        "source": f"multi-token-prediction layer of {model['model']}: {model['source']}",
    }
    if model["mtp_format"] == model["dtype"]:
        formats = dict.fromkeys(("attention_format", "ffn_format", "expert_format"), model["dtype"])
        row |= formats | {"activation_scales": "none"}
    return row, [dict(kind) | {"model": row["model"], "count": 1}]
