"""SGLang's simulator: the predictor of a forward pass, over our step times.

Its contract: ``tools/sglang-simulator/src/sglang_simulator/time_predictor/base.py`` of sgl-project/sglang @ 2f070b1
(pull request 33824): ``predict_infer_time(batch)`` returns seconds; a batch lists ``extend_length`` and
``past_kv_length`` of its requests. Nothing of SGLang is imported.
"""

from __future__ import annotations

from typing import Any

import kernelsight


class Predictor:
    """A predictor of forward passes in seconds; construct it as SGLang does, or with flags alone.

    ``model``, ``hw``, ``config``: SGLang's objects, of which ``model.name`` (or ``model_path``), ``hw.name``,
    ``config.tp_size`` and ``config.backend_version`` are read; flags state or replace any of them.

    >>> predictor = Predictor(flags={"model": "qwen3-0.6b", "gpu": "l4"})
    >>> 0.0 < predictor.predict_infer_time([(1, 1024), (1, 2048)]) < 1.0
    True
    """

    def __init__(
        self, model: Any = None, hw: Any = None, config: Any = None, *, flags: dict[str, Any] | None = None
    ) -> None:
        by_flag = {
            "model": getattr(model, "model_path", None) or getattr(model, "name", None),
            "gpu": getattr(hw, "name", None),
            "tensor_parallel_size": getattr(config, "tp_size", None),
            "engine_version": getattr(config, "backend_version", None),
        }
        self.model, self.hw, self.config = model, hw, config
        flags_read = {name: value for name, value in by_flag.items() if value is not None}
        with kernelsight.connect() as session:
            self.times = session.step_times(**({"engine": "sglang"} | flags_read | (flags or {})))

    def predict_infer_time(self, batch: Any) -> float:
        """Return the time of one forward pass in seconds; 0 for an empty batch.

        ``batch``: (extend, past) pairs, or SGLang's ScheduleBatch.
        """
        pairs = (
            [(request.extend_length, request.past_kv_length) for request in batch.reqs]
            if hasattr(batch, "reqs")
            else batch
        )
        return self.times(pairs).latency_us / 1e6 if len(pairs) else 0.0

    def get_metrics(self) -> dict[str, Any]:
        """Return no metrics of our own."""
        return {}

    def reset_metrics(self) -> None:
        """Forget nothing: nothing is counted."""
