"""Synthetic sessions and shared prefixes: common system prompts, and turns that repeat the conversation so far."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

KV_BLOCK = 16  # tokens; the default of vLLM, and the granularity of prefixes
SESSION_BLOCK = 64  # tokens; a multiple of the KV block sizes of engines
NO_REQUEST = -1


class Sessions(NamedTuple):
    """Requests grouped by session, shape [requests] each."""

    session: np.ndarray
    turn: np.ndarray  # position in its session, from 0
    prompt_tokens: np.ndarray


class SharedBlocks(NamedTuple):
    """Hash blocks of prompts: equal ids stand for equal tokens from the start of the prompt."""

    ids: np.ndarray  # of all requests, one after the other
    counts: np.ndarray  # blocks of each request
    block_tokens: int  # tokens of a block; 0: no prefixes are shared, no ids


def sessions_of(new_tokens: np.ndarray, output_tokens: np.ndarray, turns: int, prefix_len: int) -> Sessions:
    """Group requests into sessions of ``turns``; a prompt contains the prefix and the conversation so far.

    prompt(i + 1) = prompt(i) + output(i) + new tokens(i + 1); the last session may be shorter.
    """
    session, turn = np.divmod(np.arange(new_tokens.size), turns)
    total = np.cumsum(new_tokens + output_tokens)
    earlier_sessions = np.concatenate([[0], total])[session * turns]
    return Sessions(session, turn, prefix_len + total - output_tokens - earlier_sessions)


def in_order_of_arrival(sessions: Sessions, arrival_s: np.ndarray, think_s: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return requests ordered by arrival: (order, arrivals in s, turn before each), shape [requests] each.

    ``arrival_s``: of each session's first turn, shape [sessions]; ``think_s``: pause before each request, not read for
    first turns. A later turn is placed at its earliest send time, as if serving took no time; its turn before is a
    position in the order, -1 for first turns.
    """
    paused_s = np.cumsum(np.where(sessions.turn > 0, think_s, 0.0))
    begins = np.flatnonzero(sessions.turn == 0)
    earliest = arrival_s[sessions.session] + (paused_s - paused_s[begins][sessions.session])
    order = np.argsort(earliest, kind="stable")
    position = np.argsort(order)
    before = np.where(sessions.turn > 0, np.concatenate([[NO_REQUEST], position[:-1]]), NO_REQUEST)
    return order, earliest[order], before[order]


def prefix_numbers(generator: np.random.Generator, n: int, num_prefixes: int) -> np.ndarray:
    """Return the prefix number of each of n sessions: equal shares, in random order."""
    return generator.permutation(np.arange(n) % num_prefixes)


def shared_blocks(sessions: Sessions, prefix_of_session: np.ndarray, prefix_len: int) -> SharedBlocks:
    """Return the block ids of every prompt: those of a shared prefix by prefix, all others by session.

    A prompt has ceil(prompt / block) ids. Prompts with the same id have the same tokens up to the end of that block or
    of the shorter one. The prefix is truncated to whole KV blocks of 16 tokens and is one block, so that ids stay few.
    """
    shared = prefix_len // KV_BLOCK * KV_BLOCK
    nothing = np.zeros(0, np.int64), np.zeros(sessions.session.size, np.int64), 0
    if shared == 0 and sessions.turn.max(initial=0) == 0:
        return SharedBlocks(*nothing)
    block, prefix_blocks = (shared, 1) if shared else (SESSION_BLOCK, 0)
    counts = -(-sessions.prompt_tokens // block)
    longest = np.zeros(prefix_of_session.size, np.int64)
    np.maximum.at(longest, sessions.session, counts)
    own_blocks = longest - prefix_blocks
    prefixes = (prefix_of_session.max(initial=-1) + 1) * prefix_blocks
    first = prefixes + np.cumsum(own_blocks) - own_blocks  # first id of each session's own blocks
    block_number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    session = np.repeat(sessions.session, counts)
    ids = np.where(
        block_number < prefix_blocks, prefix_of_session[session], first[session] + block_number - prefix_blocks
    )
    return SharedBlocks(ids, counts, block)
