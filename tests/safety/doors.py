"""Every option of the command line that takes a file, found in what verbs declare, with a command that reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kernelsight.cli.command_line import VERBS, flags_of_verb, is_of_laboratory, module_of
from kernelsight.scenario.flag import Flag

# what an option that takes a file is called in the help; a flag of a file says FILE
FILES = ("FILE", "FACTOR|FILE", "RUN", "PACK", "PATH", "GRID", "LINE", "S", "P", "HOW", "G1,G2")
# options of those words that take no file, or that write one: with the reason
NO_FILES = {
    "search run launch": "with a GPU and cupy alone",
    "startup_seconds": "seconds", "metrics_out": "written", "device_row": "written", "host_probe": "written",
    "plot": "written", "measure": "a command, which is run", "llm_cache": "answers of a server",
}  # fmt: skip
ENDINGS = {"parquet": ".parquet", "duckdb": ".duckdb", ".json": ".json", "json": ".json", "csv": ".csv"}
BY_POSITION = {"source": "parquet", "tuner": "kernel-tuner"}
MODEL, GPU, LOAD = ("--model", "qwen3-0.6b"), ("--gpu", "l4"), ("--request-rate", "2", "--num-prompts", "4")
LENGTHS = ("--input-len", "9", "--output-len", "3")
# of each verb that takes files, the least words that it needs beside one
BASE: dict[str, tuple[str, ...]] = {
    "sql": ("select count(*) from sweep_points",),
    "predict": (*MODEL, *GPU, "--context-len", "9"),
    "simulate": (*MODEL, *GPU, *LOAD, *LENGTHS),
    "serve": (*MODEL, *GPU, "--port", "0"),
    "sweep": ('{"model": "qwen3-0.6b", "gpu": "l4", "request_rate": 2, "num_prompts": 4, "input_len": 9}',),
    "size": (*MODEL, "--gpus", "l4", "--rate", "1", "--slo", "ttft_p95:900", *LENGTHS, "--max-gpus", "1"),
    "compare": (*MODEL, *GPU, "--log", "LOG"),
    "upgrade": ("--launch", "vllm serve Qwen/Qwen3-0.6B", "--from", "vllm:0.19", *GPU, *LOAD, *LENGTHS),
    "report": ("-o", "out.html"), "timeline": ("-o", "out.json"),
    "calibrate import": ("-o", "out.parquet"), "calibrate measure": ("-o", "out.parquet"),
    "calibrate plan": ("--gpu", "l4", "--minutes", "1", "-o", "out.json"),
    "calibrate fit": ("--sweep", "SWEEP", "-o", "out.parquet"),
    "calibrate evaluate": ("--sweep", "SWEEP", "--test-gpus", "l4"),
    "search import": ("-o", "out.parquet"), "search run": ("--space", "SPACE", "--gpu", "l4", "--budget", "2"),
    "search choose": ("--gpu", "l4", "--family", "gemm", "--sweep", "SWEEP"),
    "search plan": ("--gpu", "l4", "--family", "gemm", "--sweep", "SWEEP"),
    "search forecast": (*GPU, "--llm-url", "http://127.0.0.1:1/v1", "--llm-model", "m", "--llm-retries", "0"),
    "backtest": (),
}  # fmt: skip
# what an option takes the place of, and what it needs beside it
INSTEAD = {"launch": ("--model",), "calls": ("--model", "--context-len"), "trace": LOAD[::2] + LENGTHS[::2],
           "lengths_from": LENGTHS[::2], "trace_tokenizer": LOAD[::2] + LENGTHS[::2], "few": ("--sweep",)}  # fmt: skip
BESIDE = {
    "architecture": ("--model", "CONFIG"), "state": ("--watch", "1"), "few": ("--onto", "default"),
    "candidates": ("--measurements", "SPACE"), "measurements": ("--candidates", "CANDIDATES"),
    "launch": (), "trace_tokenizer": ("--trace", "CHATS"),
}  # fmt: skip


class Door(NamedTuple):
    """An option that takes a file, of the first verb that has it; ``words``: a command with FILE in its place."""

    verb: str
    flag: Flag
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.verb} {self.flag.options[0]}"

    @property
    def ending(self) -> str:
        """The ending that the help asks for."""
        words = (self.flag.help or "").lower()
        return next((ending for word, ending in ENDINGS.items() if word in words), "")


def doors() -> Iterator[Door]:
    """Yield each option that takes a file once for each verb with an own declaration of it."""
    seen = set()
    for verb in VERBS:
        if module_of(verb) is None or is_of_laboratory(verb):
            continue
        for table, flag in flags_of_verb(verb):
            if not takes_file(verb, flag) or (key := (table, flag.name, flag.help)) in seen:
                continue
            seen.add(key)
            yield Door(verb, flag, command(verb, flag))


def takes_file(verb: str, flag: Flag) -> bool:
    """Return whether an option takes a file, by what its help calls its value."""
    is_text = flag.kind == "text" and not flag.choices
    is_written = (flag.help or "").startswith(("write", "also write"))
    return (
        is_text
        and (flag.metavar in FILES or flag.name == "model")
        and not {flag.name, f"{verb} {flag.name}"} & NO_FILES.keys()
        and not is_written
    )


def command(verb: str, flag: Flag) -> tuple[str, ...]:
    """Return the words of a command with FILE as the value of an option."""
    option, base = flag.options[0], list(BASE[verb])
    for other in (*INSTEAD.get(flag.name, ()), *BESIDE.get(flag.name, ())[::2], option):
        if other in base:
            place = base.index(other)
            del base[place : place + 2]
    if flag.positional:
        stated = [word for name, word in BY_POSITION.items() if any(f.name == name for _, f in flags_of_verb(verb))]
        base = [word for word in base if word != BASE[verb][0] or verb != "sweep"]
        return (*verb.split(), *stated, "FILE", *base)
    value = "@FILE" if flag.metavar == "LINE" else "FILE"
    return (*verb.split(), *base, *BESIDE.get(flag.name, ()), option, value)
