"""What ``/metrics`` states fits together, and fits what clients saw: at each speed, over engines and choices."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import defaultdict
from collections.abc import Callable

import pytest

import kernelsight as ks
from kernelsight.serving.runs.step_times import Deployed, deploy

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from kernelsight.server.app import Server
from kernelsight.server.start import server_of
from tests.server.asgi import Reply, VirtualLoop, ask, on_loop

OPTIONS = {
    **{"seed": 0, "output_len": 12, "range_ratio": 0.5, "served_model_name": None},
    **{"tokenizer": None, "max_waiting_requests": 64},
}
CLIENTS, TURNS = 6, 3
SPEEDS = (1.0, 10.0, 1000.0)
RESTING = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
ENDS = ("e2e_request_latency", "request_queue_time", "request_inference_time", "request_prefill_time",
        "request_decode_time")  # fmt: skip


@pytest.fixture(scope="module", params=[{}, {"data_parallel_size": 2}], ids=["one engine", "two ranks"])
def deployed(request: pytest.FixtureRequest) -> Deployed:
    with ks.connect() as session:
        return deploy(session, {"model": "qwen3-0.6b", "gpu": "l4", "max_num_seqs": 4} | request.param)


def busy_loop(tick_s: float) -> Callable[[], VirtualLoop]:
    """Return a maker of event loops of a machine so busy that ``tick_s`` pass between two looks at the clock."""

    class BusyLoop(VirtualLoop):
        def time(self) -> float:
            self.now_s += tick_s
            return self.now_s

    return BusyLoop


def stated(server: Server) -> dict[str, list[float]]:
    """Return the samples of ``/metrics`` by name, in the order of engines."""
    found = defaultdict(list)
    for line in server.metrics.text().decode().splitlines():
        if match := re.fullmatch(r"vllm:(\w+)\{(.*)\} (\S+)", line):
            found[match[1]].append(float(match[3]))
    return found


async def clients(server: Server, stream: bool) -> list[tuple[float, Reply]]:
    """Return what clients got that send their requests one after the other, and when each request was sent."""

    async def one(number: int) -> list[tuple[float, Reply]]:
        found = []
        for turn in range(TURNS):
            length = 40 + 7 * number + turn
            body = {"prompt": [number] * length, "max_tokens": 5 + number, "n": 1 + number % 3, "stream": stream}
            sent_s = asyncio.get_running_loop().time()
            found.append((sent_s, await ask(server.app, "POST", "/v1/completions", body)))
        return found

    return list(itertools.chain(*await asyncio.gather(*map(one, range(CLIENTS)))))


def assert_fits(server: Server) -> dict[str, float]:
    """Check the relations that hold when all requests have ended, and return each sum over the engines."""
    found = stated(server)
    choices = TURNS * sum(1 + number % 3 for number in range(CLIENTS))
    tokens = TURNS * sum((1 + number % 3) * (5 + number) for number in range(CLIENTS))
    assert not any(value for name in RESTING for value in found[name])
    engines = server.engines.engines.size
    firsts, ends = found["time_to_first_token_seconds_count"], found["e2e_request_latency_seconds_count"]
    assert len(firsts) == engines and all(firsts) and firsts == ends and sum(firsts) == choices
    for name in ENDS:
        assert found[f"{name}_seconds_count"] == ends and min(found[f"{name}_seconds_sum"]) >= 0.0
    assert sum(found["generation_tokens_total"]) == tokens
    assert sum(found["inter_token_latency_seconds_count"]) == tokens - choices
    for first, queued, prefill, decode, gaps, whole in zip(
        *(found[f"{name}_seconds_sum"] for name in ("time_to_first_token", "request_queue_time",
          "request_prefill_time", "request_decode_time", "inter_token_latency", "e2e_request_latency")), strict=True
    ):  # fmt: skip
        assert 0.0 < first <= whole
        assert queued + prefill == pytest.approx(first) and gaps == pytest.approx(decode)
        assert first + decode == pytest.approx(whole)
    return {name: sum(values) for name, values in found.items()}


@pytest.mark.parametrize("speed", SPEEDS)
def test_a_busy_machine_states_what_fits_together(deployed: Deployed, speed: float) -> None:
    """Between two looks at the clock whole answers come due, also while their request is still being sent."""
    server = server_of(deployed, None, OPTIONS | {"speed": speed})
    on_loop(server.app, lambda: clients(server, False), busy_loop(0.05 / speed))
    assert_fits(server)


@pytest.mark.parametrize("speed", SPEEDS)
def test_clients_see_the_stated_times(deployed: Deployed, speed: float) -> None:
    """On a machine that is never late, the clients' own clocks give the sums of the server."""
    server = server_of(deployed, None, OPTIONS | {"speed": speed})
    found = on_loop(server.app, lambda: clients(server, True))
    sums = assert_fits(server)
    first_s = end_s = 0.0
    for sent_s, reply in found:
        events = [event.split(b"data: ")[1:] for event in reply.parts]
        at: dict[str, list[float]] = defaultdict(list)
        for time_s, several in zip(reply.times_s, events, strict=True):
            for event in several:
                if index := re.search(rb'"choices":\[\{"index":(\d+)', event):
                    at[index[1].decode()].append(time_s - sent_s)
        first_s += sum(times_s[0] for times_s in at.values())
        end_s += sum(times_s[-1] for times_s in at.values())
    assert first_s * speed == pytest.approx(sums["time_to_first_token_seconds_sum"], abs=1e-4)
    assert end_s * speed == pytest.approx(sums["e2e_request_latency_seconds_sum"], abs=1e-4)


def test_two_slots_serve_many_requests() -> None:
    """A slot is taken again as soon as it is free: each request gets its own tokens, and its own times are stated."""
    with ks.connect() as session:
        deployed = deploy(session, {"model": "qwen3-0.6b", "gpu": "l4", "max_num_seqs": 1})
    server = server_of(deployed, None, OPTIONS | {"speed": 1.0, "max_waiting_requests": 1})
    step_s = 0.002

    async def main() -> list[Reply]:
        replies = []
        for number in range(24):
            body = {"prompt": [number] * 30, "max_tokens": 2 + number % 3}
            replies.append(asyncio.ensure_future(ask(server.app, "POST", "/v1/completions", body)))
            await asyncio.sleep(step_s)
            while server.engines.free == 0:
                await asyncio.sleep(step_s)
        return await asyncio.wait_for(asyncio.gather(*replies), 100.0)

    replies = on_loop(server.app, main)
    assert [reply.json()["usage"]["completion_tokens"] for reply in replies] == [2 + n % 3 for n in range(24)]
    found = stated(server)
    assert found["e2e_request_latency_seconds_count"] == [24.0]
    (queued,), (prefill,), (first,) = (
        found[f"{name}_seconds_sum"] for name in ("request_queue_time", "request_prefill_time", "time_to_first_token")
    )
    assert queued + prefill == pytest.approx(first)
    assert found["prompt_tokens_total"] == [24 * 30.0] and not any(found["num_requests_running"])
