"""Plots of a backtest: predicted against measured times, error against load, error by group; needs extra ``report``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput, extra_missing
from kernelsight.evaluation.runs.run_scores import GROUP
from kernelsight.present.html.page import plain
from kernelsight.present.page import Figure, Page
from kernelsight.present.show import HTML, write_page

if TYPE_CHECKING:
    import altair as alt

ENDINGS = (".svg", ".png", ".html", ".json")
TITLE = "Predicted against measured, error against load, median error of each group"
METRICS = (("ttft", "TTFT"), ("tpot", "TPOT"))
SIZE = 300
SHOWN_RUNS = 20


def check_picture(path: str | None) -> Path | None:
    """Return the path of --plot; InvalidInput: an unknown extension, or altair is not installed."""
    if path is None:
        return None
    target = Path(path)
    if target.suffix not in ENDINGS:
        raise InvalidInput(f"--plot {path!r} ends in {target.suffix!r}; use one of {', '.join(ENDINGS)}.")
    if not target.resolve().parent.is_dir():
        raise InvalidInput(f"--plot {path!r} cannot be written: folder {target.resolve().parent} does not exist.")
    try:
        import altair  # noqa: F401
    except ImportError:
        raise extra_missing("--plot", "altair", "report") from None
    return target


def points(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the points of the upper plots: scored runs with measured and predicted times, ms, and errors, %."""
    return [
        {
            **{name: row[name] for name in ("run_id", "model", "gpu", "engine", "max_concurrency")},
            "kind": "mixture of experts" if row["is_moe"] else "dense",
            **{
                key: value
                for metric, _ in METRICS
                for key, value in (
                    (f"{metric}_measured", row[f"{metric}_ms"]),
                    (f"{metric}_predicted", row[f"{metric}_mean_ms"]),
                    (f"{metric}_error", 100.0 * row["errors"][metric]),
                )
            },
        }
        for row in rows
        if row.get("errors") and not row["fitting"] and not row.get("prefill_workers")
    ]


def group_points(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the points of the lower plot: median error, %, by group of runs, of KernelSight and AIConfigurator."""
    peer = report.get("peer", {}).get("groups", [])
    points = [("KernelSight", group, group) for group in report["groups"]]
    points += [("AIConfigurator", group, group["peer"]) for group in peer]
    return [
        {
            "group": " ".join(str(group[key] or "").split("/")[-1] for key in GROUP),
            "n": group["n"],
            "tool": tool,
            "metric": name,
            "median_ape": 100.0 * scores[metric]["median_ape"],
        }
        for tool, group, scores in points
        for metric, name in METRICS
        if group["n"] >= SHOWN_RUNS
    ]


def draw(rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any], target: Path) -> None:
    """Write the plots as one figure."""
    if target.suffix == HTML:
        # Altair's own page loads its libraries from the network, and a name with </script> would end its script
        write_page(Page(TITLE, report, figures=lambda: plots(rows, report)), target)
    else:
        _chart(rows, report).save(str(target))


def plots(rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> list[Figure]:
    """Return the plots as a figure of a page; none without altair."""
    try:
        spec = _chart(rows, report).to_dict()
    except ImportError:
        return []
    # its rows are in the specification
    return [Figure(TITLE, "", spec=spec, wide=True)]


def _chart(rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> alt.VConcatChart:
    """Return one figure: for TTFT and TPOT predicted against measured (left) and error against load (right).

    Below, the median error of each group of ``SHOWN_RUNS`` runs or more. Errors above 200 % are drawn at the edge.
    """
    import altair as alt

    alt.data_transformers.disable_max_rows()
    data = alt.Data(values=[plain(row) for row in points(rows)])
    panels = []
    for metric, name in METRICS:
        measured, predicted = f"{metric}_measured", f"{metric}_predicted"
        base = alt.Chart(data).transform_calculate(error=f"min(datum.{metric}_error, 200)")
        scatter = base.mark_circle(size=14, opacity=0.5).encode(
            x=alt.X(f"{measured}:Q", scale=alt.Scale(type="log"), title=f"measured {name} (ms)"),
            y=alt.Y(f"{predicted}:Q", scale=alt.Scale(type="log"), title=f"predicted {name} (ms)"),
            color=alt.Color("engine:N"),
            tooltip=["run_id:N", f"{measured}:Q", f"{predicted}:Q"],
        )
        diagonal = base.mark_line(color="black", strokeWidth=1).encode(x=f"{measured}:Q", y=f"{measured}:Q")
        load = base.mark_boxplot(size=7, outliers={"size": 4}).encode(
            x=alt.X("max_concurrency:Q", scale=alt.Scale(type="log", base=2), title="concurrency"),
            y=alt.Y("error:Q", title=f"error of {name} (%)"),
            color=alt.Color("kind:N"),
        )
        scatter_plot = (scatter + diagonal).properties(width=SIZE, height=SIZE)
        panels.append(scatter_plot | load.properties(width=SIZE, height=SIZE))
    groups = (
        alt.Chart(alt.Data(values=[plain(row) for row in group_points(report)]))
        .mark_point(filled=True, size=40)
        .encode(
            x=alt.X("median_ape:Q", scale=alt.Scale(type="symlog"), title="median error (%)"),
            y=alt.Y("group:N", title=None, axis=alt.Axis(labelLimit=400)),
            color=alt.Color("tool:N"),
            shape=alt.Shape("tool:N"),
            column=alt.Column("metric:N", title=None),
        )
        .properties(width=SIZE)
    )
    return alt.vconcat(*panels, groups).resolve_scale(color="independent", shape="independent")
