"""Pinned samples of results: a small part of each result, computed again in seconds to detect that it has changed.

    python benches/samples.py           # compares them with the recorded samples
    python benches/samples.py --write   # records the present samples, beside those of when the result was measured
    python benches/samples.py --measured NAME    # records the sample of a result just measured (``record`` calls this)

If a sample changes, the figures that the documentation shows have changed as well, and the bench must be run again. The
test suite computes all samples (``tests/docs/test_samples.py``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from record import names, read, write
from sampled import kernels, loads, logs, runs

# relative difference that another machine's arithmetic may cause
SAME = 1e-6
# and where it changes the course of a fit of few rows: of whole layers mean errors of 9.18, 12.56 and 26.56 % on an
# AMD EPYC, 9.04, 12.58 and 26.69 % on an Intel Xeon; of sites 3.61 and 3.62 %
SAME_FIT = {"kernels_layers": 0.03, "kernels_sites": 0.01}
# by name of result; results of several processes, of other programs or of clocks alone have no sample
SAMPLES: dict[str, Callable[[], dict[str, float]]] = {
    function.__name__: function
    for function in (
        *(runs.end_to_end, runs.end_to_end_across, runs.campaigns, runs.decisions, runs.energy, runs.peers),
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


def differences(recorded: Mapping[str, float], computed: Mapping[str, float], result: str = "") -> Iterator[str]:
    """Yield a line per value that differs between two samples of a result by more than arithmetic may."""
    for name in sorted({*recorded, *computed}):
        pair = recorded.get(name), computed.get(name)
        if None in pair or not np.isclose(*pair, rtol=SAME_FIT.get(result, SAME), atol=1e-9):
            yield f"{name}: {pair[0]} before, {pair[1]} now"


def main() -> None:
    """Compute the samples and compare them, or record them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="record the present samples in the results")
    parser.add_argument("--measured", metavar="NAME", help="record the sample of a result that was just measured")
    parser.add_argument("names", nargs="*", choices=[[], *SAMPLES], help="default: all")
    arguments = parser.parse_args()
    if arguments.measured:
        if arguments.measured in SAMPLES:
            sample = SAMPLES[arguments.measured]()
            write(arguments.measured, read(arguments.measured) | {"sample": {"of_run": sample, "now": sample}})
        return
    for name in arguments.names or [name for name in SAMPLES if name in names()]:
        result, sample_now = read(name), SAMPLES[name]()
        for line in differences(result["sample"]["now"] or {}, sample_now, name):
            print(f"{name}: {line}")
        if arguments.write:
            write(name, result | {"sample": result["sample"] | {"now": sample_now}})


if __name__ == "__main__":
    main()
