"""Tables and sentences on `kernelsight serve` as measured by clients, and on step times."""

from __future__ import annotations

from typing import Any

from figures.blocks import result
from figures.text import count, percent, table

CLIENTS = {"server_times": "our client", "server_aiperf": "AIPerf"}


def times() -> str:
    """Table of percentiles that clients measured, beside those that `simulate` predicts for their arrivals."""
    rows_of = {name: {row["metric"]: row for row in result(name)["rows"]} for name in CLIENTS}
    rows = []
    for metric in next(iter(rows_of.values())):
        name, which = metric.split("_")
        cells = [_ms(rows_of[client][metric][side]) for client in CLIENTS for side in ("client_ms", "simulate_ms")]
        rows.append([f"{name.upper()} {which}", *cells])
    head = [words for title in CLIENTS.values() for words in (f"{title}, ms", "`simulate`, ms")]
    return table(["", *head], rows)


def _ms(value: float) -> str:
    """Return milliseconds with one decimal."""
    return f"{value:,.1f}"


def setting() -> str:
    """List of how the clients measured."""
    lines = []
    for name, title in CLIENTS.items():
        recorded = result(name)
        not_kept = [row["metric"].replace("_", " ").upper() for row in recorded["rows"] if not row["kept"]]
        kept = "all within 5 % or 2 ms" if not not_kept else f"within 5 % or 2 ms except {', '.join(not_kept)}"
        late = (
            f"; a timer of the client was up to {_ms(recorded['late_p99_ms'] * recorded['speed'])} simulated ms late (p99)"
            if "late_p99_ms" in recorded
            else ""
        )
        version = f" {recorded['aiperf']}" if "aiperf" in recorded else ""
        lines.append(
            f"- {title[0].upper()}{title[1:]}{version}: {recorded['streams']} streams, {count(recorded['requests'])} requests at speed {recorded['speed']:g}; server and client "
            f"took {recorded['server_cores']:.2g} and {recorded['client_cores']:.2g} cores of two with load {recorded['load_average']:.0f}{late}. {kept[0].upper()}{kept[1:]}. "
            f"`compare` of its log names {'nothing' if recorded['cause'] == 'none' else recorded['cause']}."
        )
    return "\n".join(lines)


def kept() -> str:
    """Table of the streams whose median times are kept at speed 1."""
    recorded = result("server_kept")
    rows = [_stream(row) for row in recorded["rows"]]
    head = [
        "streams",
        "tokens/s",
        "cores of the server",
        "timer late, p50 / p99 ms",
        "TTFT p50 (`simulate`), ms",
        "ITL p50 (`simulate`), ms",
        "E2E p50 (`simulate`), ms",
        "medians kept",
    ]
    most = f"The medians of TTFT, ITL and E2E are all kept up to {recorded['most']} streams."
    return f"{most}\n\n{table(head, rows)}"


def _stream(row: dict[str, Any]) -> list[str]:
    """Return the table row of a number of streams."""
    by_name = {each["metric"]: each for each in row["rows"]}
    medians = [by_name[f"{metric}_p50"] for metric in ("ttft", "itl", "e2e")]
    times = [f"{_ms(each['client_ms'])} ({_ms(each['simulate_ms'])})" for each in medians]
    return [
        *(str(row["streams"]), count(row["tokens"] / row["wall_s"]), f"{row['server_cores']:.2f}"),
        *(f"{_ms(row['late_p50_ms'])} / {_ms(row['late_p99_ms'])}", *times, "yes" if row["medians_kept"] else "no"),
    ]


def many() -> str:
    """List of time and memory of many requests, with clients that disconnect, and of a flood."""
    recorded = result("server_many")
    start, first, last = recorded["memory_mb"]
    flood = recorded["flood"]
    return (
        f"- {count(recorded['requests'])} requests over 128 connections; {percent(0.05, 0)} of the clients disconnect after the first token, {percent(0.05, 0)} pause reading. "
        f"The server takes {recorded['server_ms_per_request']:.2f} CPU-ms per request, and {'every' if recorded['whole'] else 'not every'} other response is complete. Memory: {start:.0f} MB at the start, {first:.0f} MB after a "
        f"fifth of the requests, {last:.0f} MB after all. {recorded['left_behind']:.0f} requests remain in the server.\n"
        f"- {count(flood['sent'])} simultaneous requests with capacity for {flood['room']}: {flood['200']} answered, {flood['429']} rejected with status 429; memory {flood['memory_mb'][0]:.0f} MB before, {flood['memory_mb'][1]:.0f} MB after."
    )


def steps() -> str:
    """Table of batches per CPU-second of the calls that predict a step."""
    rows = [
        [
            *(str(row["sequences"]), count(row["by_flags_per_s"]), count(row["single_per_s"])),
            f"{row['arrays_per_s'] / 1e6:.1f} million",
        ]
        for row in result("server_steps")["rows"]
    ]
    heads = [
        "`ks.step_time(flags, batch)`",
        "`times = session.step_times(...)`, then `times(batch)`",
        "`times` over arrays",
    ]
    return table(["sequences in a batch", *(f"batches per CPU-second, {head}" for head in heads)], rows)
