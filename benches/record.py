"""Recorded results of benches: figures, command, commit, machine, and digests of the code that they depend on.

A bench ends with ``record("name", figures, command)``, which writes ``benches/results/name.json``. The documentation
takes its figures from these files only (``docs/figures/``). A file also holds digests of the pack, the catalogue and
the code that the result depends on. ``python benches/record.py`` lists the results whose dependencies have changed
since.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results"
# measured servers, beside the runs of aiconfigurator-core
SERVERS = (
    *(
        f"../shared/data/servers/{name}.csv"
        for name in (*("gpustack_lab", "mlenergy", "sglang_cookbook", "trtllm_throughput", "vllm_0_15_1"),)
    ),
    "../shared/data/inference-perf-example",
)
# parts of the program that results depend on: files and folders
PARTS: dict[str, tuple[str, ...]] = {
    "pack": ("kernelsight/packs",),
    "catalogue": ("kernelsight/catalog",),
    "kernels": ("kernelsight/kernels", "sql/kernel", "sql/lower", "sql/macros"),
    "deployments": ("kernelsight/scenario", "kernelsight/models", "sql/deploy"),
    "serving": ("kernelsight/serving", "sql/serve"),
    "backtest": ("kernelsight/evaluation/runs", "benches/evaluation/runs"),
    "fitting": ("kernelsight/fitting", "kernelsight/evaluation/kernels", "benches/evaluation/kernels"),
    "search": ("kernelsight/searching", "benches/evaluation/searches"),
    "compare": ("kernelsight/comparison", "kernelsight/logs"),
    "sizing": ("kernelsight/sizing",),
    "energy": ("benches/evaluation/energy",),
    "sweep": ("kernelsight/sweeps",),
    "server": ("kernelsight/server",),
}
# a comment of Python, or a text, which may hold what looks like one
TEXT_OR_COMMENT = re.compile(
    r""""{3}(?:\\.|[^\\])*?"{3}|\'{3}(?:\\.|[^\\])*?\'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*""", re.S
)
# CPU seconds of this process and its children
OWN = -1.0
SIMULATION = ("pack", "catalogue", "kernels", "deployments", "serving")
KERNELS = ("catalogue", "kernels", "fitting")
RESTS_ON: dict[str, tuple[str, ...]] = {
    "campaigns": (*SIMULATION, "backtest"),
    "capacity": (*SIMULATION, "sweep"),
    "decisions": (*SIMULATION, "backtest", "sizing"),
    "end_to_end": (*SIMULATION, "backtest"),
    "end_to_end_across": (*SIMULATION, "backtest"),
    "kernels_gb200": KERNELS,
    "kernels_facts": KERNELS,
    "kernels_splits": KERNELS,
    "kernels_generations": KERNELS,
    "kernels_final": KERNELS,
    "kernels_sites": KERNELS,
    "kernels_layers": KERNELS,
    "kernels_new": KERNELS,
    "kernels_versions": KERNELS,
    "public_runs": SIMULATION,
    "kernels_modules": ("pack", "catalogue", "kernels", "deployments"),
    "points": ("pack", *KERNELS),
    "harness": ("pack", *KERNELS),
    "paper_3": ("catalogue",),
    "paper_7": ("pack", "catalogue", "kernels"),
    "paper_8": SIMULATION,
    "paper_9": (*SIMULATION, "backtest"),
    "paper_10": KERNELS,
    "paper_11": KERNELS,
    "paper_12": (*SIMULATION, "backtest"),
    "paper_points": KERNELS,
    "paper_tables": KERNELS,
    "search": ("search",),
    "search_tuner": ("search",),
    "compare_plain": (*SIMULATION, "compare"),
    "compare_noise": (*SIMULATION, "compare"),
    "compare_steps": (*SIMULATION, "compare"),
    "compare_foreign": (*SIMULATION, "compare"),
    "corrections": (*SIMULATION, "compare"),
    "energy": (*SIMULATION, "backtest", "energy"),
    "limits": ("deployments", "serving"),
    "rates": (*SIMULATION, "sizing"),
    "sizes": (*SIMULATION, "sizing"),
    "sizes_limits": (*SIMULATION, "sizing"),
    "sizes_round_trip": (*SIMULATION, "sizing"),
    "server_times": (*SIMULATION, "server"),
    "server_kept": (*SIMULATION, "server"),
    "server_aiperf": (*SIMULATION, "server"),
    "server_many": ("serving", "server"),
    "server_steps": ("serving",),
    "sensitivities": (*SIMULATION, "sweep"),
    "design": (*SIMULATION, "sweep"),
    "teacher": (*SIMULATION, "backtest", "compare"),
    "speed_serving": ("serving",),
    "speed_million": ("serving", "sweep"),
    "speed_million_log": ("serving", "compare"),
    "speed_kernels": ("kernels",),
    "speed_sweep": ("kernels", "deployments", "serving", "sweep"),
    "peer_audit": (),
    "peers": ("pack", "catalogue", "kernels", "deployments"),
    "speed_peers": ("serving",),
    "speed_growth": ("kernels", "deployments", "serving", "sweep", "compare"),
    "speed_waits": ("kernels", "deployments", "serving", "sweep"),
}


