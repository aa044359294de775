"""Compiles the scheduler for any processor of this architecture, to ship in wheels: ``python .ci/carried_code.py``.

Run in a checkout before a wheel is built, once for each version of Python that the wheel shall support. Machine code is
written to ``kernelsight/serving/engine/carried``, in a folder named by the digest of the sources; each file begins with
its own digest, and the wheel includes the folder. An installation that nothing there fits (other sources, another
numba, Python or processor architecture) compiles at its first simulation.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kernelsight.serving.engine.machine_code import (  # noqa: E402
    ANY_PROCESSOR,
    CARRIED,
    ENDING,
    PLACES,
    PROCESSOR_VARIABLES,
)

LOAD = {"model": "qwen3-0.6b", "gpu": "l4", "request_rate": 1.0, "num_prompts": 2, "input_len": 8, "output_len": 2}
# one call of each kind, so that every function is compiled for its argument types
QUESTIONS = """
import json, sys
import kernelsight as ks
load = json.loads(sys.argv[1])
with ks.connect() as session:
    run = session.simulate(**load)
    run.summary, run.table("steps"), run.table("request_parts")
    session.what_if([load, load | {"max_concurrency": 2}]).table("scenario_summary")
    session.simulate(**load, num_turns=2).summary
    ks.step_time({name: load[name] for name in ("model", "gpu")}, [(1, 8), (4, 8)])
"""


def carry() -> list[Path]:
    """Compile all entry points; return the files for wheels, after removing those of other sources."""
    processor = dict(zip(PROCESSOR_VARIABLES, ANY_PROCESSOR, strict=True))
    for folder in CARRIED.parent.glob("numba-*"):
        if folder != CARRIED:
            shutil.rmtree(folder)
    CARRIED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        before = {path for place in PLACES for path in place.glob(f"*{ENDING}")}
        environment = processor | {"KERNELSIGHT_CACHE": "", "XDG_CACHE_HOME": home, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", QUESTIONS, json.dumps(LOAD)], env=os.environ | environment, check=True)
        folders = (PLACES[0], Path(home) / "kernelsight" / PLACES[0].name)
        for path in sorted({path for place in folders for path in place.glob(f"*{ENDING}")} - before):
            shutil.copyfile(path, CARRIED / path.name)
            path.unlink()
    return sorted(CARRIED.glob(f"*{ENDING}"))


if __name__ == "__main__":
    files = carry()
    print(f"{CARRIED}: {len(files)} files, {sum(path.stat().st_size for path in files) / 2**20:.1f} MiB")
