"""Compiles the scheduler for processors of a feature level; the package carries it: ``python .ci/carried_code.py``.

Run in a checkout whenever a file of ``kernelsight/serving/engine`` or ``kernelsight/serving/compilation`` changed, and
commit what it writes: the folder ``kernelsight/serving/compilation/carried``, with a folder in it that is named by the
level and the digest of the sources. Each file begins with its own digest, and holds a shared object, linked by the
system's compiler (``cc``). The code depends on neither Python's nor numba's version. Where it does not fit (other
sources, another processor), the first simulation compiles.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kernelsight.serving.compilation.machine_code import CARRIED, ENDING, LEVEL, PROCESSOR_VARIABLES  # noqa: E402

LOAD = {"model": "qwen3-0.6b", "gpu": "l4", "request_rate": 1.0, "num_prompts": 2, "input_len": 8, "output_len": 2}
# a library without start files, unwinding tables for tools alone, names or gaps between segments; every symbol is known
LINKED = "-shared -nostartfiles -s -Wl,--no-undefined,--build-id=none,-z,noseparate-code,-z,text".split()
# one call of each kind, so that every function is compiled for its argument types
QUESTIONS = """
import json, subprocess, sys
from pathlib import Path
from tempfile import TemporaryDirectory
from numba.core.codegen import JITCPUCodegen
import kernelsight as ks
from kernelsight.caches.private_folder import stamped
from kernelsight.serving.compilation import linking, machine_code
load = json.loads(sys.argv[1])
machine_code.PLACES = []  # compile everything: no code of earlier compilations is read
compile_entry, choose = linking.compile_entry, JITCPUCodegen._customize_tm_options

def choose_independent(self, options):
    choose(self, options)
    options |= {"reloc": "pic", "codemodel": "small"}

def shared(content):
    with TemporaryDirectory() as folder:
        made, linked = Path(folder, "entry.o"), Path(folder, "entry.so")
        made.write_bytes(content)
        subprocess.run(["cc", *sys.argv[2:], "-o", linked, made, "-lm"], check=True)
        return linked.read_bytes()

def compiled(entry, kinds):
    code, is_lasting = compile_entry(entry, kinds)
    assert is_lasting
    code = code._replace(content=shared(code.content))
    key = entry.key.carried(kinds)
    (machine_code.CARRIED / f"{key}{machine_code.ENDING}").write_bytes(stamped(key, code.kept()))
    return code, is_lasting

linking.compile_entry, JITCPUCodegen._customize_tm_options = compiled, choose_independent
with ks.connect() as session:
    run = session.simulate(**load)
    run.summary, run.table("steps"), run.table("request_parts")
    session.what_if([load, load | {"max_concurrency": 2}]).table("scenario_summary")
    session.simulate(**load, num_turns=2).summary
    ks.step_time({name: load[name] for name in ("model", "gpu")}, [(1, 8), (4, 8)])
"""


def carry() -> list[Path]:
    """Compile all entry points; return the files that are carried, after removing those of other sources."""
    if CARRIED.parent.is_dir():
        shutil.rmtree(CARRIED.parent)
    CARRIED.mkdir(parents=True)
    processor = dict(zip(PROCESSOR_VARIABLES, (LEVEL, ""), strict=True))
    environment = processor | {"KERNELSIGHT_CACHE": "", "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-c", QUESTIONS, json.dumps(LOAD), *LINKED], env=os.environ | environment, check=True
    )
    return sorted(CARRIED.glob(f"*{ENDING}"))


if __name__ == "__main__":
    files = carry()
    print(f"{CARRIED}: {len(files)} files, {sum(path.stat().st_size for path in files) / 2**20:.1f} MiB")
