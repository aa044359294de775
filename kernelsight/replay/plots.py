"""Pictures of a backtest: predicted against measured, and error against load; needs the extra ``report``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelsight.errors import InvalidInput

ENDINGS = (".svg", ".png", ".html", ".json")
METRICS = (("ttft", "TTFT"), ("tpot", "TPOT"))
SIZE = 300


def check_picture(path: str | None) -> Path | None:
    """Return the path of --plot; InvalidInput for an ending that is no picture's, or where altair is not installed."""
    if path is None:
        return None
    target = Path(path)
    if target.suffix not in ENDINGS:
        raise InvalidInput(f"--plot {path!r} ends in {target.suffix!r}; use one of {', '.join(ENDINGS)}.")
    if not target.resolve().parent.is_dir():
        raise InvalidInput(f"--plot {path!r} cannot be written: there is no folder {target.resolve().parent}.")
    try:
        import altair  # noqa: F401
    except ImportError:
        raise InvalidInput("--plot needs altair: pip install 'kernelsight[report]'.") from None
    return target


def points(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what is drawn: scored runs with measured and predicted times in ms and signed errors in percent."""
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
        if row.get("errors") and not row["fitting"]
    ]


def draw(rows: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Write one picture: for TTFT and TPOT a row, predicted against measured left, error against load right.

    Errors beyond + 200 % are drawn at the edge.
    """
    import altair as alt

    alt.data_transformers.disable_max_rows()
    data = alt.Data(values=points(rows))
    panels = []
    for metric, name in METRICS:
        measured, predicted = f"{metric}_measured", f"{metric}_predicted"
        both = alt.Chart(data).transform_calculate(error=f"min(datum.{metric}_error, 200)")
        scatter = both.mark_circle(size=14, opacity=0.5).encode(
            x=alt.X(f"{measured}:Q", scale=alt.Scale(type="log"), title=f"measured {name} (ms)"),
            y=alt.Y(f"{predicted}:Q", scale=alt.Scale(type="log"), title=f"predicted {name} (ms)"),
            color=alt.Color("engine:N"),
            tooltip=["run_id:N", f"{measured}:Q", f"{predicted}:Q"],
        )
        diagonal = both.mark_line(color="black", strokeWidth=1).encode(x=f"{measured}:Q", y=f"{measured}:Q")
        load = both.mark_boxplot(size=7, outliers={"size": 4}).encode(
            x=alt.X("max_concurrency:Q", scale=alt.Scale(type="log", base=2), title="concurrency"),
            y=alt.Y("error:Q", title=f"error of {name} (%)"),
            color=alt.Color("kind:N"),
        )
        left = (scatter + diagonal).properties(width=SIZE, height=SIZE)
        panels.append(left | load.properties(width=SIZE, height=SIZE))
    alt.vconcat(*panels).resolve_scale(color="independent").save(str(target))
