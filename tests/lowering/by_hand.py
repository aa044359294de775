"""Parameters and FLOP of whole models, by hand from their rows."""

from __future__ import annotations

from typing import Any

Model = dict[str, Any]
Layer = dict[str, Any]


def mixer_parameters(model: Model, layer: Layer) -> int:
    """Matrix parameters of one layer's attention or delta net (without norms, biases and the short convolution)."""
    hidden, heads, width = model["hidden"], layer["heads"], layer["head_dim"]
    if layer["attention"] == "linear":
        keys = layer["kv_heads"] * model["linear_key_head_dim"]
        values = heads * model["linear_value_head_dim"]
        return hidden * (2 * keys + 2 * values + (model["linear_gates"] or 2) * heads) + values * hidden
    if layer["attention"] in ("mla", "sparse"):
        latent, rope, query_rank = model["kv_lora_rank"], model["qk_rope_head_dim"], model["q_lora_rank"]
        query = (hidden + heads * width) * query_rank if query_rank else hidden * heads * width
        key_value = hidden * (latent + rope) + latent * heads * (model["qk_nope_head_dim"] + model["v_head_dim"])
        return query + key_value + heads * model["v_head_dim"] * hidden + indexer_parameters(model, layer)
    if layer["attention"] == "compressed":  # its architecture states every product
        return 0
    queries, values = 2 * heads if model["attention_output_gate"] else heads, layer["v_head_dim"] or width
    projected = layer["kv_heads"] if layer["value_projections"] is None else 0
    softmax = hidden * (width * (queries + layer["kv_heads"]) + values * (projected + heads))
    return softmax + indexer_parameters(model, layer)


def product_parameters(layer: Layer) -> int:
    """Further products of a layer: sides that are multiples of its heads, or whole."""
    units = {"one": 1, "heads": layer["heads"]}
    products = layer["products"] or ()
    return sum(each["n"] * units[each["n_of"]] * each["k"] * units[each["k_of"]] for each in products)


def has_indexer(layer: Layer) -> bool:
    """Whether the layer selects tokens; others with sparse attention use the selection of an earlier layer."""
    return layer["attention"] in ("sparse", "selected") and layer["index_heads"] != 0


def indexer_parameters(model: Model, layer: Layer) -> int:
    """Queries from the compressed query, one key and a weight per head from the hidden state."""
    if not has_indexer(layer):
        return 0
    heads, width = model["index_heads"], model["index_head_dim"]
    return (model["q_lora_rank"] or model["hidden"]) * heads * width + model["hidden"] * (width + heads)


def feed_forward_parameters(model: Model, layer: Layer, experts: int) -> int:
    """Matrix parameters of one layer's feed-forward with ``experts`` of its routed experts, shared ones and router."""
    matrices = 3 if model["ffn_gated"] else 2
    hidden, width = model["hidden"], layer["intermediate"]
    if layer["ffn"] == "moe":
        routed = experts * width * (layer["expert_hidden"] or hidden)
        return matrices * (routed + hidden * layer["shared_intermediate"]) + hidden * layer["experts"]
    return hidden * matrices * width


def parameters(model: Model) -> int:
    """All matrix parameters, embedding and head with them."""
    total = model["vocab"] * model["hidden"] * (1 if model["tied_embeddings"] else 2)
    for layer in model["layers"]:
        each = mixer_parameters(model, layer) + feed_forward_parameters(model, layer, layer["experts"])
        total += layer["count"] * (each + product_parameters(layer))
    return total


def vector_parameters(model: Model) -> int:
    total = (model["norms_per_layer"] * model["layer_count"] + 1) * model["hidden"]
    for layer in model["layers"]:
        each = 2 * layer["head_dim"] if model["qk_norm"] == "head" else 0
        if model["architecture"] == "Qwen2ForCausalLM":
            each += (layer["heads"] + 2 * layer["kv_heads"]) * layer["head_dim"]
        total += layer["count"] * each
    return total


