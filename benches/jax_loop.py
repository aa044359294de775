"""A scheduler's loop as JAX writes it, beside the compiled loop: ``python benches/jax_loop.py``.

    python benches/jax_loop.py [--requests N] [--scenarios N] [--repeats N]

Continuous batching with chunked prompts and 256 seats, as one ``lax.while_loop`` whose carry is the state of all seats:
each iteration admits, computes a step and frees seats. Less than the product does (no blocks, no preemption, a linear
step time, no statistics), and checked against the same rules in plain Python. Figures are requests per CPU-second, of
one scenario and of several under ``vmap``, without compiling, and those of the compiled loop on the same load.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kernelsight.present.output import as_text
from kernelsight.scenario.plan import give_plan, plan_rows
from kernelsight.serving.runs.simulate import serve_replicas
from kernelsight.serving.runs.simulation_inputs import inputs_of_session
from kernelsight.session import connect

SEATS, BUDGET, LENGTH, RATE = 256, 8192, 256, 20.0
# of a step, of a token and of a cached token in it, seconds
STEP_S, TOKEN_S, CONTEXT_S = 6e-3, 2e-5, 5e-9


def served(arrivals: Any) -> Any:
    """Return the seconds at which requests finish, (requests,); ``arrivals``: seconds, ascending, (requests,)."""
    requests = arrivals.size
    seats = jnp.zeros(SEATS, jnp.int32)
    # request of each seat (``requests``: free), its prompt and output tokens to come; then clock, arrived, done, finish
    state = (seats + requests, seats, seats, jnp.float64(0.0), jnp.int32(0), jnp.int32(0), jnp.zeros(requests))

    def going(state: tuple) -> Any:
        return state[5] < requests

    def step(state: tuple) -> tuple:
        request, prompt, output, clock, begun, done, finish = state
        free = request == requests
        next_arrival = arrivals[jnp.minimum(begun, requests - 1)]
        clock = jnp.where(free.all(), jnp.maximum(clock, next_arrival), clock)
        arrived = jnp.searchsorted(arrivals, clock, side="right").astype(jnp.int32)
        place = jnp.cumsum(free) - 1
        enters = free & (place < arrived - begun)
        request = jnp.where(enters, begun + place, request).astype(jnp.int32)
        prompt, output = jnp.where(enters, LENGTH, prompt), jnp.where(enters, LENGTH, output)
        begun = begun + enters.sum(dtype=jnp.int32)
        running = request < requests
        decodes = running & (prompt == 0)
        budget = BUDGET - decodes.sum(dtype=jnp.int32)
        # the rest of the budget goes to prompts in the order of arrival
        order = jnp.argsort(request)
        before = jnp.cumsum(prompt[order]) - prompt[order]
        chunk = jnp.zeros_like(prompt).at[order].set(jnp.clip(budget - before, 0, prompt[order]).astype(jnp.int32))
        cached = jnp.where(running, 2 * LENGTH - prompt - output, 0)
        tokens = decodes.sum() + chunk.sum()
        clock = clock + STEP_S + TOKEN_S * tokens + CONTEXT_S * jnp.where(decodes, cached, 0).sum()
        prompt = prompt - chunk
        output = output - (running & (prompt == 0))
        ends = running & (output == 0)
        finish = finish.at[jnp.where(ends, request, requests)].set(clock, mode="drop")
        done = done + ends.sum(dtype=jnp.int32)
        return jnp.where(ends, requests, request), prompt, output, clock, begun, done, finish

    return jax.lax.while_loop(going, step, state)[6]


def served_plainly(arrivals: np.ndarray) -> np.ndarray:
    """Return what :func:`served` does, one request after the other."""
    finish, clock, begun = np.zeros(arrivals.size), 0.0, 0
    seats: dict[int, list[int]] = {}  # by request: prompt and output tokens to come
    while begun < arrivals.size or seats:
        if not seats:
            clock = max(clock, arrivals[begun])
        while begun < arrivals.size and arrivals[begun] <= clock and len(seats) < SEATS:
            seats[begun] = [LENGTH, LENGTH]
            begun += 1
        decoding = [left for left in seats.values() if left[0] == 0]
        budget = BUDGET - len(decoding)
        tokens = len(decoding)
        cached = sum(2 * LENGTH - sum(left) for left in decoding)
        for left in seats.values():
            chunk = min(left[0], budget)
            left[0], budget, tokens = left[0] - chunk, budget - chunk, tokens + chunk
            left[1] -= left[0] == 0
        clock += STEP_S + TOKEN_S * tokens + CONTEXT_S * cached
        for request in [request for request, left in seats.items() if left[1] == 0]:
            finish[request] = clock
            del seats[request]
    return finish


def rate(work: Callable[[], Any], requests: int, repeats: int) -> float:
    """Return the most requests per CPU-second of several calls."""
    work()
    spent = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        spent.append(time.process_time() - started)
    return requests / min(spent)


def main() -> None:
    """Check the loop, measure it and the product's, and print requests per CPU-second."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--scenarios", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    arrivals = np.cumsum(random.exponential(1.0 / RATE, (arguments.scenarios, arguments.requests)), axis=1)
    with jax.enable_x64(True):
        one, many = jax.jit(served), jax.jit(jax.vmap(served))
        few = arrivals[0, :300] / 4.0
        assert np.allclose(one(few), served_plainly(few), rtol=1e-9), "the loop does not keep its rules"
        jax_one = rate(lambda: one(arrivals[0]).block_until_ready(), arguments.requests, arguments.repeats)
        every = arguments.requests * arguments.scenarios
        jax_many = rate(lambda: many(arrivals).block_until_ready(), every, 1)
    flags = {"model": "llama-3.1-8b", "gpu": "h100_sxm", "input_len": LENGTH, "output_len": LENGTH}
    flags |= {"max_num_seqs": SEATS, "request_rate": RATE, "num_prompts": arguments.requests}
    with connect() as session:
        plan = plan_rows(session, [flags])
        give_plan(session, list(plan.deployments.values()), plan.planned)
        inputs = inputs_of_session(session.table)
        compiled = rate(lambda: serve_replicas(inputs, count_uses=False), arguments.requests, arguments.repeats)
    rows = [
        {"loop": "JAX lax.while_loop, one scenario", "requests per CPU-s": jax_one},
        {"loop": f"JAX under vmap, {arguments.scenarios} scenarios", "requests per CPU-s": jax_many},
        {"loop": "the compiled loop, with blocks, preemption and statistics", "requests per CPU-s": compiled},
    ]
    rows = [row | {"times slower": compiled / row["requests per CPU-s"]} for row in rows]
    print(as_text(rows, list(rows[0])))


if __name__ == "__main__":
    main()
