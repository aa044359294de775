"""The page of a comparison: verdict, errors, parts of the miss, suspects, corrections; or what changed between logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.number_format import deviation, interval, number, percent, rounded
from kernelsight.present.figures.files import figures_of
from kernelsight.present.page import Figure, Page, Rows, Table, queried

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# table of a saved comparison
FINDINGS = "comparison_findings"
METRICS = ("ttft", "tpot", "e2e")
MOST_SHOWN, MOST_NAMED = 8, 3
# names of changes, where the column's name with spaces would not do
WORDS = {
    **{"e2e_ms": "mean E2E", "ttft_at_the_same_load": "TTFT at the same load"},
    **{"power_w": "power", "energy_per_output_token_j": "energy per output token"},
}


RATES = {"request_throughput": "req/s", "output_tokens_per_s": "output tok/s", "running": "running"}
MOST_ROWS = 24
MOST_IN_FULL = 3  # stages of which percentiles are shown too


def comparison_page(answer: Mapping[str, Any], session: Session | None = None) -> Page:
    """Return the page of a comparison; ``answer`` as printed by `compare --format json`.

    ``session``: of a comparison with a replay, for figures.
    """
    if "changes" in answer:
        tables = _changes(answer)
    elif "stages" in answer:
        tables = [*([_errors(answer), *_stages(answer)] if answer["stages"] else [_said(answer)]), *_windows(answer)]
    else:
        tables = [_errors(answer), *_misses(answer), *_kernels(answer["kernels"])]
    return Page(
        _title(answer),
        answer,
        sentences=[answer["verdict"][0].upper() + answer["verdict"][1:]],
        figures=lambda: _figures(answer, session),
        tables=[Table(lines=_counts(answer)), *tables],
    )


def saved_comparison_page(session: Session) -> Page:
    """Return the page of a saved comparison: its findings and figures."""
    sentences = [row["sentence"] for row in session.table(FINDINGS).sort_by("place").to_pylist()]
    requests = session.table("prediction_vs_production")
    return Page(
        f"{requests.num_rows:,} requests compared with their replay",
        {"findings": sentences},
        asked=[", ".join(sorted(set(requests["log_id"].to_pylist())))],
        sentences=sentences,
        figures=lambda: queried(session, figures_of("comparison").values()),
    )


def _title(answer: Mapping[str, Any]) -> str:
    """Return how many requests are compared, and of which files."""
    names = list(dict.fromkeys(Path(row["path"]).name for row in answer["files"] if row["role"] == "requests"))
    of = f": {', '.join(names[:MOST_NAMED])}{', …' * (len(names) > MOST_NAMED)}" if names else ""
    return f"{answer['requests']:,} requests compared{of}"


def _figures(answer: Mapping[str, Any], session: Session | None) -> list[Figure]:
    """Return the figures of a comparison with a replay, of the stages of a log, or the latencies of two logs."""
    if answer.get("stages"):
        rows = [
            {"what": f"{row['metric'].removesuffix('_ms').upper()} {row['statistic']}, {row['part']}", "when": when}
            | {"ms": row[when]}
            for row in answer["stages"]
            for when in ("measured", "predicted")
            if row["metric"].endswith("_ms") and row[when] is not None
        ]
        return [figures_of("changes")["Measured and predicted"]._replace(rows=rows[: 2 * MOST_ROWS])] if rows else []
    if "changes" not in answer:
        return [] if session is None else queried(session, figures_of("comparison").values())
    rows = [
        {"what": f"{metric.removesuffix('_ms').upper()} {name}", "when": when, "ms": pair[column]}
        for metric, pairs in answer["percentiles"].items()
        for name, pair in pairs.items()
        for when, column in (("before", "predicted"), ("after", "measured"))
        if pair[column] is not None
    ]
    return [figures_of("changes")["Latencies before and after"]._replace(rows=rows)]


def _counts(answer: Mapping[str, Any]) -> list[str]:
    """Return the lines on requests, left-out rows, files and cached tokens."""
    lines = [f"{answer['requests']:,} requests compared"]
    for row in answer["dropped"]:
        first = f", first {row['example']}" if row["example"] and row["rows"] != "noted" else ""
        lines.append(f"  {row['rows']}: {row['n']:,} x {row['explanation']}{first}")
    lines += _files(answer["files"])
    if answer.get("cached_tokens"):
        measured, predicted = (answer["cached_tokens"][name] for name in ("measured", "predicted"))
        lines.append(f"cached tokens: {measured:,} reported, {predicted:,} predicted")
    return lines + ([f"{answer['baseline']['requests']:,} requests of the earlier log"] if "changes" in answer else [])


def _errors(answer: Mapping[str, Any]) -> Table:
    """Return measured and predicted times with their errors."""
    rows = [{"": name.upper(), **answer[f"{name}_ms"]} for name in METRICS if answer[f"{name}_ms"]["n"]]
    return Table(
        rows=[
            {
                "": row[""],
                "measured (ms)": row["measured"],
                "predicted (ms)": row["predicted"],
                "median error": percent(row["median_ape"], 1),
                "bias": deviation(row["bias"]),
                "within 90 % interval": percent(row["coverage_90"], 1),
            }
            for row in rows
        ],
        first=True,
    )


def _misses(answer: Mapping[str, Any]) -> list[Table]:
    """Return power, percentiles, parts of the miss, evidence, suspects and corrections."""
    misses = [row for row in answer["parts"] if abs(row["miss_ms"]) >= 0.005][:MOST_SHOWN]
    suspects = [
        {name: row[name] for name in ("setting", "stated", "value", "gain", "evidence")} for row in answer["suspects"]
    ]
    fit = [
        {"": name.replace("_", " ")}
        | {metric.upper(): percent(answer["fit"][name][metric]["median_ape"], 1) for metric in METRICS}
        for name in ("uncorrected", "one_factor", "corrected")
        if answer["fit"]
    ]
    return [
        Table(lines=_power(answer["power_w"])),
        Table(rows=_percentiles(answer["percentiles"])),
        Table(
            rows=[{"part of the E2E miss": row["part"], "ms a request": row["miss_ms"]} for row in misses], drawn=True
        ),
        Table(lines=answer["not_separated"] + _evidence(answer["evidence"])),
        Table(rows=suspects[:MOST_SHOWN], drawn=True),
        Table(f"median error on the last {answer['fit']['held_out']:,} requests" if fit else "", fit),
    ]


def _power(power: Mapping[str, Any]) -> list[str]:
    """Return a line on measured and predicted power of the GPUs."""
    if not power:
        return []
    error = "" if power["error"] is None else f", {deviation(power['error'])}"
    measured = f"{number(power['measured'])} W measured over {rounded(power['seconds'])} s"
    predicted = f"{number(power['predicted'])} W predicted (90 %: {interval(power['low'], power['high'])} W)"
    return [f"power of GPUs: {measured}, {predicted}{error}"]


def _changes(answer: Mapping[str, Any]) -> list[Table]:
    """Return changes since the earlier log: latencies, then load, speed and settings."""
    shown = [
        {
            "what changed": WORDS.get(row["what"], row["what"].replace("_", " ")),
            "unit": row["unit"] or "",
            "before": _shown(row["before"], row["before_word"]),
            "now": _shown(row["after"], row["after_word"]),
            "factor": number(row["factor"], missing="-"),
            "beyond chance": "yes" if row["certain"] else "no",
        }
        for row in answer["changes"]
    ]
    return [Table(rows=_percentiles(answer["percentiles"], "ms, now / before")), Table(rows=shown, first=True)]


def _shown(value: float | None, word: str | None) -> str:
    return word if word is not None else number(value, missing="-")


def _percentiles(percentiles: Mapping[str, Any], title: str = "ms, measured / predicted") -> Rows:
    """Return the percentiles of each metric, measured / predicted."""
    return [
        {title: metric.removesuffix("_ms").upper()}
        | {
            name: f"{number(pair['measured'], missing='-')} / {number(pair['predicted'], missing='-')}"
            for name, pair in pairs.items()
        }
        for metric, pairs in percentiles.items()
    ]


def _evidence(evidence: Mapping[str, Any]) -> list[str]:
    """Return sentences on the evidence for factors besides requests, and on evidence that could not be used."""
    counts = [f"{evidence[name]:,} {noun}" for name, noun in (("steps", "engine steps"), ("kernels", "kernel times"))
              if evidence.get(name)]  # fmt: skip
    sentences = [f"causes and factors rest on {' and '.join(counts)} of the log too"] if counts else []
    return sentences + evidence.get("not_used", [])


def _files(rows: Rows) -> list[str]:
    """Return the role and format of each file of a folder, and the files that were not read, with the reason."""
    in_folders = [row for row in rows if row["folder"]]
    read = [row for row in in_folders if row["role"]]
    unread = [f"{Path(row['path']).name} ({row['not_read']})" for row in in_folders if not row["role"]]
    page = [f"  {row['role']}: {Path(row['path']).name} ({row['format']})" for row in read]
    return page + ([f"  not read: {len(unread):,} x {', '.join(unread)}"] if unread else [])


def _kernels(kernels: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return the kernels of a profile with the most time as a table."""
    table = [
        {
            **{"kernel": row["name"][:60], "family": row["family"], "calls": number(row["calls"])},
            **{"us": number(row["total_us"]), "share": percent(row["share"], 1)},
        }
        for row in kernels
    ]
    return [Table("kernels of the profile with the most time:", table)] if table else []


