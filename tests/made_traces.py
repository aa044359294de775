"""Traces in the formats of published ones, made up: the lengths, gaps and shared prefixes are drawn here."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np

HASH_TOKENS = 512
SYSTEM_PROMPTS = 4


class Asked(NamedTuple):
    """One request: when it comes (ms), its prompt and output in tokens, and a number for each block of its prompt."""

    arrival_ms: int
    prompt: int
    output: int
    hashes: list[int]

    def as_line(self) -> str:
        """Return the request as Mooncake writes it."""
        names = ("timestamp", "input_length", "output_length", "hash_ids")
        return json.dumps(dict(zip(names, self, strict=True))) + "\n"


def conversations(requests: int, seed: int = 0) -> list[Asked]:
    """Return turns of conversations: a turn's prompt is the one before, its answer, and something new.

    A third of the turns begin a conversation, with one of SYSTEM_PROMPTS texts; the others go on with one that is open,
    rather a recent one, or ask its last turn again. A block of HASH_TOKENS tokens has the number of its text and of all
    before it; a last block that is partly filled has a number of its own, unless the same prompt comes again.
    """
    random = np.random.default_rng(seed)
    system = [list(range(first, first + 3)) for first in range(0, 3 * SYSTEM_PROMPTS, 3)]
    new, asked, open_ones, clock = 3 * SYSTEM_PROMPTS, [], [], 0
    for _ in range(requests):
        kind = random.choice(["first", "next", "again"], p=[0.34, 0.6, 0.06]) if open_ones else "first"
        if kind == "first":
            text, prompt = system[random.integers(SYSTEM_PROMPTS)], 0
            prompt = len(text) * HASH_TOKENS + int(random.integers(1, 2000))
        else:
            prompt, answer, text = open_ones.pop(max(-1 - int(random.exponential(30.0)), -len(open_ones)))
            if kind == "next":
                text, prompt = text[: prompt // HASH_TOKENS], prompt + answer + int(random.integers(1, 1500))
        blocks = -(-prompt // HASH_TOKENS)
        text = [*text, *range(new, new + blocks - len(text))]
        new = max(new, *(number + 1 for number in text))
        output = int(random.integers(1, 800))
        asked.append(Asked(clock, prompt, output, text))
        clock += int(random.exponential(300.0))
        open_ones = [*open_ones, (prompt, output, text)]
    return asked


class Sent(NamedTuple):
    """One request of a trace without texts: when it comes, in ticks of 100 ns, and its prompt and output in tokens."""

    arrival: int
    prompt: int
    output: int


def arrivals(requests: int, seed: int = 0) -> list[Sent]:
    """Return requests in order of arrival, some of them in the same tick."""
    random = np.random.default_rng(seed)
    ticks = np.cumsum(random.choice([0, 1, 400_000, 9_000_000, 70_000_000], requests) * random.integers(1, 9, requests))
    lengths = random.integers(1, [7500, 900], (requests, 2))
    return [Sent(*map(int, row)) for row in zip(ticks - ticks[0], *lengths.T, strict=True)]


def azure_csv(sent: list[Sent], start: str = "2023-11-16 18:17:03.9799600") -> bytes:
    """Return requests as Azure published them in 2023: seven decimals of a second, CRLF, none after the last row."""
    whole, first = datetime.fromisoformat(start[:19]), int(start[20:])
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for one in sent:
        seconds, ticks = divmod(first + one.arrival, 10**7)
        rows.append(f"{whole + timedelta(seconds=seconds)}.{ticks:07d},{one.prompt},{one.output}")
    return "\r\n".join(rows).encode()
