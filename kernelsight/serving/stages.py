"""How engines share a model's layers out over pipeline stages."""

from __future__ import annotations


def layers_of_stages(layers: int, stages: int, engine: str) -> tuple[int, ...]:
    """Return the layers of each stage: equally many, and of those that are left one each.

    vLLM and SGLang give them to the stages before the last one, from its neighbour backwards (``get_pp_indices``),
    TensorRT-LLM to the first ones (``Mapping.pp_layers``).

    >>> layers_of_stages(61, 4, "vllm"), layers_of_stages(62, 4, "vllm"), layers_of_stages(62, 4, "trtllm")
    ((15, 15, 16, 15), (15, 16, 16, 15), (16, 16, 15, 15))
    """
    each, left = divmod(layers, stages)
    first = 0 if engine == "trtllm" else stages - 1 - left
    return tuple(each + (first <= stage < first + left) for stage in range(stages))