def _said(answer: Mapping[str, Any]) -> Table:
    """Return what is said of a log without stages."""
    return Table(lines=answer["findings"])


def _windows(answer: Mapping[str, Any]) -> list[Table]:
    """Return a server's throughput, requests and caches over time, at most MOST_ROWS windows, evenly chosen."""
    windows = [row for row in answer["windows"] if row["end_s"] is not None]
    table = []
    for row in windows[:: -(-len(windows) // MOST_ROWS) or 1]:
        lasts_s = row["end_s"] - row["start_s"]
        shown = {"from (s)": rounded(row["start_s"]), "to (s)": rounded(row["end_s"])}
        for name, words in (("prompt_tokens", "prompt tok/s"), ("output_tokens", "output tok/s")):
            shown[words] = number(row[name] / lasts_s) if row[name] is not None and lasts_s > 0 else None
        shown |= {name: number(row[name]) for name in ("running", "waiting")}
        shown |= {
            words: percent(row[name], 1) if row[name] is not None else None
            for name, words in (("kv_share", "KV cache"), ("hit_share", "hit rate"))
        }
        table.append(shown)
    return [Table("the server over time:", table)] if table else []


def _stages(answer: Mapping[str, Any]) -> list[Table]:
    """Return the statistics of each stage as a table (of many stages the means), and the findings on them."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    several = len({(row["log_id"], row["part"]) for row in answer["stages"]}) > MOST_IN_FULL
    for row in answer["stages"]:
        if row["statistic"] == "mean" or not several:
            key = (row["log_id"], row["part"], row["statistic"])
            stage_row = rows.setdefault(key, {"stage": row["part"], "statistic": row["statistic"]})
            stage_row["loop"] = "open" if row["open_loop"] else "full"
            name = RATES.get(row["metric"]) or f"{row['metric'].split('_')[0].upper()} (ms)"
            stage_row[name] = f"{number(row['measured'])} / {number(row['predicted'])}  {deviation(row['error'])}"
    columns = list(dict.fromkeys(name for stage_row in rows.values() for name in stage_row))
    hint = "-o FILE.parquet writes corrections for the deployment's other loads, bounded, from these means"
    table = [{name: stage_row.get(name) for name in columns} for stage_row in rows.values()]
    title = "statistics of each stage, measured / predicted, and the error:"
    return [Table(title, table), Table(lines=[*answer["findings"], hint])]
