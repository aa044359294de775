"""Errors and limits of `kernelsight serve` as measured by clients: times against `simulate`, streams, memory, floods.

    python benches/server.py [--parts times,kept,many,held,steps] [--speed X] [--streams N] [--record]

The client (`server_client.py`) connects to the command over this machine's sockets. Times are scaled back by the speed;
`late` is the delay of the client's own timer, which no server can avoid. `times`: percentiles of TTFT, ITL and E2E, and
the cause that `compare` finds in the client's log; `kept`: the most streams with correct times at speed 1; `many`:
10,000 requests with clients that disconnect or read slowly, then a flood; `held`: 1,100 half-sent requests and 256
clients that stop reading; `steps`: batches per second of `step_time`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from record import record
from server_client import Request, Response, closed_loop, late_ms, send_completion

import kernelsight as ks
from kernelsight.present.output import as_text

DEPLOYMENT = {"model": "llama-3.1-8b", "gpu": "h100_sxm", "max_num_seqs": 256}
FLAGS = [word for name, value in DEPLOYMENT.items() for word in (f"--{name.replace('_', '-')}", str(value))]
# a time is kept if it is within this share or span of the prediction
SHARE, SPAN_MS = 0.05, 2.0
PERCENTILES = (50, 99)
ROUNDS = 3
# calls of `ks.step_time`, which resolves its flags every time
BY_FLAGS = 1_000
# fewest requests of a closed loop, for stable medians
FEWEST = 60
TICK = os.sysconf("SC_CLK_TCK")


class Running(NamedTuple):
    """A running server process: its port and process id."""

    port: int
    process: int

    def cpu_s(self) -> float:
        """Return the server's CPU seconds so far."""
        fields = Path(f"/proc/{self.process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def memory_mb(self) -> float:
        """Return the server's resident memory, MiB."""
        text = Path(f"/proc/{self.process}/status").read_text(encoding="utf-8")
        return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) / 1024

    def metric(self, name: str) -> float:
        """Return the sum over labels of a metric of `/metrics`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}"))


@contextlib.contextmanager
def serving(speed: float, *words: str) -> Iterator[Running]:
    """Run `kernelsight serve` on a free port while the context is open."""
    command = [sys.executable, "-m", "kernelsight", "serve", *FLAGS, "--port", "0", "--speed", str(speed), *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            port = next((int(match[1]) for line in process.stderr if (match := re.search(r"//\S+:(\d+),", line))), None)
            if port is None:
                raise SystemExit("kernelsight serve has ended")
            yield Running(port, process.pid)
        finally:
            process.terminate()


def drawn(count: int, seed: int) -> list[Request]:
    """Return ``count`` random requests of 16 to 128 prompt and 32 to 96 output tokens."""
    random = np.random.default_rng(seed)
    sizes = zip(random.integers(16, 129, count).tolist(), random.integers(32, 97, count).tolist(), strict=True)
    return [Request(*size) for size in sizes]


def measured(responses: Sequence[Response], speed: float) -> dict[str, np.ndarray]:
    """Return the clients' TTFT, ITL and E2E, ms of the simulated clock."""
    gaps = [np.diff(each.times_s) for each in responses]
    times = {
        "ttft": np.array([each.times_s[0] - each.sent_s for each in responses]),
        "itl": np.concatenate(gaps),
        "e2e": np.array([each.times_s[-1] - each.sent_s for each in responses]),
    }
    return {name: values * 1e3 * speed for name, values in times.items()}


