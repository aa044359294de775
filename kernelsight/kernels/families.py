"""Registry of kernel families: one row per family, from which nodes, contracts and all lists of families follow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kernelsight.kernels import collectives, decode, gemm, linear, moe, prefill, sparse, streaming
from kernelsight.kernels.latency_model import Features, LatencyModel, unchanged


class Family(NamedTuple):
    """One kernel family; its calls are made by ``sql/lower/<name>_calls.sql``, in the contract of that name."""

    name: str
    doc: str  # its kernels, in the plural
    latency_model: LatencyModel
    features: Features = Features()  # inputs of its correction; a family without sizes has none
    # its call columns as SQL over the shape of a measured kernel (``kernels.work``); empty: no sweep measures it
    columns: Mapping[str, str] = MappingProxyType({})
    # traits of deployments, any of which launches it: attention and feed-forward of ``sharded_layers``; "tp", "pp" and
    # "dp" above 1; "quantizes_activations". Empty: any deployment may launch it
    launched_by: tuple[str, ...] = ()
    # of a collective, ``wire_share(group_size)``: bytes over the busiest link, as a multiple of the tensor's
    wire_share: Callable[[Any], Any] | None = None
    vector_work: bool = False  # its arithmetic runs on the vector units, whatever the format of what it moves
    by_head_dim: bool = False  # engines choose its kernel by the width of the heads
    kernel_column: str = ""  # column of ``deployment_settings`` or of its calls that requests a kernel by name
    # column of step costs that repeats its time, because pipeline stages do not share it (embedding, transfer) or a
    # log's misses are attributed to it (moe, communication)
    step_cost: str = ""
    lowered: bool = True  # False: no model of the catalogue launches it, only sweeps and call files do


_PROMPT = ("batch", "new_tokens", "cached_tokens", "heads", "visible_pairs")
_HEADS = ("kv_heads", "head_dim", "window")
_EXPERTS = (
    *("tokens", "hidden", "intermediate", "local_experts", "top_k", "moe_ep", "active_experts"),
    *("small_tiles", "block_rows"),
)
_ROWS = ("rows", "columns")
_MOVED = LatencyModel(streaming.streaming, _ROWS, unchanged, streaming.COEFFICIENTS, 1.6)
_QUANTIZED = LatencyModel(streaming.quantize, _ROWS, unchanged, streaming.QUANTIZE_COEFFICIENTS, 1.6)
_MIXED = LatencyModel(streaming.quantize, _ROWS, unchanged, streaming.STREAMS_COEFFICIENTS, 1.6)
_SAMPLED = LatencyModel(streaming.sample, _ROWS, unchanged, streaming.SAMPLING_COEFFICIENTS, 2.5)
_HALF_RING = LatencyModel(collectives.half_ring, ("group_size",), unchanged, collectives.HALF_RING, 1.5)
_CACHING = ("full", "sliding", "selected", "mla", "sparse", "compressed")

_REGISTRY = (
    Family(
        "gemm",
        "dense matrix products",
        LatencyModel(gemm.gemm, ("m", "n", "k"), unchanged, gemm.COEFFICIENTS, 1.4),
        gemm.FEATURES,
        gemm.COLUMNS,
    ),
    Family(
        "batched_gemm",
        "absorbed MLA projections, products of adapters (LoRA)",
        LatencyModel(gemm.batched_gemm, ("batch", "m", "n", "k"), unchanged, gemm.BATCHED_COEFFICIENTS, 1.6),
        gemm.BATCHED_FEATURES,
        gemm.BATCHED_COLUMNS,
        launched_by=("mla", "sparse", "adapters"),
    ),
    Family(
        "prefill_attention",
        "softmax attention over prompts",
        LatencyModel(prefill.attention, (*_PROMPT, *_HEADS), unchanged, prefill.COEFFICIENTS, 1.6),
        prefill.FEATURES,
        prefill.COLUMNS,
        launched_by=("full", "sliding", "selected"),
        by_head_dim=True,
        kernel_column="attention_backend",
    ),
    Family(
        "encoder_attention",
        "softmax attention of encoders",
        LatencyModel(prefill.attention, _PROMPT, unchanged, prefill.COEFFICIENTS, 1.6),
        prefill.FEATURES_OF_PAIRS,
        prefill.ENCODER_COLUMNS,
        lowered=False,
    ),
    Family(
        "decode_attention",
        "softmax attention of single tokens",
        LatencyModel(
            decode.decode_attention, ("batch", "context", "heads", *_HEADS), unchanged, decode.COEFFICIENTS, 1.8
        ),
        decode.FEATURES,
        decode.COLUMNS,
        launched_by=("full", "sliding", "selected"),
        by_head_dim=True,
        kernel_column="attention_backend",
    ),
    Family(
        "mla_prefill",
        "MLA over prompts",
        LatencyModel(prefill.attention, _PROMPT, unchanged, prefill.COEFFICIENTS, 1.8),
        prefill.FEATURES_OF_PAIRS,
        prefill.LATENT_COLUMNS,
        launched_by=("mla",),
    ),
    Family(
        "mla_decode",
        "MLA of single tokens",
        LatencyModel(
            decode.mla_decode,
            ("batch", "context", "heads", "kv_lora_rank", "rope_dim"),
            unchanged,
            decode.COEFFICIENTS,
            1.8,
        ),
        decode.LATENT_FEATURES,
        decode.LATENT_COLUMNS,
        launched_by=("mla",),
        kernel_column="latent_backend",
    ),
    Family(
        "sparse_attention",
        "the indexer and attention over selected tokens",
        LatencyModel(
            sparse.sparse_attention, ("queries", "visible_pairs", "heads", "width"), unchanged, sparse.COEFFICIENTS, 2.5
        ),
        sparse.FEATURES,
        sparse.COLUMNS,
        launched_by=("sparse", "selected", "compressed"),
    ),
    Family(
        "linear_attention",
        "the gated delta net",
        LatencyModel(linear.gated_delta_net, ("rows", "columns", "sequences"), unchanged, linear.COEFFICIENTS, 2.0),
        linear.FEATURES,
        linear.COLUMNS,
        launched_by=("linear",),
    ),
    Family(
        "moe",
        "routed experts",
        LatencyModel(moe.moe, _EXPERTS, moe.view, moe.COEFFICIENTS, 2.0),
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
        "hyper_connection",
        "hyper-connections of residual streams",
        _MIXED,
        streaming.FEATURES,
        streaming.STREAMS_COLUMNS,
        launched_by=("residual_streams",),
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
        LatencyModel(collectives.all_reduce, ("group_size",), unchanged, collectives.ALL_REDUCE, 1.5),
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
        LatencyModel(collectives.exchange, ("group_size",), unchanged, collectives.EXCHANGE, 2.0),
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
        LatencyModel(collectives.transfer, ("group_size",), unchanged, collectives.EXCHANGE, 2.0),
        collectives.FEATURES,
        collectives.COLUMNS,
        launched_by=("pp",),
        wire_share=collectives.share_whole,
        step_cost="transfer",
    ),
)
FAMILIES: dict[str, Family] = {family.name: family for family in _REGISTRY}
LOWERED: dict[str, str] = {family.name: family.doc for family in _REGISTRY if family.lowered}
# families that sweeps measure
MEASURED = tuple(family.name for family in _REGISTRY if family.columns)
COMMUNICATION = tuple(family.name for family in _REGISTRY if family.wire_share)


def launched(traits: Collection[str]) -> list[str]:
    """Return the families that deployments with any of these traits (``Family.launched_by``) may launch."""
    return [name for name in LOWERED if not (by := FAMILIES[name].launched_by) or not set(by).isdisjoint(traits)]
