"""The page of a saved kernel search: best candidate, measured and deferred candidates with reasons, calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput
from kernelsight.files.own import own_json
from kernelsight.number_format import number, percent
from kernelsight.present.figures.files import figures_of
from kernelsight.present.page import Page, Table, pairs, queried

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


UNKNOWN = "–"


def search_page(session: Session, search: str | None = None) -> Page:
    """Return the page of the only search in a saved run.

    ``search``: its id, None: any. InvalidInput: the run holds several searches, or another one.
    """
    scenarios = session.table("search_scenarios").to_pylist()
    names = [row["search_id"] for row in scenarios]
    if len(names) != 1:
        raise InvalidInput(
            f"the run holds {len(names)} kernel searches; a report shows one, as `search run -o` saves it."
        )
    if search not in (None, names[0]):
        raise InvalidInput(f"the run holds the kernel search {names[0]!r}, not {search!r}; leave out --scenario.")
    scenario, summary = scenarios[0], session.table("search_summary").to_pylist()[0]
    asked = {name: value for name, value in scenario.items() if value is not None and name != "search_id"}
    return Page(
        f"Kernel search: {scenario['space']} on {scenario['gpu']}",
        summary,
        asked=[", ".join(f"{name} {number(value)}" for name, value in asked.items())],
        tiles=_tiles(summary),
        sentences=_sentences(session, scenario, summary),
        figures=lambda: queried(session, figures_of("search").values()),
        tables=[Table("Best candidate", _parameters(session))],
    )


def _sentences(session: Session, scenario: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """Return the findings of the search as sentences, the most important first."""
    sentences = [
        f"The fastest candidate after {summary['measured']} measurements takes {number(summary['best_us'])} us: "
        f"{summary['best_candidate']}."
    ]
    if summary["regret"] is not None:
        within = "; the search was within 5 % after {} and within 2 % after {} measurements"
        reached = within.format(*(number(summary[name]) for name in ("n_to_5", "n_to_2"))) if summary["score"] else ""
        sentences.append(f"It is {percent(summary['regret'], 1)} above the fastest that the file holds{reached}.")
    last_round = session.query("select expected_better from search_rounds order by round desc limit 1").to_pylist()[0]
    if last_round["expected_better"] is not None:
        end_clause = "It stopped by itself" if summary["stopped"] else "It ended with its budget"
        sentences.append(
            f"{end_clause}; before its last round it expected {number(last_round['expected_better'])} further "
            "candidates to be faster than the best by 2 %."
        )
    figures = figures_of("search")
    deferred = session.query(figures["What was deferred"].sql).to_pylist()
    if deferred:
        reasons = "; ".join(f"{row['candidates']:,} {row['why']}" for row in deferred)
        deferred_count = sum(row["candidates"] for row in deferred)
        sentences.append(f"{deferred_count:,} candidates were forecast and not measured: {reasons}.")
    forecasts = session.query(figures["Forecast against measurement"].sql).to_pylist()
    if forecasts:
        inside = sum(row["inside"] for row in forecasts)
        sentences.append(
            f"{inside} of {len(forecasts)} measured candidates lay within the 90 % interval that was forecast for them."
        )
    if summary["failed"]:
        sentences.append(f"{summary['failed']} measurements failed.")
    if summary["notes"]:
        sentences.append(f"{summary['notes'][0].upper()}{summary['notes'][1:]}.")
    return sentences


def _tiles(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key figures of a search: best candidate, measurements, calibration."""
    return {
        "best (us)": summary["best_us"],
        "above the fastest": percent(summary["regret"], 1, UNKNOWN),
        "measurements": summary["measured"],
        "failed": summary["failed"],
        "to 5 %": number(summary["n_to_5"], missing=UNKNOWN),
        "to 2 %": number(summary["n_to_2"], missing=UNKNOWN),
        "measuring (s)": summary["gpu_s"],
        "90 % intervals cover": percent(summary["coverage_90"], 1, UNKNOWN),
        "calibration error": number(summary["ece"], missing=UNKNOWN),
        "score P": number(summary["score"], missing=UNKNOWN),
    }


def _parameters(session: Session) -> list[dict[str, Any]]:
    """Return the parameters of the best candidate as table rows."""
    rows = session.query(
        "select parameters from kernel_candidates join search_summary on candidate_id = best_candidate "
        "join search_scenarios using (search_id, space)"
    ).to_pylist()
    return pairs(own_json(rows[0]["parameters"]), ("parameter", "value"))
