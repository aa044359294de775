"""Compile the scheduler for any processor of this kind, for wheels to carry: ``python -m
kernelsight.serving.engine.carried_code``.

Run in a checkout before a wheel is built: machine code is written to ``carried`` beside this file, in a folder named by
the digest of the sources, and every file begins with its own digest. A wheel takes along what lies there. Run it once
for each version of Python and kind of processor; where nothing fits, an installation compiles when it first simulates.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kernelsight.serving.engine.machine_code import ANY_PROCESSOR, CARRIED, ENDING, PLACES

# what a load of each kind calls is compiled for the types of its arguments
LOAD = {"model": "qwen3-0.6b", "gpu": "l4", "request_rate": 1.0, "num_prompts": 2, "input_len": 8, "output_len": 2}
# the modules that lie where they are found cannot be used: this kind of processor is compiled for, not the one at hand
PROGRAM = """
import json, sys
import kernelsight as ks
load = json.loads(sys.argv[1])
with ks.connect() as own:
    own.simulate(**load).summary
    own.simulate(**load).table("steps")
    own.simulate(**load).table("request_parts")
    own.what_if([load, load | {"max_concurrency": 2}]).table("scenario_summary")
    own.simulate(**load, num_turns=2).summary
    ks.step_time({name: load[name] for name in ("model", "gpu")}, [(1, 8), (4, 8)])
"""


def carry() -> list[Path]:
    """Compile all entry points, and return the files that installations carry from now on.

    What earlier sources left is removed; other versions of Python and processors keep theirs.
    """
    name, features = ANY_PROCESSOR
    with tempfile.TemporaryDirectory() as home:
        own = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "XDG_CACHE_HOME": home, "KERNELSIGHT_CACHE": ""}
        before = set(PLACES[0].glob(f"*{ENDING}"))
        subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(LOAD)], env=os.environ | own, check=True)
        made = {path for place in (PLACES[0], *Path(home).rglob(PLACES[0].name)) for path in place.glob(f"*{ENDING}")}
        for folder in CARRIED.parent.glob("numba-*"):
            if folder != CARRIED:
                shutil.rmtree(folder)
        CARRIED.mkdir(parents=True, exist_ok=True)
        for path in sorted(made - before):
            shutil.copyfile(path, CARRIED / path.name)
            path.unlink()
    return sorted(CARRIED.glob(f"*{ENDING}"))


if __name__ == "__main__":
    files = carry()
    print(f"{CARRIED}: {len(files)} files, {sum(path.stat().st_size for path in files) / 2**20:.1f} MiB")
