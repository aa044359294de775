"""Measures an installed engine's host overhead per step, with a model so small that the GPU waits for the host.

A run of s sequences takes t(n) for n tokens each: (t(long) - t(short)) / (long - short) is one decode step; prompts,
tokenisation and start-up cancel. Over several s, step = base + s x per request, by least squares. The small model's GPU
time is included, so both are upper bounds; with a larger model an engine that overlaps host and GPU hides up to all of
it.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelsight.caches.durable import durable_file
from kernelsight.errors import InvalidInput, RunFailed

SEQUENCES, TOKENS, REPEATS = (1, 16, 64, 256), (16, 144), 3
PROMPT_TOKENS = 16
# two layers of a Llama: every part of the engine runs, and the GPU takes only tens of microseconds
SMALL_MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1024,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "tie_word_embeddings": False, "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
# (sequences, new tokens each) -> seconds
Run = Callable[[int, int], float]


def probe(run: Run, sequences: Sequence[int] = SEQUENCES) -> dict[str, Any]:
    """Fit step_base_us and per_request_us to runs of an engine; also return the step time by number of sequences."""
    short, long = TOKENS
    steps = []
    for count in sequences:
        run(count, short)  # graphs and caches of this batch
        times = [[run(count, tokens) for _ in range(REPEATS)] for tokens in (short, long)]
        short_s, long_s = (float(np.median(durations)) for durations in times)
        steps.append((long_s - short_s) / (long - short) * 1e6)
    design = np.stack([np.ones(len(steps)), np.asarray(sequences, dtype=float)], axis=1)
    (base, per_request), *_ = np.linalg.lstsq(design, np.array(steps), rcond=None)
    return {
        "step_base_us": round(float(max(base, 0.0)), 2),
        "per_request_us": round(float(max(per_request, 0.0)), 4),
        "steps": [
            {"sequences": count, "step_us": round(step, 2)} for count, step in zip(sequences, steps, strict=True)
        ],
    }


def probe_vllm(path: Path, run: Run | None = None, version: str | None = None) -> dict[str, Any]:
    """Measure the installed vLLM and write the result to a JSON file; RunFailed if vLLM fails."""
    try:
        if run is None:
            run, version = _vllm()
        measured = probe(run)
    except Exception as error:  # an engine may raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunFailed(f"--host-probe: vLLM failed ({reason}); {path} was not written.") from error
    result = {"engine": "vllm", "engine_version": version, **measured}
    result["source"] = "kernelsight calibrate measure --host-probe: two layers of hidden size 256, GPU time included"
    text = json.dumps(result, indent=1) + "\n"
    with durable_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return result


def need_vllm() -> None:
    """Raise InvalidInput if vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise InvalidInput("--host-probe needs vLLM, which is not installed in this Python environment; install it.")


def _vllm() -> tuple[Run, str]:
    import vllm

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SMALL_MODEL), encoding="utf-8")
        engine = vllm.LLM(
            model=folder,
            load_format="dummy",
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=512,
            max_num_seqs=max(SEQUENCES),
            gpu_memory_utilization=0.3,
        )

    def run(sequences: int, tokens: int) -> float:
        sampling = vllm.SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, temperature=0.0)
        prompts = [{"prompt_token_ids": [3 + number % 1000] * PROMPT_TOKENS} for number in range(sequences)]
        started = time.perf_counter()
        engine.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - started

    return run, vllm.__version__
