"""`kernelsight serve` measured by AIPerf: its TTFT, ITL and E2E against `simulate` of the same arrivals.

    python -m venv clients && clients/bin/pip install aiperf
    python benches/server_aiperf.py --aiperf clients/bin/aiperf [--speed X] [--streams N] [--keep FOLDER] [--record]
    python benches/server_aiperf.py --read FOLDER [--record]

No tokenizer is downloaded: one of 4,000 tokens is made from the pages of `docs/`, and server and client both use it.
AIPerf's times are scaled back by the speed. Its ITL is the mean of a request, so `simulate`'s TPOT stands beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from record import ROOT, record
from server import DEPLOYMENT, PERCENTILES, ROUNDS, SHARE, SPAN_MS, percentiles, serving

import kernelsight as ks
from kernelsight.present.output import as_text

VOCABULARY = 4000
LENGTHS = {"synthetic-input-tokens-mean": 64, "synthetic-input-tokens-stddev": 16,
           "output-tokens-mean": 64, "output-tokens-stddev": 16}  # fmt: skip


def make_tokenizer(folder: Path) -> Path:
    """Write a tokenizer of bytes and their pairs, as a folder of Hugging Face's form."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    own = Tokenizer(models.BPE())
    own.pre_tokenizer, own.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    marks = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=marks, initial_alphabet=alphabet)
    own.train([str(page) for page in sorted((ROOT / "docs").rglob("*.md"))], trainer)
    own.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": marks[0], "eos_token": marks[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def run(aiperf: str, speed: float, streams: int, folder: Path) -> None:
    """Let AIPerf load a server of its own; leaves its records and ``run.json`` in the folder."""
    tokenizer = make_tokenizer(folder / "tokenizer")
    flags = LENGTHS | {"concurrency": streams, "request-count": streams * ROUNDS, "random-seed": 1}
    flags |= {"endpoint-type": "completions", "extra-inputs": "ignore_eos:true", "request-timeout-seconds": 36_000}
    flags |= {"workers-max": 1, "record-processors": 1, "ui": "none", "tokenizer": tokenizer, "artifact-dir": folder}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    words += ["--streaming", "--use-server-token-count", "--no-server-metrics", "--no-gpu-telemetry"]
    with serving(speed, "--tokenizer", str(tokenizer)) as server:
        url = f"http://127.0.0.1:{server.port}"
        spent_s, began = server.cpu_s(), time.monotonic()
        command = [aiperf, "profile", "-m", DEPLOYMENT["model"], "--url", url, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        used, wall_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
        facts = {"server_cores": (server.cpu_s() - spent_s) / wall_s, "load_average": os.getloadavg()[0]}
    facts |= {"client_cores": (used.ru_utime + used.ru_stime) / wall_s, "speed": speed, "streams": streams}
    (folder / "run.json").write_text(json.dumps(facts), encoding="utf-8")


def read(folder: Path, speed: float) -> tuple[list[dict[str, float]], int]:
    """Return AIPerf's requests that have ended well, on the simulated clock, and how many have not."""
    lines = (folder / "profile_export.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    rows = []
    for each in found:
        if each.get("error") is None:
            values = {name: metric["value"] for name, metric in each["metrics"].items()}
            rows.append(
                {
                    "arrival_s": each["metadata"]["request_start_ns"] / 1e9 * speed,
                    "prompt_tokens": int(values["usage_prompt_tokens"]),
                    "output_tokens": int(values["usage_completion_tokens"]),
                    "ttft_ms": values["time_to_first_token"] * speed,
                    "itl_ms": values["inter_token_latency"] * speed,
                    "e2e_ms": values["request_latency"] * speed,
                }
            )
    start_s = min(row["arrival_s"] for row in rows)
    rows.sort(key=lambda row: row["arrival_s"])
    return [row | {"arrival_s": row["arrival_s"] - start_s} for row in rows], len(found) - len(rows)


def against(folder: Path) -> dict[str, Any]:
    """Return AIPerf's percentiles beside those of `simulate` with its arrivals, and what `compare` says."""
    facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    rows, failed = read(folder, facts["speed"])
    with ks.connect() as session, _log(rows) as log:
        table = session.simulate(**DEPLOYMENT, trace=str(log)).table("request_metrics")
        cause = session.compare(log=str(log), **DEPLOYMENT).summary["cause"]["kind"]
    found = []
    for name, column in {"ttft": "ttft_ms", "itl": "tpot_ms", "e2e": "e2e_ms"}.items():
        own = percentiles(np.array([row[f"{name}_ms"] for row in rows]))
        ours = percentiles(table[column].drop_null().to_numpy())
        for which in PERCENTILES:
            kept = abs(own[which] - ours[which]) <= max(SHARE * ours[which], SPAN_MS)
            words = {"metric": f"{name}_p{which}", "client_ms": own[which], "simulate_ms": ours[which], "kept": kept}
            found.append(words)
    export = json.loads((folder / "profile_export_aiperf.json").read_text(encoding="utf-8"))
    version = {"aiperf": export["aiperf_version"]}
    return {**facts, **version, "rows": found, "requests": len(rows), "failed": failed, "cause": cause}


@contextlib.contextmanager
def _log(rows: list[dict[str, float]]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        named = [{name: value for name, value in row.items() if name != "itl_ms"} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in named), encoding="utf-8")
        yield path


def main() -> None:
    """Run AIPerf or read what it left, and print both sides."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--aiperf", default="aiperf", help="the command")
    parser.add_argument("--speed", type=float, default=0.01)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--keep", type=Path, help="folder for what AIPerf leaves")
    parser.add_argument("--read", type=Path, metavar="FOLDER", help="of a run that was kept; nothing is run")
    parser.add_argument("--record", action="store_true", help="keep the figures in benches/results/")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = arguments.read or arguments.keep or Path(folder)
        if arguments.read is None:
            run(arguments.aiperf, arguments.speed, arguments.streams, place)
        found = against(place)
    print(as_text(found["rows"], list(found["rows"][0])))
    print(json.dumps({name: value for name, value in found.items() if name != "rows"}))
    if arguments.record:
        words = f"--speed {found['speed']:g} --streams {found['streams']}"
        record("server_aiperf", found, f"python benches/server_aiperf.py --aiperf clients/bin/aiperf {words}")


if __name__ == "__main__":
    main()