def write_log(responses: Sequence[Response], speed: float, path: Path) -> None:
    """Write the responses, on the simulated clock, as a log that `simulate --trace` and `compare --log` read."""
    responses = sorted(responses, key=lambda each: each.sent_s)
    rows = [
        {
            "arrival_s": (each.sent_s - responses[0].sent_s) * speed,
            **{"prompt_tokens": each.request.prompt_tokens, "output_tokens": each.request.output_tokens},
            "ttft_ms": (each.times_s[0] - each.sent_s) * 1e3 * speed,
            "e2e_ms": (each.times_s[-1] - each.sent_s) * 1e3 * speed,
        }
        for each in responses
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def predicted(session: ks.Session, log: Path) -> dict[str, dict[int, float]]:
    """Return the percentiles that `simulate` predicts for a log's arrivals, ms."""
    run = session.simulate(**DEPLOYMENT, trace=str(log))
    table = run.table("request_metrics")
    percentiles_of = {name: percentiles(table[f"{name}_ms"].to_numpy()) for name in ("ttft", "e2e")}
    return percentiles_of | {"itl": {which: run.summary["itl_ms"][f"p{which}"] for which in PERCENTILES}}


def percentiles(values: np.ndarray) -> dict[int, float]:
    """Return the compared percentiles of some values."""
    return {which: float(np.percentile(values, which)) for which in PERCENTILES}


def against(session: ks.Session, responses: Sequence[Response], speed: float, log: Path) -> dict[str, Any]:
    """Return measured and predicted percentiles, and whether all are within the tolerance."""
    whole = [each for each in responses if each.whole]
    write_log(whole, speed, log)
    client, simulated = measured(whole, speed), predicted(session, log)
    rows = []
    for name in ("ttft", "itl", "e2e"):
        for which, value in percentiles(client[name]).items():
            difference_ms, expected = value - simulated[name][which], simulated[name][which]
            kept = abs(difference_ms) <= max(SHARE * expected, SPAN_MS)
            rows.append({"metric": f"{name}_p{which}", "client_ms": value, "simulate_ms": expected, "kept": kept})
    return {"rows": rows, "kept": all(row["kept"] for row in rows), "whole": len(whole), "requests": len(responses)}


def loop(server: Running, session: ks.Session, speed: float, streams: int, log: Path) -> dict[str, Any]:
    """Return the times of a closed loop of ``streams`` streams, and the cores that server and client took."""
    requests = drawn(max(streams * ROUNDS, FEWEST), streams)
    server_s, client_s, started = server.cpu_s(), time.process_time(), time.monotonic()
    responses, late = asyncio.run(late_ms(closed_loop(server.port, streams, requests, seed=streams)))
    wall_s = time.monotonic() - started
    tokens = sum(int(each.tokens.sum()) for each in responses)
    spent_s = server.cpu_s() - server_s
    return {
        **{"streams": streams, "speed": speed, "wall_s": wall_s, "tokens": tokens},
        **{"server_cores": spent_s / wall_s, "client_cores": (time.process_time() - client_s) / wall_s},
        **{"server_us_per_token": spent_s / tokens * 1e6, "load_average": os.getloadavg()[0]},
        **{"late_p50_ms": float(np.median(late)), "late_p99_ms": float(np.percentile(late, 99))},
        **against(session, responses, speed, log),
    }


def times(session: ks.Session, speed: float, streams: int, folder: Path) -> dict[str, Any]:
    """Return the times of one closed loop, and the cause that `compare` finds in its log."""
    log = folder / "times.jsonl"
    with serving(speed) as server:
        figures = loop(server, session, speed, streams, log)
    return figures | {"cause": session.compare(log=str(log), **DEPLOYMENT).summary["cause"]["kind"]}


def kept(session: ks.Session, most: int, folder: Path) -> dict[str, Any]:
    """Return the most streams, of powers of two, up to which median times are kept at speed 1."""
    rows, streams = [], 1
    with serving(1.0) as server:
        # the first requests of a process include loading
        asyncio.run(closed_loop(server.port, 1, drawn(2, 0), seed=0))
        while streams <= most:
            rows.append(loop(server, session, 1.0, streams, folder / f"kept_{streams}.jsonl"))
            medians = [row["kept"] for row in rows[-1]["rows"] if row["metric"].endswith("_p50")]
            rows[-1]["medians_kept"] = all(medians)
            streams *= 2
    kept_by = [row["medians_kept"] for row in rows]
    first_miss = kept_by.index(False) if False in kept_by else len(rows)
    return {"most": rows[first_miss - 1]["streams"] if first_miss else 0, "rows": rows}


def many(count: int) -> dict[str, Any]:
    """Return time, memory and remaining requests of a server after requests of which a tenth disconnect or pause."""
    behaviours = [{"leaves": True}] + [{"pause_s": 0.2}] + [{}] * 18
    requests = [Request(24, 8, **behaviours[number % len(behaviours)]) for number in range(count)]
    with serving(100.0, "--max-waiting-requests", "128") as server:
        memory = [server.memory_mb()]
        cpu_before_s = server.cpu_s()
        for start in range(0, count, count // 10):
            part = requests[start : start + count // 10]
            responses = asyncio.run(closed_loop(server.port, 128, part, seed=len(part)))
            memory.append(server.memory_mb())
        spent_s = server.cpu_s() - cpu_before_s
        whole = all(each.whole for each in responses if not each.request.leaves)
        left_behind = server.metric("num_requests_running{") + server.metric("num_requests_waiting{")
    return {
        **{"requests": count, "whole": whole, "server_ms_per_request": spent_s / count * 1e3},
        **{"memory_mb": memory, "left_behind": left_behind, "flood": flood(800)},
    }


def flood(count: int) -> dict[str, Any]:
    """Return the numbers of answered and rejected requests of ``count`` sent at once, and memory in MiB."""

    async def all_at_once(port: int) -> list[Response]:
        random = np.random.default_rng(0)
        return await asyncio.gather(*(send_completion(port, Request(24, 16), random) for _ in range(count)))

    with serving(0.02, "--max-waiting-requests", "128") as server:
        before_mb = server.memory_mb()
        responses = asyncio.run(all_at_once(server.port))
        memory = [before_mb, server.memory_mb()]
    counts = {str(status): sum(each.status == status for each in responses) for status in (200, 429)}
    return {"sent": count, "room": DEPLOYMENT["max_num_seqs"] + 128, **counts, "memory_mb": memory}


def held(count: int, slow: int) -> dict[str, Any]:
    """Return what a server does beside ``count`` half-sent requests and ``slow`` clients that stop reading for 10 s.

    Its memory in MiB before, meanwhile and after, the seconds in which /health answers, and the requests left behind.
    """

    async def beside(server: Running) -> tuple[float, float, list[Response]]:
        half = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(count)]
        for _, writer in half:
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: 1000\r\n\r\n{")
        random = np.random.default_rng(0)
        streams = [asyncio.ensure_future(send_completion(server.port, Request(24, 2000, pause_s=10.0), random))
                   for _ in range(slow)]  # fmt: skip
        await asyncio.sleep(5.0)
        began = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health") as page:
            page.read()
        health_s, memory = time.perf_counter() - began, server.memory_mb()
        responses = await asyncio.gather(*streams)
        for _, writer in half:
            writer.close()
        await asyncio.sleep(1.0)
        return health_s, memory, responses

    with serving(100.0, "--max-waiting-requests", "128") as server:
        before_mb = server.memory_mb()
        health_s, meanwhile_mb, responses = asyncio.run(beside(server))
        left_behind = server.metric("num_requests_running{") + server.metric("num_requests_waiting{")
        memory = [before_mb, meanwhile_mb, server.memory_mb()]
    whole = sum(each.whole for each in responses)
    return {"half_open": count, "slow": slow, "whole": whole, "health_s": health_s, "memory_mb": memory,
            "left_behind": left_behind}  # fmt: skip


def steps() -> dict[str, Any]:
    """Return the batches per CPU-second of the object of `session.step_times` and of `ks.step_time`, in single calls.

    And of the object over arrays.
    """
    rows = []
    with ks.connect() as session:
        step = session.step_times(**DEPLOYMENT)
    for sequences in (8, 64, 256):
        batch, count = [(1, 1000)] * sequences, 20_000
        arrays = np.ones(count * sequences, int), np.full(count * sequences, 1000), np.arange(count + 1) * sequences
        step(arrays), step(batch), ks.step_time(DEPLOYMENT, batch)
        began = time.process_time()
        for _ in range(BY_FLAGS):
            ks.step_time(DEPLOYMENT, batch)
        by_flags = BY_FLAGS / (time.process_time() - began)
        started = time.process_time()
        for _ in range(count):
            step(batch)
        between = time.process_time()
        step(arrays)
        single, many_s = between - started, time.process_time() - between
        speeds = {"by_flags_per_s": by_flags, "single_per_s": count / single, "arrays_per_s": count / many_s}
        rows.append({"sequences": sequences, **speeds})
    return {"rows": rows}


def main() -> None:
    """Run the named parts and print their figures; record them with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", default="times,kept,many,held,steps")
    parser.add_argument("--speed", type=float, default=0.05, help="of `times`")
    parser.add_argument("--streams", type=int, default=256, help="of `times`")
    parser.add_argument("--most", type=int, default=512, help="streams of `kept`")
    parser.add_argument("--requests", type=int, default=10_000, help="of `many`")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    words = f" --speed {arguments.speed:g} --streams {arguments.streams}"
    with ks.connect() as session, tempfile.TemporaryDirectory() as folder:
        parts = {
            "times": lambda: times(session, arguments.speed, arguments.streams, Path(folder)),
            "kept": lambda: kept(session, arguments.most, Path(folder)),
            "many": lambda: many(arguments.requests),
            "held": lambda: held(1100, 256),
            "steps": steps,
        }
        for name in arguments.parts.split(","):
            figures = parts[name]()
            show(name, figures)
            if arguments.record:
                more = words if name == "times" else ""
                record(f"server_{name}", figures, f"python benches/server.py --parts {name}{more}")


def show(name: str, figures: dict[str, Any]) -> None:
    """Print the figures of a part."""
    rows = figures.get("rows")
    if rows:
        print(as_text(rows, [column for column in rows[0] if column != "rows"]))
    print(f"{name}:", json.dumps({key: value for key, value in figures.items() if key != "rows"}, default=float))


if __name__ == "__main__":
    main()
