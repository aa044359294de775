"""Kernel predictions for GPUs unlike the measured ones: reduced tensor rates, and a GPU predicted from its sibling.

    python benches/unlike.py --parts cut
    python benches/unlike.py --parts siblings --sweep sweep.parquet --families gemm,moe

cut: latency / roofline of the longest kernel of each family in a prompt of 4 x 8,192 tokens, on hypothetical GPUs with
a share of a GPU's tensor rates and all else equal (across generations). siblings: MAPE / median in % on serving shapes
of a left-out GPU: without factors of any GPU, with its sibling's factors, and with its sibling's correction too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import kernelsight as ks
from kernelsight.catalog.tables import facts
from kernelsight.fitting.cells import is_serving
from kernelsight.fitting.expressions import fit_family, predict_family
from kernelsight.fitting.held_out import thinned_kernels
from kernelsight.fitting.measured import correct, fit_measured, rows_of
from kernelsight.fitting.splits import HEADLINE_TRAIN
from kernelsight.fitting.training import training_rows
from kernelsight.forward.forward_step import predict_step
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.pack import pack_table

FORMATS = ("fp16", "bf16", "fp8", "fp4", "int8")
LEFT = (1.0, 0.5, 0.25, 1.0 / 7.0, 0.1)
PROMPT = {"batch_size": 4, "input_len": 8192, "context_len": 0}
DEPLOYMENTS = (
    {"model": "llama-3.1-8b"},
    {"model": "llama-3.1-8b", "quantization": "fp8"},
    {"model": "mixtral-8x7b-v0.1", "tp": 2},
    {"model": "deepseek-v3", "tp": 8},
)
MEASURED = (*HEADLINE_TRAIN, "b200_sxm", "gb200", "rtx_pro_6000_server")
PAIRS = (("h100_sxm", "h200_sxm"), ("h200_sxm", "h100_sxm"), ("b200_sxm", "gb200"), ("gb200", "b200_sxm"))


def cut(gpu: str, engine: str) -> None:
    """Print latency / roofline by family as a GPU's tensor rates shrink."""
    print(f"{engine:8} {'model':28} {'family':20} " + " ".join(f"{share:>6.3f}" for share in LEFT))
    for deployment in DEPLOYMENTS:
        etas_of: dict[str, list[float]] = {}
        for share in LEFT:
            with ks.connect() as session:
                gpus = session.table("gpus")
                [whole] = [row for row in gpus.to_pylist() if row["gpu"] == gpu]
                rates = {f"{name}_flops_per_s": whole[f"{name}_flops_per_s"] for name in FORMATS}
                part = {
                    **whole,
                    "gpu": "part",
                    "measured_as": None,
                    "memory_bytes": 2**39,
                    **{name: r and share * r for name, r in rates.items()},
                }
                session.extend("gpus", pa.Table.from_pylist([part], schema=gpus.schema))
                predict_step(
                    session,
                    {**deployment, "gpu": "part", "engine": engine, "tier": "cross-generation"},
                    "prefill",
                    PROMPT,
                )
                rows = session.table("kernel_latencies").to_pylist()
            for family in ("gemm", "moe", "prefill_attention", "mla_prefill"):
                if calls := [row for row in rows if row["family"] == family]:
                    etas_of.setdefault(family, []).append(max(calls, key=lambda row: row["latency_us"])["eta"])
        name = " ".join(map(str, deployment.values()))
        for family, etas in etas_of.items():
            print(f"{'':8} {name:28} {family:20} " + " ".join(f"{eta:6.3f}" for eta in etas))


def siblings(sweep: Path, family: str) -> None:
    """Print a family's errors on each GPU of PAIRS, left out of the fit, by what its sibling contributes."""
    tables = facts("kernel_implementations"), facts("gpus"), facts("fabrics")
    latency_model, rows = FAMILIES[family].latency_model, training_rows([sweep], family, MEASURED)
    for gpu, sibling in PAIRS:
        training, target = (rows.filter(test(rows["gpu"], gpu)) for test in (pc.not_equal, pc.equal))
        seen = pc.unique(training.filter(pc.equal(training["gpu"], sibling))["implementation"])
        target = target.filter(pc.and_(pa.array(is_serving(family, target)), pc.is_in(target["implementation"], seen)))
        if not target.num_rows:
            continue
        target, constants = (
            thinned_kernels(target),
            pack_table(fit_family(family, latency_model, training, *tables, "bench")),
        )
        without_gpus = constants.filter(pc.is_null(constants["gpu"]))
        predictions = {
            "no GPU's factors": predict_family(family, latency_model, target, without_gpus, *tables, measured=False)
        }
        predictions["its sibling's"] = predict_family(family, latency_model, target, constants, *tables, measured=False)
        sibling_correction = rows_of(
            family, sibling, fit_measured(family, latency_model, training, sibling, constants, *tables, effort=0.1)
        )
        predictions["and correction"] = correct(
            family, latency_model, target, predictions["its sibling's"], sibling_correction, *tables
        )
        measured = target["latency_us"].to_numpy()
        errors = {name: 100.0 * np.abs(us / measured - 1.0) for name, us in predictions.items()}
        print(f"{family:18} {gpu:10} {len(measured):6}", end="")
        print("".join(f"  {name} {error.mean():.1f} / {np.median(error):.1f}" for name, error in errors.items()))


def main() -> None:
    """Print the tables of the named parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="cut", help="cut, siblings, or both with a comma")
    parser.add_argument("--gpu", default="h100_sxm", help="the GPU that parts are cut from")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--sweep", type=Path, help="Parquet file of calibrate import")
    parser.add_argument("--families", default="gemm")
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    if "cut" in parts:
        cut(arguments.gpu, arguments.engine)
    for family in arguments.families.split(",") if "siblings" in parts else ():
        siblings(arguments.sweep, family)


if __name__ == "__main__":
    main()
