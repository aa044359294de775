"""Errors of `kernelsight serve` as measured by AIPerf: TTFT, ITL and E2E against `simulate` of the same arrivals.

    python -m venv clients && clients/bin/pip install aiperf
    python benches/server_aiperf.py --aiperf clients/bin/aiperf [--speed X] [--streams N] [--keep FOLDER] [--record]
    python benches/server_aiperf.py --read FOLDER [--record]

No tokenizer is downloaded: server and client use one of 4,000 tokens that is trained on the pages of `docs/`. AIPerf's
times are scaled back by the speed. Its ITL is a mean per request, so it is compared with `simulate`'s TPOT.
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
    """Train a byte-pair tokenizer and write it as a folder in Hugging Face's form."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special_tokens = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special_tokens, initial_alphabet=alphabet)
    tokenizer.train([str(page) for page in sorted((ROOT / "docs").rglob("*.md"))], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special_tokens[0],
        "eos_token": special_tokens[1],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def run(aiperf: str, speed: float, streams: int, folder: Path) -> None:
    """Run AIPerf against a new server; writes AIPerf's records and ``run.json`` into the folder."""
    tokenizer = make_tokenizer(folder / "tokenizer")
    flags = LENGTHS | {"concurrency": streams, "request-count": streams * ROUNDS, "random-seed": 1}
    flags |= {"endpoint-type": "completions", "extra-inputs": "ignore_eos:true", "request-timeout-seconds": 36_000}
    flags |= {"workers-max": 1, "record-processors": 1, "ui": "none", "tokenizer": tokenizer, "artifact-dir": folder}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    words += ["--streaming", "--use-server-token-count", "--no-server-metrics", "--no-gpu-telemetry"]
    with serving(speed, "--tokenizer", str(tokenizer)) as server:
        url = f"http://127.0.0.1:{server.port}"
        cpu_before_s, started = server.cpu_s(), time.monotonic()
        command = [aiperf, "profile", "-m", DEPLOYMENT["model"], "--url", url, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        used, wall_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - started
        facts = {"server_cores": (server.cpu_s() - cpu_before_s) / wall_s, "load_average": os.getloadavg()[0]}
    facts |= {"client_cores": (used.ru_utime + used.ru_stime) / wall_s, "speed": speed, "streams": streams}
    (folder / "run.json").write_text(json.dumps(facts), encoding="utf-8")


def read(folder: Path, speed: float) -> tuple[list[dict[str, float]], int]:
    """Return AIPerf's successful requests on the simulated clock, and the number of failed ones."""
    lines = (folder / "profile_export.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    rows = []
    for each in records:
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
    return [row | {"arrival_s": row["arrival_s"] - start_s} for row in rows], len(records) - len(rows)


def against(folder: Path) -> dict[str, Any]:
    """Return percentiles of AIPerf and of `simulate` with its arrivals, and the cause that `compare` finds."""
    facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    rows, failed = read(folder, facts["speed"])
    with ks.connect() as session, _log(rows) as log:
        table = session.simulate(**DEPLOYMENT, trace=str(log)).table("request_metrics")
        cause = session.compare(log=str(log), **DEPLOYMENT).summary["cause"]["kind"]
    compared = []
    for name, column in {"ttft": "ttft_ms", "itl": "tpot_ms", "e2e": "e2e_ms"}.items():
        client = percentiles(np.array([row[f"{name}_ms"] for row in rows]))
        simulated = percentiles(table[column].drop_null().to_numpy())
        for which in PERCENTILES:
            kept = abs(client[which] - simulated[which]) <= max(SHARE * simulated[which], SPAN_MS)
            words = {
                "metric": f"{name}_p{which}",
                "client_ms": client[which],
                "simulate_ms": simulated[which],
                "kept": kept,
            }
            compared.append(words)
    export = json.loads((folder / "profile_export_aiperf.json").read_text(encoding="utf-8"))
    version = {"aiperf": export["aiperf_version"]}
    return {**facts, **version, "rows": compared, "requests": len(rows), "failed": failed, "cause": cause}


@contextlib.contextmanager
def _log(rows: list[dict[str, float]]) -> Iterator[Path]:
    """Write requests as a temporary log without ITL; yields its path."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        log_rows = [{name: value for name, value in row.items() if name != "itl_ms"} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in log_rows), encoding="utf-8")
        yield path


def main() -> None:
    """Run AIPerf or read a kept run, and print both percentiles; record them with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--aiperf", default="aiperf", help="the command")
    parser.add_argument("--speed", type=float, default=0.01)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--keep", type=Path, help="folder for AIPerf's files, which is kept")
    parser.add_argument("--read", type=Path, metavar="FOLDER", help="of an earlier run with --keep; runs nothing")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_folder = arguments.read or arguments.keep or Path(folder)
        if arguments.read is None:
            run(arguments.aiperf, arguments.speed, arguments.streams, run_folder)
        figures = against(run_folder)
    print(as_text(figures["rows"], list(figures["rows"][0])))
    print(json.dumps({name: value for name, value in figures.items() if name != "rows"}))
    if arguments.record:
        words = f"--speed {figures['speed']:g} --streams {figures['streams']}"
        record("server_aiperf", figures, f"python benches/server_aiperf.py --aiperf clients/bin/aiperf {words}")


if __name__ == "__main__":
    main()
