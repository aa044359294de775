"""Inputs of the loop besides limits: host overhead, step costs, load, KV tiers, routing and KV transfers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelsight.serving.engine.records import NO_LIMIT, ROUND_ROBIN


class Host(NamedTuple):
    """Host overhead of one engine, us; the fields of the HOST record, where each is explained."""

    exposed_us: float
    base_us: float
    per_request_us: float
    per_token_us: float
    eager_launches_us: float
    request_us: float
    overlapped: bool
    graph_max_tokens: int
    captured_launches_us: float = 0.0
    gap_us: float = 0.0
    exposed_per_request_us: float = 0.0
    per_prompt_token_us: float = 0.0
    prompt_graph_max_tokens: int = 0
    piecewise_launches_us: float = 0.0
    exposed_requests_half: float = np.inf
    per_output_token_us: float = 0.0
    per_active_us: float = 0.0
    ranks_padded: bool = False
    serial_us: float = 0.0
    serial_token_us: float = 0.0
    adapter_gap_us: float = 0.0
    adapter_eager_us: float = 0.0
    adapter_captured_us: float = 0.0
    drafts_us: float = 0.0

    def without_adapters(self) -> Host:
        """Return the overhead of steps that launch no kernels of adapters."""
        return self._replace(
            exposed_us=self.exposed_us - self.adapter_gap_us,
            gap_us=self.gap_us - self.adapter_gap_us,
            eager_launches_us=self.eager_launches_us - self.adapter_eager_us,
            captured_launches_us=self.captured_launches_us - self.adapter_captured_us,
        )


class Surface(NamedTuple):
    """Step costs of one deployment: dense tables over tokens and sampled sequences, grids over knots, microseconds."""

    token_us: np.ndarray
    padded_tokens: np.ndarray
    sampled_us: np.ndarray
    decode_x: np.ndarray
    decode_y: np.ndarray
    decode_us: np.ndarray
    window_x: np.ndarray
    window_y: np.ndarray
    window_us: np.ndarray
    prefill_x: np.ndarray
    prefill_y: np.ndarray
    prefill_us: np.ndarray
    # all attention of decodes in steps with prompts; empty: as in steps without
    mixed_x: np.ndarray = np.zeros(0)
    mixed_y: np.ndarray = np.zeros(0)
    mixed_us: np.ndarray = np.zeros((0, 0))
    # parts of token_us with pipeline stages: the embedding, and the transfers between stages, [tokens] each
    embedding_us: np.ndarray = np.zeros(0)
    transfer_us: np.ndarray = np.zeros(0)
    # parts of token_us: routed experts, and collectives, [tokens] each
    moe_us: np.ndarray = np.zeros(0)
    communication_us: np.ndarray = np.zeros(0)
    sampled_communication_us: np.ndarray = np.zeros(0)  # part of sampled_us, [sequences]
    # with ranks that step together, where token_us has no experts: routed experts with the all-to-all exchange, by the
    # mean tokens of a rank, [tokens]; and the exchange alone
    experts_us: np.ndarray = np.zeros(0)
    experts_communication_us: np.ndarray = np.zeros(0)
    # padded tokens of steps with prompts, where they differ from those of steps that only decode
    padded_prompt_tokens: np.ndarray = np.zeros(0, np.int64)
    # token_us with adapters, [levels, tokens], and how many different ones the requests of a step have, [levels]
    adapted_us: np.ndarray = np.zeros((0, 0))
    adapter_levels: np.ndarray = np.zeros(0, np.int64)

    @property
    def priced_tokens(self) -> np.ndarray:
        """Padded tokens of every row of the token costs: of steps that only decode, then of steps with prompts."""
        return np.concatenate([self.padded_tokens, self.padded_prompt_tokens])


class Waits(NamedTuple):
    """Dependencies of requests, shape [pairs]: ``request`` is sent ``pause_us`` after ``after`` has finished.

    A request may wait for several, and several for one; there are no cycles.
    """

    request: np.ndarray
    after: np.ndarray
    pause_us: np.ndarray


class Load(NamedTuple):
    """The requests of one client, in order of arrival; with hash blocks of prompts if prefixes may be shared.

    ``hashes``: the hash blocks of all prompts, concatenated, as numbers from 0; request i has those from
    ``hash_offsets[i]`` to ``hash_offsets[i + 1]``. ``hash_tokens``: tokens per hash block; 0: no hashes.
    ``priority``: lower goes first; empty: all equal. ``adapter``: numbers of adapters, -1: none; empty: no request has
    one. ``waits``: dependencies; None: none. The first ``warmups`` requests finish before the clock of the others
    starts. ``max_concurrency``: requests, or sessions, in progress;
    ``user_us``: time after which it is raised by one, from 1 on, while a closed loop ramps up; 0: no ramp.
    """

    arrival_us: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    hashes: np.ndarray = np.zeros(0, np.int64)
    hash_offsets: np.ndarray = np.zeros(0, np.int64)
    hash_tokens: int = 0
    priority: np.ndarray = np.zeros(0, np.int64)
    adapter: np.ndarray = np.zeros(0, np.int64)
    waits: Waits | None = None
    warmups: int = 0
    max_concurrency: int = NO_LIMIT
    user_us: float = 0.0


def together_until(arrival_us: np.ndarray, warmups: int, max_concurrency: int, user_us: float) -> int:
    """Return the request after the last of those that are sent at once after ``warmups``; 0: users ramp up."""
    begins = arrival_us[warmups:][:max_concurrency]
    if user_us > 0.0 or not begins.size:
        return 0
    return warmups + int(np.searchsorted(begins, begins[0], side="right"))


class Tier(NamedTuple):
    """One KV tier of an engine: capacity in KV blocks (NO_LIMIT: unlimited), times of a block on its own link, us.

    ``shared``: one tier, with this capacity, for all engines.
    """

    blocks: int
    read_us: float = 0.0
    write_us: float = 0.0
    latency_us: float = 0.0
    shared: bool = False


class Tiers(NamedTuple):
    """The KV tiers of a deployment, the nearest first, and how they are used (see ``tiers``).

    ``write_policy``: index in WRITE_POLICIES. ``load_ahead``: a request loads during the steps of others, and computes
    nothing until the load ends; otherwise it is in a step at once, which waits for its load. ``prefetch``: reading over
    the tier's own link begins when the request is queued, if the link is free then. ``link_read_us``,
    ``link_write_us``: time of one block between host and GPU, us.
    """

    tiers: tuple[Tier, ...] = ()
    write_policy: int = 0
    load_ahead: bool = False
    prefetch: bool = False
    link_read_us: float = 0.0
    link_write_us: float = 0.0


class Weights(NamedTuple):
    """Weights of a scored router (fields of the WEIGHTS record); ``tier``: value of a block in a KV tier."""

    prefix: float = 0.0
    tier: float = 0.0
    kv_use: float = 0.0
    queue: float = 0.0
    running: float = 0.0
    load: float = 0.0
    adapter: float = 0.0


class Routing(NamedTuple):
    """Routing policy and its parameters (fields of the CLIENT record); see ``router``."""

    router: int = ROUND_ROBIN
    cache_threshold: float = 0.5
    balance_abs_threshold: int = 32
    balance_rel_threshold: float = 1.0001
    weights: Weights = Weights()


class Transfer(NamedTuple):
    """KV transfer from a prefill to a decode engine, us (fields of the LINK record)."""

    token_us: float
    window_token_us: float = 0.0
    window_tokens: int = 0
    sequence_us: float = 0.0
    latency_us: float = 0.0
