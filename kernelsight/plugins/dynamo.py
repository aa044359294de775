"""Dynamo's mocker: the profile data that it reads its times from, as a grid of our step times.

Its contract: ``PerfModel::from_npz`` of ``lib/mocker/src/common/perf_model.rs`` of ai-dynamo/dynamo @ 0894f5c. An NPZ
file has five arrays of float64. The prefill of a step is interpolated by the sum of its new tokens, its decode by the
sum of the contexts in the batch and their mean; a decode lasts at least 1 ms. Nothing of Dynamo is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import kernelsight
from kernelsight.serving.runs.step_times import StepTimes

# of an axis of decodes: neighbours lie at most 15 % apart up to 128 Ki tokens
POINTS = 96
# of prompts: their times rise in stairs, by tiles of GEMMs
PROMPTS = 1024
SHORTEST = 16


def write_profile_data(path: str | Path, flags: Mapping[str, Any]) -> Path:
    """Write the file for the mocker's ``--planner-profile-data`` from a deployment's flags; returns its path.

    InvalidInput: a deployment whose steps have no time of their own. State the same ``max_num_seqs`` and
    ``max_num_batched_tokens`` to the mocker: the grid ends there.
    """
    with kernelsight.connect() as session:
        arrays = profile_data(session.step_times(**flags))
    file = Path(path).with_suffix(".npz")
    np.savez(file, **arrays)
    return file


def profile_data(times: StepTimes) -> dict[str, np.ndarray]:
    """Return the arrays of the mocker's profile data, in tokens and milliseconds.

    A prefill is one prompt without cached tokens, the only one that a sum of tokens names; decodes have equal contexts.
    """
    limits = times.limits
    prompts = _axis(1, min(limits.max_num_batched_tokens, limits.max_model_len), PROMPTS)
    contexts = _axis(SHORTEST, limits.max_model_len - 1, POINTS)
    active = _axis(SHORTEST, limits.max_num_seqs * contexts[-1], POINTS)
    prompt_times = times((prompts, np.zeros_like(prompts), np.arange(prompts.size + 1)))
    decode = np.stack([_decode_us(times, active / context, context) for context in contexts], axis=1)
    return {
        "prefill_isl": prompts.astype(float),
        "prefill_ttft_ms": prompt_times.latency_us / 1e3,
        "decode_active_kv_tokens": active.astype(float),
        "decode_context_length": contexts.astype(float),
        "decode_itl": decode / 1e3,
    }


def _axis(first: int, last: int, points: int) -> np.ndarray:
    """Return whole numbers from first to last, each about as many times the one before.

    >>> _axis(1, 1000, 4).tolist()
    [1, 10, 100, 1000]
    """
    return np.unique(np.geomspace(first, last, points).round().astype(np.int64))


def _decode_us(times: StepTimes, batches: np.ndarray, context: int) -> np.ndarray:
    """Return the times of decode steps; a batch that is no whole number lies between its neighbours.

    Batches below 1 and beyond the engine's own limit, which the mocker never asks for, go on as the grid does there.
    """
    sizes = np.unique(np.concatenate([np.floor(batches), np.ceil(batches)]).clip(1, times.limits.max_num_seqs))
    offsets = np.append(0, sizes.cumsum()).astype(np.int64)
    ones = np.ones(offsets[-1], np.int64)
    return np.interp(batches, sizes, times((ones, ones * int(context), offsets)).latency_us)
