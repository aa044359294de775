"""Tables of speed: loop, kernel predictions, sweeps, waits, other programs; and of the accuracy of rates and sizes."""

from __future__ import annotations

from typing import Any

from figures.blocks import result
from figures.text import ENGINES, NONE, count, day, percent, table


def million(value: float) -> str:
    """Return a number in millions with three digits.

    >>> million(2_310_000.0), million(13_100_000.0)
    ('2.31', '13.1')
    """
    return f"{value / 1e6:.3g}"


def span(values: list[float]) -> str:
    """Return the range of some values in millions."""
    low, high = map(million, values)
    return low if low == high else f"{low} to {high}"


def ratio(row: dict[str, Any]) -> str:
    """Return how many times faster than the other program ours is, as a range over runs."""
    low, high = row["ratio"]
    words = f"{low:,.3g}" if low == high else f"{low:,.4g} to {high:,.4g}"
    return f"{words} times {'faster' if low > 1 else 'as fast'}"


def peers() -> str:
    """Table of ratios to other programs, each with its version, load and date if known."""
    rows = [
        [
            row["peer"],
            row["work"],
            row["theirs"],
            row["ours"],
            ratio(row) if row["ratio"] else NONE,
            (f"{day(row['date'])}; " if row["date"] else "") + row["how"],
        ]
        for row in result("speed_peers")["rows"]
    ]
    return table(["program", "work", "its result", "KernelSight", "ratio", "measured"], rows)


def serving() -> str:
    """Table of requests per CPU-second of the loop."""
    rows = [
        [
            row["load"],
            span(row["requests_per_cpu_s"]),
            million(row["with_tables"]),
            million(row["steps_per_cpu_s"]),
            " to ".join(f"{nanoseconds:.1f}" for nanoseconds in row["ns_per_token"]),
        ]
        for row in result("speed_serving")["loads"]
    ]
    speeds = ["million requests per CPU-second", "with result tables", "million steps per CPU-second"]
    return table(["load", *speeds, "CPU-nanoseconds per output token"], rows)


def memory() -> str:
    """List of CPU time and memory of a million requests, and of a log of a million requests."""
    sweep, log = result("speed_million"), result("speed_million_log")
    return (
        f"- A million requests at 20 per second: {sweep['cpu_s']:.1f} CPU-seconds, {count(sweep['bytes_per_request'])} bytes per request above start-up.\n"
        f"- A log of a million requests, read, replayed, explained and joined: {log['cpu_s']} CPU-seconds ({log['causes_cpu_s']} of them to find causes in "
        f"4,000 of its requests), {log['bytes_per_request'] / 1e3:.2f} kB per request above start-up."
    )


def kernels() -> str:
    """Table of latencies per second and of lowering."""
    recorded = result("speed_kernels")
    speeds = {name: million(speed) for name, speed in recorded["per_cpu_s"].items()}
    rows = [
        [
            "latency, interval and tier of a million distinct calls on a measured GPU, Arrow in and out: GEMM, mixed families",
            f"{speeds['gemm']} and {speeds['mixed']} million rows per CPU-second",
        ],
        ["`predict --calls`, a file of distinct GEMM calls", f"{speeds['predict_calls']} million rows per CPU-second"],
        ["lowering in SQL, 50 deployments", f"{million(recorded['lowering'])} million rows per CPU-second"],
    ]
    return table(["work", "speed"], rows)


def sweeps() -> str:
    """Table of scenarios per second."""
    rows = [[name, count(speed), f"{cpu:g}"] for name, speed, cpu in result("speed_sweep")["rows"]]
    return table(["sweep", "scenarios/s", "CPU ms per scenario"], rows)


def growth() -> str:
    """Table of how CPU time grows along what is asked for."""
    rows = [
        [row[name] for name in ("axis", "sizes", "CPU s")] + [f"{row['exponent']:g}", f"{row['at the end']:g}"]
        for row in result("speed_growth")["rows"]
    ]
    return table(["along", "sizes", "CPU-s", "exponent", "of the last two"], rows)


def decisions() -> str:
    """Table of how often highest rates, capacities, sizes and limits are right."""
    rates, sizes, limits, simulate_limits = (result(name) for name in ("rates", "sizes", "sizes_limits", "limits"))
    trip = result("sizes_round_trip")
    capacity = result("capacity")
    engines = ", ".join(
        f"{percent(by_engine['near'], 0)} of {by_engine['cases']} on {ENGINES[name]}"
        for name, by_engine in capacity["engines"].items()
    )
    rows = [
        [f"highest rates, simulated again with ten times the prompts and other seeds: all objectives met, {rates['cases']} deployments, {rates['cases'] * rates['checks']} runs",
         f"{percent(rates['kept'])}; at the lower end of the range {percent(rates['kept_low'])}"],
        ["CPU seconds to find the rate of a deployment, mean / largest", f"{rates['cpu_s']['mean']} / {rates['cpu_s']['largest']}"],
        ["capacity that `simulate` computes from step costs, against the highest steady rate found by search: within 5 %",
         f"{percent(capacity['near'], 0)} of {capacity['cases']} deployments ({engines}); median {percent(capacity['median'])}, worst {percent(capacity['worst'])} off"],
        [f"`size` against a search of everything ({sizes['deployments']:,} deployments; questions by {', '.join(sizes['kinds'])}): within 5 % of the lowest cost / said to be proven / cheaper than what holds / crashes",
         f"{sizes['near']} / {sizes['complete']} / {sizes['cheaper_than_holds']} / {sizes['crashes']} of {sizes['cases']} questions; CPU seconds: median {sizes['size_cpu_s']}, largest {sizes['size_cpu_s_most']}"],
        ["`size -o`: deployments of its answers, written in each form of deployment file and read again: the same deployment",
         "; ".join(f"{form}: {trip.get(f'{form} same', 0)} of {trip['deployments']}" for form in ("compose", "kubernetes", "dynamo", "llm-d"))],
        ["the limit that `size` names is the resource for which adding a fifth raises the rate most",
         f"{limits['right']} of {limits['cases']}; in {limits['near']} within 2 % of the rate"],
        ["the limit that `simulate` names is the resource for which adding a fifth raises throughput most", f"{simulate_limits['right']} of {simulate_limits['worlds']} worlds (seed {simulate_limits['seed']})"],
    ]  # fmt: skip
    return table(["question", "result"], rows)


def waits() -> str:
    """Table of CPU times that users wait for, beside a Python loop and an earlier commit."""
    measured = result("speed_waits")["rows"]
    former, now = measured[0]["commit"], measured[-1]["commit"]
    before = {row["wait"]: row["again CPU s"] for row in measured if row["commit"] == former}
    rows = [
        [row["wait"], f"{row['yardsticks']:.1f}", f"{row['again CPU s']:.2f}"]
        + [f"{row['again CPU s'] / before[row['wait']]:.2f}"]
        for row in measured
        if row["commit"] == now
    ]
    return table(["wait", "yardsticks", "CPU-seconds", f"relative to {former}, run in turn"], rows)
