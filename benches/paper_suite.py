"""Measures the suite `paper` on simulated devices, fits both tiers to the sweeps, and predicts with them.

python benches/paper_suite.py [--effort 0.05]

The latencies of the devices are a launch plus FLOP and bytes at shares of the peaks. Prints, for a dense model, a
mixture with latent attention and one with linear attention, on a measured and on an unmeasured GPU, how many kernels of
a step rest on the sweeps. Exits 1 if a kernel rests on none. About six CPU-minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import kernelsight as ks
from kernelsight.cli.main import main as command
from kernelsight.fitting import pack_fit
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.pack import read_pack, with_assumed
from kernelsight.measure.kernels_to_measure import _calls_by_family
from kernelsight.measure.run import measure_suite
from kernelsight.measure.suite import read_suite
from tests.measure.simulated import Simulated

# 16-bit FLOP/s, bytes/s of memory; of a link between GPUs
DEVICES = {"h200_sxm": (990e12, 4.8e12), "h100_sxm": (990e12, 3.35e12), "a100_sxm": (312e12, 2.0e12)}
LINK, LAUNCH_US = 200e9, 3.0
MODELS = ("llama-3.1-8b", "deepseek-v3", "qwen3-next-80b-a3b")


def latencies(gpu: str) -> dict[str, float]:
    """Return the latency in us of each point of the suite that the kernel model knows, by its key."""
    points = [
        {"family": point.family, "implementation": point.implementation, "dtype": point.dtype, "shape": point.sizes}
        | {"latency_us": 1.0, "key": point.key}
        for point in read_suite("paper").points
        if point.family in FAMILIES
    ]
    rate, bandwidth = DEVICES[gpu]
    found = {}
    for indices, calls in _calls_by_family(points, gpu).values():
        for index, flop, moved in zip(indices, calls["flops"].to_pylist(), calls["bytes"].to_pylist(), strict=True):
            point = points[index]
            peak = rate * (2.0 if "fp8" in point["dtype"] else 1.0)
            over = LINK if point["shape"].get("gpus", 1) > 1 else 0.85 * bandwidth
            found[point["key"]] = LAUNCH_US + 1e6 * (flop / (0.7 * peak) + moved / over)
    return found


def main() -> int:
    """Measure, fit and predict; return 1 if a kernel that the suite has rests on no sweep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--effort", type=float, default=pack_fit.PACK_EFFORT, help="share of the steps of a fit")
    pack_fit.PACK_EFFORT = parser.parse_args().effort
    missing = 0
    with tempfile.TemporaryDirectory() as folder:
        sweeps = [Path(folder) / f"{gpu}.parquet" for gpu in DEVICES]
        for gpu, sweep in zip(DEVICES, sweeps, strict=True):
            truth = latencies(gpu)
            device = Simulated(lambda point, truth=truth: truth.get(point.key, LAUNCH_US), noise=0.01, gpu=gpu)
            print(gpu, measure_suite(device, read_suite("paper"), sweep).measured, "points measured")
        pack = Path(folder) / "pack.parquet"
        if command(["calibrate", "fit", "-q", "--sweep", *map(str, sweeps), "-o", str(pack)]):
            return 1
        with ks.connect() as session:
            session.give("eta_coefficients", with_assumed(read_pack(pack)))
            for gpu, model in ((gpu, model) for gpu in ("h200_sxm", "b200_sxm") for model in MODELS):
                step = session.predict(model=model, gpu=gpu, tensor_parallel_size=8, batch_size=32, context_len=2000)
                tiers = Counter(row["tier"] for row in step.kernels.to_pylist() if row["family"] in FAMILIES)
                missing += tiers["a-priori"]
                print(f"{gpu} {model}: {', '.join(f'{tier} {count}' for tier, count in tiers.most_common())}")
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
