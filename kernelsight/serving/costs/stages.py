"""Pipeline stages: how engines split a model's layers over them."""

from __future__ import annotations


def layers_of_stages(layers: int, stages: int, engine: str) -> tuple[int, ...]:
    """Return the number of layers of each stage: equal shares, and one of the remaining layers for some stages.

    vLLM and SGLang give these to the stages before the last one, backwards (``get_pp_indices``), TensorRT-LLM to the
    first ones (``Mapping.pp_layers``).

    >>> layers_of_stages(61, 4, "vllm"), layers_of_stages(62, 4, "vllm"), layers_of_stages(62, 4, "trtllm")
    ((15, 15, 16, 15), (15, 16, 16, 15), (16, 16, 15, 15))
    """
    each, extra_layers = divmod(layers, stages)
    first = 0 if engine == "trtllm" else stages - 1 - extra_layers
    return tuple(each + (first <= stage < first + extra_layers) for stage in range(stages))
