"""Pinned samples of results: a few runs, sites, searches and worlds, each computed again in seconds.

    python benches/samples.py           # compares them with what the results hold
    python benches/samples.py --write   # keeps what they are now, beside what they were when the result was measured
    python benches/samples.py --measured NAME    # of a result that was measured just now (``record`` calls this)

A sample is the canary of its result: where it moves, the figures that the documentation shows have moved as well, and
the bench is due. The test suite computes all of them (``tests/docs/test_samples.py``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from record import names, read, write
from sampled import kernels, loads, logs, runs

# relative difference that another machine's arithmetic may make
SAME = 1e-6
# and where it decides which way a fit of few rows goes: of whole layers mean errors of 9.18, 12.56 and 26.56 % on an
# AMD EPYC, 9.04, 12.58 and 26.69 % on an Intel Xeon; of sites 3.61 and 3.62 %
SAME_FIT = {"kernels_layers": 0.03, "kernels_sites": 0.01}
# by name of result; a result of several processes, of a peer or of clocks alone has none
SAMPLES: dict[str, Callable[[], dict[str, float]]] = {
    function.__name__: function
    for function in (
        *(runs.end_to_end, runs.end_to_end_across, runs.campaigns, runs.decisions, runs.energy),
        *(
            kernels.kernels_gb200,
            kernels.kernels_splits,
            kernels.kernels_generations,
            kernels.kernels_sites,
            kernels.kernels_layers,
        ),
        *(kernels.kernels_new, kernels.kernels_facts, kernels.points, kernels.search, kernels.search_tuner),
        *(loads.speed_serving, loads.speed_million, loads.speed_sweep, loads.speed_waits, loads.speed_kernels),
        *(
            loads.rates,
            loads.capacity,
            loads.limits,
            loads.sizes,
            loads.sizes_limits,
            loads.sensitivities,
            loads.design,
            loads.server_times,
            loads.server_kept,
            loads.server_steps,
        ),
        *(
            logs.compare_plain,
            logs.compare_noise,
            logs.compare_steps,
            logs.compare_foreign,
            logs.corrections,
            logs.teacher,
        ),
        logs.speed_million_log,
    )
}


def differences(known: Mapping[str, float], found: Mapping[str, float], result: str = "") -> Iterator[str]:
    """Yield what differs between two samples of a result by more than arithmetic may."""
    for name in sorted({*known, *found}):
        pair = known.get(name), found.get(name)
        if None in pair or not np.isclose(*pair, rtol=SAME_FIT.get(result, SAME), atol=1e-9):
            yield f"{name}: {pair[0]} before, {pair[1]} now"


def main() -> None:
    """Compute the samples and compare them, or keep them."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--write", action="store_true", help="keep the samples of now in the results")
    words.add_argument("--measured", metavar="NAME", help="keep the sample of a result that was measured just now")
    words.add_argument("names", nargs="*", choices=[[], *SAMPLES], help="default: all")
    asked = words.parse_args()
    if asked.measured:
        if asked.measured in SAMPLES:
            sample = SAMPLES[asked.measured]()
            write(asked.measured, read(asked.measured) | {"sample": {"of_run": sample, "now": sample}})
        return
    for name in asked.names or [name for name in SAMPLES if name in names()]:
        result, found = read(name), SAMPLES[name]()
        for line in differences(result["sample"]["now"] or {}, found, name):
            print(f"{name}: {line}")
        if asked.write:
            write(name, result | {"sample": result["sample"] | {"now": found}})


if __name__ == "__main__":
    main()
