"""``kernelsight calibrate measure``, and the same verb without the rest of the package."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from kernelsight.errors import InvalidInput, KernelSightError, RunFailed

COLUMNS = ("family", "measured", "failed", "reason")


def add_flags(verb: argparse.ArgumentParser) -> None:
    """Add what the verb takes to a parser."""
    verb.add_argument(
        "--suite",
        default="quick",
        metavar="S",
        help="quick, standard, deep, or a JSON file of axes (calibrate plan writes one); left open: quick",
    )
    verb.add_argument("--resume", action="store_true", help="go on with the points measured so far beside -o FILE")
    verb.add_argument("--retry", action="store_true", help="as --resume, and measure again what failed or was slowed")
    verb.add_argument("--time-limit", type=float, metavar="MIN", help="stop after this many minutes; --resume goes on")
    add_device_flags(verb)
    verb.add_argument(
        "--device-row", metavar="FILE", help="also write what this GPU tells of itself, as a row for --gpus (.json)"
    )
    verb.add_argument("--host-probe", metavar="FILE", help="also time a step of an installed vLLM on the host (.json)")


def add_device_flags(verb: argparse.ArgumentParser) -> None:
    """Add which GPU is meant to a parser."""
    verb.add_argument("--gpu", metavar="G", help="the catalogue's name of this GPU; left open: found from the device")
    verb.add_argument("--device", type=int, default=0, metavar="N", help="CUDA's number of the GPU; left open: 0")


def main(words: list[str] | None = None) -> int:
    """Run the verb alone; return 0 done, 1 the run failed, 2 the words or the input were wrong."""
    parser = argparse.ArgumentParser(prog="python -m kernelsight.measure", description=__doc__)
    add_flags(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="the sweep: .parquet")
    parser.add_argument("--format", choices=("table", "json", "csv"), default="table")
    try:
        run(parser.parse_args(words))
    except KernelSightError as error:
        print(f"kernelsight: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("kernelsight: stopped.", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"kernelsight: {error.filename} could not be read or written: {error.strerror}.", file=sys.stderr)
        return 1
    return 0


def run(arguments: argparse.Namespace) -> None:
    """Measure a suite on the running GPU, write the sweep, and print what was measured and what failed."""
    from kernelsight.measure.catalogue import catalogue_rows, remarks, write_row
    from kernelsight.measure.run import measure_suite
    from kernelsight.measure.suite import read_suite
    from kernelsight.report.output import check_ending, note, print_rows

    target = check_ending(arguments.output, (".parquet",))
    if target is None:
        raise InvalidInput("calibrate measure was given no -o FILE; name the Parquet file of the sweep.")
    limit = arguments.time_limit
    if limit is not None and not 0 < limit < math.inf:
        raise InvalidInput(f"--time-limit is {limit:g}; give minutes above 0.")
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
    how = {"resume": arguments.resume, "retry": arguments.retry, "most_seconds": seconds, "told": note}
    try:
        found = measure_suite(device, suite, target, **how)
    except KeyboardInterrupt:
        raise RunFailed(f"stopped; {target} holds what was measured, and --resume goes on.") from None
    print_rows(_rows(found.families), list(COLUMNS), arguments.format)
    if host_file:
        host = probe_vllm(host_file)
        note(f"vLLM: {host['step_base_us']:g} us a step and {host['per_request_us']:g} us a request of it, on the host")
    rest = f", {found.left:,} left: --resume goes on" if found.left else ""
    note(f"{found.measured:,} points measured, {found.failed:,} failed{rest}; written to {Path(target)}")


def open_device(arguments: argparse.Namespace) -> Any:
    """Return the running GPU; InvalidInput tells what is missing where there is none."""
    from kernelsight.measure.cuda.device import open_gpu

    return open_gpu(arguments.device, arguments.gpu)


def _rows(families: Any) -> list[dict[str, Any]]:
    rows = []
    for family, (measured, reasons) in families.items():
        first = {"family": family, "measured": measured, "failed": sum(reasons.values())}
        rows += [
            {**(first if place == 0 else {"family": family}), "reason": reason and f"{count} x {reason}"}
            for place, (reason, count) in enumerate(reasons.items() or [("", 0)])
        ]
    return rows
