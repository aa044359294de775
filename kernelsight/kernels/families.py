"""The registry of kernel families: one row declares a family, and all lists of families derive from these rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kernelsight.kernels import collectives, decode, gemm, linear, moe, prefill, sparse, streaming
from kernelsight.kernels.latency_model import Features, Form, same


class Family(NamedTuple):
    """One kernel family; ``sql/lower/<name>_calls.sql`` lowers its calls, the contract of that name states them.

    ``doc``: its kernels, in the plural; ``form``: its latency model; ``features``: what a correction sees of its calls;
    without sizes it has none. ``columns``: its call columns as SQL over the shape of a measured kernel
    (:mod:`kernelsight.kernels.work`); none: no sweep holds it.
    ``launched_by``: traits of deployments, one of which launches it (kinds of attention and feed-forward in
    ``sharded_layers``, "tp", "pp" and "dp" above 1, "quantizes_activations"); none: any deployment may.
    ``wire_share(gpus)``: of collectives, the bytes that the busiest link carries, as a multiple of the tensor.
    ``vector_work``: its arithmetic runs on the vector units, whatever the format of what it moves.
    ``by_head_dim``: engines choose its kernel by the width of the heads.
    ``kernel_column``: column of ``deployment_settings`` or of its calls that asks for a kernel by name.
    ``step_cost``: column of step costs that holds its time a second time: layers do not share it (embedding, transfer),
    or misses are attributed to it (moe, communication).
    ``lowered``: False where no model of the catalogue launches it, and sweeps and call files alone hold it.
    """

    name: str
    doc: str
    form: Form
    features: Features = Features()
    columns: Mapping[str, str] = MappingProxyType({})
    launched_by: tuple[str, ...] = ()
    wire_share: Callable[[Any], Any] | None = None
    vector_work: bool = False
    by_head_dim: bool = False
    kernel_column: str = ""
    step_cost: str = ""
    lowered: bool = True


_PROMPT = ("batch", "new_tokens", "cached_tokens", "heads", "visible_pairs")
_HEADS = ("kv_heads", "head_dim", "window")
_EXPERTS = (
    *("tokens", "hidden", "intermediate", "local_experts", "top_k", "moe_ep", "active_experts"),
    *("small_tiles", "block_rows"),
)
_ROWS = ("rows", "columns")
_MOVED = Form(streaming.streaming, _ROWS, same, streaming.COEFFICIENTS, 1.6)
_QUANTIZED = Form(streaming.quantize, _ROWS, same, streaming.QUANTIZE_COEFFICIENTS, 1.6)
_SAMPLED = Form(streaming.sample, _ROWS, same, streaming.SAMPLING_COEFFICIENTS, 2.5)
_HALF_RING = Form(collectives.half_ring, ("group_size",), same, collectives.HALF_RING, 1.5)
_CACHING = ("full", "sliding", "mla", "sparse")

_REGISTRY = (
    Family(
        "gemm",
        "dense matrix products",
        Form(gemm.gemm, ("m", "n", "k"), same, gemm.COEFFICIENTS, 1.4),
        gemm.FEATURES,
        gemm.COLUMNS,
    ),
    Family(
        "batched_gemm",
        "absorbed MLA projections",
        Form(gemm.batched_gemm, ("batch", "m", "n", "k"), same, gemm.BATCHED_COEFFICIENTS, 1.6),
        gemm.BATCHED_FEATURES,
        gemm.BATCHED_COLUMNS,
        launched_by=("mla", "sparse"),
    ),
    Family(
        "prefill_attention",
        "softmax attention over prompts",
        Form(prefill.attention, (*_PROMPT, *_HEADS), same, prefill.COEFFICIENTS, 1.6),
        prefill.FEATURES,
        prefill.COLUMNS,
        launched_by=("full", "sliding"),
        by_head_dim=True,
    ),
    Family(
        "encoder_attention",
        "softmax attention of encoders",
        Form(prefill.attention, _PROMPT, same, prefill.COEFFICIENTS, 1.6),
        prefill.FEATURES_OF_PAIRS,
        prefill.ENCODER_COLUMNS,
        lowered=False,
    ),
    Family(
        "decode_attention",
        "softmax attention of single tokens",
        Form(decode.decode_attention, ("batch", "context", "heads", *_HEADS), same, decode.COEFFICIENTS, 1.8),
        decode.FEATURES,
        decode.COLUMNS,
        launched_by=("full", "sliding"),
        by_head_dim=True,
    ),
    Family(
        "mla_prefill",
        "MLA over prompts",
        Form(prefill.attention, _PROMPT, same, prefill.COEFFICIENTS, 1.8),
        prefill.FEATURES_OF_PAIRS,
        prefill.LATENT_COLUMNS,
        launched_by=("mla",),
    ),
    Family(
        "mla_decode",
        "MLA of single tokens",
        Form(
            decode.mla_decode,
            ("batch", "context", "heads", "kv_lora_rank", "rope_dim"),
            same,
            decode.COEFFICIENTS,
            1.8,
        ),
        decode.LATENT_FEATURES,
        decode.LATENT_COLUMNS,
        launched_by=("mla",),
    ),
    Family(
        "sparse_attention",
        "the indexer and attention over selected tokens",
        Form(sparse.sparse_attention, ("queries", "visible_pairs", "heads", "width"), same, sparse.COEFFICIENTS, 2.5),
        sparse.FEATURES,
        sparse.COLUMNS,
        launched_by=("sparse",),
    ),
    Family(
        "linear_attention",
        "the gated delta net",
        Form(linear.gated_delta_net, ("rows", "columns", "sequences"), same, linear.COEFFICIENTS, 2.0),
        linear.FEATURES,
        linear.COLUMNS,
        launched_by=("linear",),
    ),
    Family(
        "moe",
        "routed experts",
        Form(moe.moe, _EXPERTS, moe.view, moe.COEFFICIENTS, 2.0),
        moe.FEATURES,
        moe.COLUMNS,
        launched_by=("moe",),
        kernel_column="moe_backend",
        step_cost="moe",
    ),
    Family("norm", "norms", _MOVED, streaming.FEATURES, streaming.NORM_COLUMNS, vector_work=True),
    Family("activation", "activations", _MOVED, streaming.FEATURES, streaming.ACTIVATION_COLUMNS, vector_work=True),
    Family(
        "rope",
        "rotary embeddings",
        _MOVED,
        streaming.FEATURES,
        streaming.ROPE_COLUMNS,
        launched_by=_CACHING,
        vector_work=True,
    ),
    Family(
        "kv_write",
        "KV-cache writes",
        _MOVED,
        streaming.FEATURES,
        streaming.KV_WRITE_COLUMNS,
        launched_by=_CACHING,
        vector_work=True,
    ),
    Family(
        "quantize",
        "quantisation of activations",
        _QUANTIZED,
        streaming.FEATURES,
        streaming.QUANTIZE_COLUMNS,
        launched_by=("quantizes_activations",),
        vector_work=True,
        kernel_column="implementation",
    ),
    Family(
        "embedding",
        "embedding gathers",
        _MOVED,
        streaming.FEATURES,
        streaming.EMBEDDING_COLUMNS,
        vector_work=True,
        step_cost="embedding",
    ),
    Family(
        "sampling",
        "sampling",
        _SAMPLED,
        streaming.FEATURES,
        streaming.SAMPLING_COLUMNS,
        vector_work=True,
        kernel_column="implementation",
    ),
    Family(
        "all_reduce",
        "all-reduces",
        Form(collectives.all_reduce, ("group_size",), same, collectives.ALL_REDUCE, 1.5),
        collectives.FEATURES,
        collectives.COLUMNS,
        launched_by=("tp",),
        wire_share=collectives.share_twice,
        step_cost="communication",
    ),
    Family(
        "all_gather",
        "all-gathers",
        _HALF_RING,
        collectives.FEATURES,
        collectives.COLUMNS,
        launched_by=("tp", "dp"),
        wire_share=collectives.share_once,
        step_cost="communication",
    ),
    Family(
        "reduce_scatter",
        "reduce-scatters",
        _HALF_RING,
        collectives.FEATURES,
        collectives.COLUMNS,
        launched_by=("dp",),
        wire_share=collectives.share_once,
        step_cost="communication",
    ),
    Family(
        "all_to_all",
        "all-to-all exchanges",
        Form(collectives.exchange, ("group_size",), same, collectives.EXCHANGE, 2.0),
        collectives.FEATURES,
        collectives.COLUMNS,
        launched_by=("dp",),
        wire_share=collectives.share_once,
        kernel_column="implementation",
        step_cost="communication",
    ),
    Family(
        "p2p",
        "transfers between pipeline stages",
        Form(collectives.transfer, ("group_size",), same, collectives.EXCHANGE, 2.0),
        collectives.FEATURES,
        collectives.COLUMNS,
        launched_by=("pp",),
        wire_share=collectives.share_whole,
        step_cost="transfer",
    ),
)
FAMILIES: dict[str, Family] = {family.name: family for family in _REGISTRY}
LOWERED: dict[str, str] = {family.name: family.doc for family in _REGISTRY if family.lowered}
# families that sweeps hold
MEASURED = tuple(family.name for family in _REGISTRY if family.columns)
COMMUNICATION = tuple(family.name for family in _REGISTRY if family.wire_share)


def launched(traits: Collection[str]) -> list[str]:
    """Return the families that deployments may launch, by what they have together (see ``Family.launched_by``).

    >>> [name for name in launched({"full", "dense"}) if name not in launched({"linear", "dense"})]
    ['prefill_attention', 'decode_attention', 'rope', 'kv_write']
    """
    return [name for name in LOWERED if not (by := FAMILIES[name].launched_by) or not set(by).isdisjoint(traits)]
