"""Parses the bin probabilities of a language model's answer, and computes quantiles of the speed-up from them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_values import json_values, parse_json
from kernelsight.files.budget import SCRAPE
from kernelsight.files.numbers import is_number
from kernelsight.searching.llm.prompt import BINS, EDGES

# edges of the bins in the log of the speed-up; the outer ones are as wide as an octave
# objects that are looked for in the text of an answer
MOST_OBJECTS = 100
LOG_EDGES = np.log(np.array([EDGES[0] / 2.0, *EDGES, EDGES[-1] * 2.0]))


class Answer(NamedTuple):
    """Eight probabilities, normalised, and their sum before that; or the failure for which there are none."""

    probabilities: np.ndarray | None
    raw_sum: float | None
    failure: str | None


def read_answer(body: Mapping[str, Any]) -> Answer:
    """Parse the probabilities of a chat completion, from its tool call, else from a JSON object in its text.

    Failures: no_answer (neither), truncated (cut by the limit of tokens), missing_field, invalid_probability.
    """
    fields, failure = _fields(body, BINS)
    if fields is None:
        return Answer(None, None, failure)
    if any(name not in fields for name in BINS):
        return Answer(None, None, "missing_field")
    values = [fields[name] for name in BINS]
    if not all(_is_probability(value) for value in values) or sum(values) <= 0.0:
        return Answer(None, None, "invalid_probability")
    raw = float(sum(values))
    return Answer(np.array(values, dtype=float) / raw, raw, None)


def read_source(body: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str | None]:
    """Parse the source text of a chat completion, and changed parameters; return (fields, failure)."""
    fields, failure = _fields(body, ("source_text",))
    if fields is not None and (not isinstance(fields.get("source_text"), str) or not fields["source_text"].strip()):
        return None, "missing_field"
    return fields, failure


def _fields(body: Mapping[str, Any], names: Sequence[str]) -> tuple[dict[str, Any] | None, str | None]:
    """Return the fields of a completion's tool call, else of a JSON object in its text; or why there are none."""
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    fields = _tool_fields(message) or _text_fields(message.get("content"), names)
    cut = choice.get("finish_reason") == "length"
    return fields, None if fields is not None else "truncated" if cut else "no_answer"


def _is_probability(value: Any) -> bool:
    return is_number(value) and value >= 0.0


def _tool_fields(message: Mapping[str, Any]) -> dict[str, Any] | None:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls or not isinstance(calls[0], dict):
        return None
    function = calls[0].get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str):
        with contextlib.suppress(InvalidInput):
            arguments = parse_json(arguments, InvalidInput, SCRAPE)
    return arguments if isinstance(arguments, dict) else None


def _text_fields(text: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """Return the last JSON object in a text that has one of the fields ``names``."""
    if not isinstance(text, str):
        return None
    fields, start = None, text.find("{")
    for _ in range(MOST_OBJECTS):
        if start < 0:
            break
        value, end = None, start + 1
        with contextlib.suppress(ValueError):
            value, end = next(json_values(text, start))
        if isinstance(value, dict) and any(name in value for name in names):
            fields = value
        start = text.find("{", end)
    return fields


def log_quantile(probabilities: np.ndarray, probability: float) -> float:
    """Return a quantile of the log speed-up; probability is uniform inside a bin.

    >>> round(float(np.exp(log_quantile(np.array([0, 0, 0, 0.5, 0.5, 0, 0, 0]), 0.5))), 3)
    1.0
    """
    return float(np.interp(probability, *_rising(np.append(0.0, np.cumsum(probabilities)), LOG_EDGES)))


def share_below(probabilities: np.ndarray, log_speed_up: float) -> float:
    """Return the cumulative probability at a log speed-up."""
    return float(np.interp(log_speed_up, LOG_EDGES, np.append(0.0, np.cumsum(probabilities))))


def _rising(cumulative: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a cumulative distribution and its edges without empty bins, over which the inverse is not unique."""
    rises = np.append(True, np.diff(cumulative) > 0.0)
    starts = np.append(np.diff(cumulative) > 0.0, False)
    keep = rises | starts
    return cumulative[keep] + np.arange(int(keep.sum())) * 1e-15, edges[keep]


def log_spread(probabilities: np.ndarray) -> float:
    """Return the standard deviation of the log speed-up."""
    middle = 0.5 * (LOG_EDGES[1:] + LOG_EDGES[:-1])
    inside = np.diff(LOG_EDGES) ** 2 / 12.0
    mean = float(probabilities @ middle)
    return math.sqrt(float(probabilities @ ((middle - mean) ** 2 + inside)))


def isotonic(confidence: np.ndarray, hit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit isotonic regression of hits on confidence; return (confidences, shares of hits), both increasing.

    >>> isotonic(np.array([0.2, 0.4, 0.6, 0.8]), np.array([0.0, 1.0, 0.0, 1.0]))[1].tolist()
    [0.0, 0.5, 0.5, 1.0]
    """
    levels, level = np.unique(confidence, return_inverse=True)
    hits, counts = np.bincount(level, hit.astype(float)), np.bincount(level)
    return levels, isotonic_regression(hits / counts, weights=counts).x