def record(name: str, figures: Mapping[str, Any], command: str, cpu_s: float | None = OWN) -> Path:
    """Write a result that this process and its children have just measured; return its file.

    Its sample (``benches/samples.py``), if it has one, is computed after it. ``cpu_s``: CPU seconds, if other processes
    spent them; None: unknown. ValueError: RESTS_ON lacks ``name``.
    """
    if name not in RESTS_ON:
        raise ValueError(f"{name!r} is no result: RESTS_ON of benches/record.py says what each result rests on.")
    this_process, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    result = {
        "command": command,
        "commit": commit(),
        "date": date.today().isoformat(),
        "machine": {"cores": len(os.sched_getaffinity(0)), "cpu": cpu_name(), "load": round(os.getloadavg()[1], 1)},
        "cpu_s": round(sum(used.ru_utime + used.ru_stime for used in (this_process, children)))
        if cpu_s == OWN
        else cpu_s,
        "rests_on": {part: digest(part) for part in RESTS_ON[name]},
        "sample": {"of_run": None, "now": None},
        "figures": figures,
    }
    path = write(name, result)
    # in a process of its own: samples import benches, and these import this
    subprocess.run([sys.executable, Path(__file__).with_name("samples.py"), "--measured", name], check=True)
    return path


def write(name: str, result: Mapping[str, Any]) -> Path:
    """Write a result as JSON; return its file."""
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False, default=float) + "\n", encoding="utf-8")
    return path


def read(name: str) -> dict[str, Any]:
    """Return a recorded result."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def names() -> list[str]:
    """Return the names of all recorded results."""
    return sorted(path.stem for path in RESULTS.glob("*.json") if path.stem in RESTS_ON)


def changed(result: Mapping[str, Any]) -> list[str]:
    """Return the parts whose digest differs from the recorded one."""
    return [part for part, known in result["rests_on"].items() if known != digest(part)]


@cache
def digest(part: str) -> str:
    """Return a SHA-256 of the content of a part's files, independent of their paths and of comments."""
    total = hashlib.sha256()
    for of_file in sorted(hashlib.sha256(content(path)).digest() for path in files_of(PARTS[part])):
        total.update(of_file)
    return total.hexdigest()[:16]


def files_of(names: Iterable[str]) -> list[Path]:
    """Return the files of some files and folders, in order."""
    paths = (ROOT / place for place in names)
    files = (each for path in paths for each in ([path] if path.is_file() else sorted(path.rglob("*"))))
    return [path for path in files if path.is_file() and "__pycache__" not in path.parts]


def content(path: Path) -> bytes:
    """Return a file's content; Python and SQL without comments and imports, with white space normalised."""
    if path.suffix not in (".py", ".sql"):
        return path.read_bytes()
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".sql":
        return " ".join(re.sub(r"--[^\n]*", "", text).split()).encode()
    bare = TEXT_OR_COMMENT.sub(lambda found: "" if found[0].startswith("#") else found[0], text)
    lines = bare.splitlines(keepends=True)
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines[node.lineno - 1 : node.end_lineno] = ["\n"] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(line.rstrip() for line in "".join(lines).splitlines() if line.strip()).encode()


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a program, and what holds statements, without the expressions in them."""
    for field in ("body", "handlers", "cases", "orelse", "finalbody"):
        for node in getattr(tree, field, ()):
            yield node
            yield from statements(node)


def commit() -> str:
    """Return the checked-out commit, marked if the program differs from it."""
    words = ["git", "-C", str(ROOT)]
    head = subprocess.run([*words, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True)
    folders = ("kernelsight", "sql", "schemas")
    differs = subprocess.run([*words, "status", "--porcelain", *folders], capture_output=True, text=True)
    return (head.stdout.strip() or "unknown") + (" with changes" if differs.stdout.strip() else "")


def cpu_name() -> str:
    """Return the model of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return match[1].strip() if match else platform.machine()


def stale() -> dict[str, list[str]]:
    """Return the changed parts of each result whose dependencies have changed since it was measured."""
    changed_parts = {name: changed(read(name)) for name in names()}
    return {name: parts for name, parts in changed_parts.items() if parts}


if __name__ == "__main__":
    for name, parts in stale().items():
        result = read(name)
        at = result.get("run_at_commit") or result["commit"]
        print(f"{name}: measured at {at}, before changes to {', '.join(parts)}")