def flops_per_token(model: Model) -> int:
    """Two per matrix parameter that a token passes in the layers; the embedding is a gather, the head apart."""
    return 2 * sum(
        layer["count"]
        * (
            mixer_parameters(model, layer)
            + feed_forward_parameters(model, layer, layer["top_k"])
            + product_parameters(layer)
        )
        for layer in model["layers"]
    )


def head_flops(model: Model) -> int:
    return 2 * model["vocab"] * model["hidden"]


def visible(new: int, cached: int, limit: int = 0) -> int:
    """Pairs of a query and a token it attends to, counted query by query; ``limit``: tokens that one query sees."""
    seen = (cached + position + 1 for position in range(new))
    return sum(min(tokens, limit) if limit else tokens for tokens in seen)


def mixer_flops(model: Model, layer: Layer, new: int, cached: int, latent: bool) -> int:
    """FLOP of one layer's token mixing for ``new`` tokens after ``cached``; ``latent``: MLA in its latent space."""
    heads = layer["heads"]
    if layer["attention"] == "linear":
        state = model["linear_key_head_dim"] * model["linear_value_head_dim"]
        channels = 2 * layer["kv_heads"] * model["linear_key_head_dim"] + heads * model["linear_value_head_dim"]
        # read by key, update, read by query: a multiplication and an addition each; then the taps of the convolution
        return new * (3 * 2 * heads * state + 2 * channels * model["linear_conv_kernel"])
    if layer["attention"] in ("mla", "sparse"):
        score = model["kv_lora_rank"] + model["qk_rope_head_dim"] if latent else layer["head_dim"]
        value = model["kv_lora_rank"] if latent else model["v_head_dim"]
        limit = model["index_top_k"] if layer["attention"] == "sparse" else 0
        flops = 2 * heads * (score + value) * visible(new, cached, limit)
        if has_indexer(layer):
            flops += 2 * model["index_heads"] * model["index_head_dim"] * visible(new, cached)
        return flops
    if layer["attention"] == "compressed":
        return compressed_flops(model, layer, new, cached)
    width = layer["head_dim"] + (layer["v_head_dim"] or layer["head_dim"])
    indexing = 2 * model["index_heads"] * model["index_head_dim"] * visible(new, cached) if has_indexer(layer) else 0
    return 2 * heads * width * visible(new, cached, layer["window"]) + indexing


def compressed_flops(model: Model, layer: Layer, new: int, cached: int) -> int:
    """FLOP over the window, and over entries of several tokens: all, or those of the tokens that an indexer selects."""
    flops = 4 * layer["heads"] * layer["head_dim"] * visible(new, cached, layer["window"])
    if layer["compression"]:
        selects = layer["index_heads"] > 0 or layer["shared_cache"]
        # V4.1: entries of 2 tokens, or of one, of which as many are selected
        widest = 2 if layer["compression"] < 4 else layer["compression"]
        limit = model["index_top_k"] * layer["compression"] // widest if selects else 0
        flops += 4 * layer["heads"] * layer["head_dim"] * (visible(new, cached, limit) // layer["compression"])
        if layer["index_heads"] > 0:
            flops += 2 * model["index_heads"] * model["index_head_dim"] * (visible(new, cached) // layer["compression"])
    return flops


def decode_flops(model: Model, batch: int, context: int) -> int:
    """FLOP of matrices and token mixing of one decode step of ``batch`` sequences with ``context`` cached tokens."""
    mixing = sum(layer["count"] * mixer_flops(model, layer, 1, context, latent=True) for layer in model["layers"])
    return batch * (flops_per_token(model) + head_flops(model) + mixing)


def prefill_flops(model: Model, batch: int, new: int, cached: int) -> int:
    """FLOP of matrices and token mixing of ``batch`` prompts of ``new`` tokens after ``cached``."""
    total = new * flops_per_token(model) + head_flops(model)
    for layer in model["layers"]:
        total += layer["count"] * mixer_flops(model, layer, new, cached, latent=layer["attention"] == "sparse")
        if layer["attention"] == "mla":
            # keys and values of what is cached are expanded to the heads again
            expansion = model["kv_lora_rank"] * layer["heads"] * (model["qk_nope_head_dim"] + model["v_head_dim"])
            total += layer["count"] * 2 * cached * expansion
    return batch * total
