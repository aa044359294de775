"""A process that measures on the simulated device, a line a point, at a pace at which it can be killed anywhere."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from kernelsight.measure.run import measure_suite
from kernelsight.measure.suite import suite_of
from tests.measure.simulated import Simulated, SimulatedKernel

POINTS = 60
SUITE = suite_of(
    {"entries": [{"family": "norm", "cache": "warm", "axes": {"rows": list(range(1, POINTS + 1)), "columns": 64}}]},
    "killed.json",
)


class Paced(Simulated):
    """The simulated device, a few milliseconds a point."""

    def prepare(self, point: object) -> SimulatedKernel:
        time.sleep(0.003)
        return super().prepare(point)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    print("ready", flush=True)
    found = measure_suite(
        Paced(lambda point: 9.0), SUITE, target, resume=True, log=lambda line: print(line, flush=True)
    )
    print(f"all {found.measured}", flush=True)
