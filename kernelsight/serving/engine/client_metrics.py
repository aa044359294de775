"""Latencies of a request (TTFT, TPOT, E2E, ...) as vLLM's benchmark client defines them, in ms.

Times are whole nanoseconds on the simulation's clock. The only definition: compiled code calls it with numbers, tables
with arrays.
"""

from __future__ import annotations

from typing import Any


def ttft_ms(sent_ns: Any, first_token_ns: Any) -> Any:
    """Return the time to first token (TTFT), from sending.

    >>> ttft_ms(1_000_000, 3_500_000)
    2.5
    """
    return (first_token_ns - sent_ns) / 1e6


def tpot_ms(first_token_ns: Any, finish_ns: Any, output_tokens: Any) -> Any:
    """Return the time per output token after the first (TPOT), of requests with two tokens or more.

    >>> tpot_ms(0, 9_000_000, 10)
    1.0
    """
    return (finish_ns - first_token_ns) / 1e6 / (output_tokens - 1)


def e2e_ms(sent_ns: Any, finish_ns: Any) -> Any:
    """Return the end-to-end latency (E2E), from sending to the last token."""
    return (finish_ns - sent_ns) / 1e6


def queue_ms(sent_ns: Any, scheduled_ns: Any, front_end_ns: Any) -> Any:
    """Return the queue time, from the end of the front end's work (HTTP, tokenising) to the first step.

    >>> queue_ms(1_000_000, 3_000_000, 500_000)
    1.5
    """
    return (scheduled_ns - sent_ns - front_end_ns) / 1e6


def prefill_ms(scheduled_ns: Any, first_token_ns: Any) -> Any:
    """Return the prefill time, from the first step to the first token."""
    return (first_token_ns - scheduled_ns) / 1e6


def decode_ms(first_token_ns: Any, finish_ns: Any) -> Any:
    """Return the decode time, from the first token to the last."""
    return (finish_ns - first_token_ns) / 1e6
