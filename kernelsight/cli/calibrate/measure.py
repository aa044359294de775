"""`kernelsight calibrate measure`: measures a suite of kernels on the local GPU; needs only numpy, pyarrow, CuPy."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.number_format import number

COLUMNS = ("family", "measured", "failed", "reason")


def run(arguments: argparse.Namespace) -> None:
    """Measure a suite on the local GPU, write the sweep, and print the measured and failed points."""
    from kernelsight.measure.catalogue import catalogue_rows, remarks, write_row
    from kernelsight.measure.run import measure_suite
    from kernelsight.measure.suite import read_suite
    from kernelsight.present.output import check_ending, note, print_rows

    target = check_ending(arguments.output, (".parquet",))
    if target is None:
        raise InvalidInput("calibrate measure needs -o FILE, the Parquet file to write the sweep to.")
    limit = arguments.time_limit
    suite = read_suite(arguments.suite)
    row_file = check_ending(arguments.device_row, (".json",), "--device-row")
    host_file = check_ending(arguments.host_probe, (".json",), "--host-probe")
    if host_file:
        from kernelsight.measure.host import need_vllm, probe_vllm

        need_vllm()
    device = open_device(arguments)
    identity = device.identity()
    note(f"{identity.gpu}: {identity.row.get('name', '')}, driver {identity.driver}; {len(suite.points):,} points")
    for line in remarks(identity.gpu, identity.row, catalogue_rows()):
        note(line)
    if row_file:
        write_row(identity.row, row_file)
    seconds = math.inf if limit is None else 60.0 * limit
    how = {"resume": arguments.resume, "retry": arguments.retry, "most_seconds": seconds, "log": note}
    try:
        outcome = measure_suite(device, suite, target, **how)
    except KeyboardInterrupt:
        raise RunFailed(f"interrupted; {target} holds the points measured so far, and --resume continues.") from None
    print_rows(_rows(outcome.families), list(COLUMNS), arguments.format)
    if host_file:
        host = probe_vllm(host_file)
        note(
            f"vLLM host time: {number(host['step_base_us'])} us per step plus {number(host['per_request_us'])} us per "
            "request"
        )
    remaining = f", {outcome.left:,} left (--resume continues)" if outcome.left else ""
    note(f"{outcome.measured:,} points measured, {outcome.failed:,} failed{remaining}; written to {Path(target)}")


def open_device(arguments: argparse.Namespace) -> Any:
    """Return the local GPU; InvalidInput: there is none, or a library is missing."""
    from kernelsight.catalog.gpu_names import plain_gpus
    from kernelsight.measure.cuda.device import open_gpu

    return open_gpu(arguments.device, arguments.gpu and plain_gpus([arguments.gpu])[0])


def _rows(families: Any) -> list[dict[str, Any]]:
    rows = []
    for family, (measured, reasons) in families.items():
        family_columns = {"family": family, "measured": measured, "failed": sum(reasons.values())}
        rows += [
            {**(family_columns if line == 0 else {"family": family}), "reason": reason and f"{count} x {reason}"}
            for line, (reason, count) in enumerate(reasons.items() or [("", 0)])
        ]
    return rows
