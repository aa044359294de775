"""Hypothetical GPUs and host overheads from a user's CSV or JSON file, as rows of ``gpus`` and ``host_overheads``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.dataflow.rows import as_table
from kernelsight.errors import InvalidInput, unknown
from kernelsight.files.numbers import is_number
from kernelsight.files.row_files import read_rows

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

SPREAD = "step_log_sd"
# columns that a hypothetical GPU may leave unset
UNSTATED = (
    "kind",
    "compute_capability",
    "bf16_flops_per_s",
    "fp8_flops_per_s",
    "fp4_flops_per_s",
    "int8_flops_per_s",
    "ecc_in_band",
    "link_fabric",
    "measured_as",
    "cpu",
    "kernel_gap_us",
    "idle_w",
    "fp32_matrix_flops_per_s",
    "estimated",
)


# by suffix of a column: a value far below that of any GPU, and the unit; smaller values are in another unit
LEAST = {
    "bytes_per_s": (1e9, "bytes a second"),
    "flops_per_s": (1e9, "operations a second"),
    "_hz": (1e7, "cycles a second"),
    "memory_bytes": (1e8, "bytes"),
    "l2_bytes": (1e4, "bytes"),
}


def extend_gpus(session: Session, path: Path) -> list[str]:
    """Add the GPUs of a CSV or JSON file to a session; return the catalogue names that its rows replace.

    InvalidInput: the file cannot be read, or a row is invalid (see ``gpu_rows``).
    """
    catalogue_names = set(session.table("gpus")["gpu"].to_pylist())
    texts = {column.name for column in session.graph.known("gpus").columns if column.type == "string"} | {"like"}
    rows = gpu_rows(session, read_rows(path, texts, "--gpus", "GPU"), path, f"given in {path.name}")
    session.extend("gpus", as_table(session.graph.known("gpus"), rows))
    return [row["gpu"] for row in rows if row["gpu"] in catalogue_names]


def gpu_rows(session: Session, facts: Iterable[Mapping[str, Any]], origin: object, source: str) -> list[dict[str, Any]]:
    """Return complete rows of ``gpus`` from partial ones; ``origin``: their source, for error messages.

    A row with the name of a catalogue GPU, or with one in the field ``like``, takes missing columns and the fit
    (``measured_as``) from it. InvalidInput: a new GPU lacks columns (all are listed), or a rate is in another unit.
    """
    catalogue = {row["gpu"]: row for row in session.table("gpus").to_pylist()}
    columns = [column.name for column in session.graph.known("gpus").columns]
    texts = {column.name for column in session.graph.known("gpus").columns if column.type == "string"}
    rows = []
    for number, fields in enumerate(map(dict, facts), start=1):
        name = fields.get("gpu")
        if not name:
            raise InvalidInput(f"{origin}, GPU {number}: the field gpu (its name) is missing; add it.")
        if not isinstance(name, str):
            raise InvalidInput(f"{origin}, GPU {number}: its name is {name!r}; give a string.")
        like = fields.pop("like", None)
        if like is not None and str(like) not in catalogue:
            raise unknown("GPU", str(like), catalogue, f"It is in the field like of {origin}.")
        base = catalogue.get(like or name, {})
        plain = {"name": name, "vendor": "nvidia", "architecture": "hypothetical", "source": source}
        row = {**({} if base else plain), **base, **fields, "source": fields.get("source", source)}
        row["measured_as"] = fields.get("measured_as", base.get("measured_as") or base.get("gpu"))
        if row["measured_as"] is not None and str(row["measured_as"]) not in {name, *catalogue}:
            raise unknown("GPU", str(row["measured_as"]), catalogue, f"It is in the field measured_as of {origin}.")
        missing = [column for column in columns if row.get(column) is None and column not in UNSTATED]
        if missing:
            raise InvalidInput(
                f"{origin}, GPU {name}: missing fields {', '.join(missing)}; add them, or name a catalogue GPU in the "
                "field like."
            )
        _refuse_implausible(row, origin, texts)
        rows.append(row)
    return _with_known_columns(rows, columns, origin)


def _refuse_implausible(row: dict[str, Any], origin: object, texts: set[str]) -> None:
    """Raise InvalidInput for rates and sizes in another unit (GB, TB/s, GHz)."""
    for name, value in row.items():
        ending = next((suffix for suffix in LEAST if name.endswith(suffix)), None)
        if ending is None or name in texts or value is None:
            continue
        least, unit = LEAST[ending]
        if not is_number(value) or value < least:
            raise InvalidInput(
                f"{origin}, GPU {row['gpu']}: {name} is {value!r}; give {unit} as a number, at least {least:g}."
            )


def _with_known_columns(rows: list[dict[str, Any]], columns: list[str], origin: object) -> list[dict[str, Any]]:
    """Return the rows; UnknownName for one with a column that ``gpus`` lacks."""
    for row in rows:
        for name in row:
            if name not in columns:
                raise unknown("column of gpus", name, columns, f"It is in {origin}.")
    return rows


def give_host_overheads(session: Session, path: Path) -> None:
    """Replace the catalogue's host_overheads of some engines by the rows of a CSV or JSON file.

    Missing columns are taken from the engine's newest row and keep its ``assumed``; a row with every figure counts as
    measured, on the CPU that serves, and as exact unless it states its step_log_sd. Terms that refine a stated figure
    are 0 unless stated: with request_us those of tokens, with per_request_us that of requests of other stages; with
    exposed_per_request_us all requests cost the same.
    InvalidInput: the file cannot be read, or a value is invalid.
    """
    columns = session.graph.known("host_overheads").columns
    catalogue_rows = session.table("host_overheads").to_pylist()
    newest = {row["engine"]: row for row in catalogue_rows}
    numbers = [column.name for column in columns if column.type in ("float64", "bool")]
    figures = set(numbers) - {SPREAD, "compiled"}
    texts = {column.name for column in columns if column.type == "string"}
    rows = []
    for number, fields in enumerate(read_rows(path, texts, "--host-overheads", "row of host overheads"), start=1):
        engine = fields.get("engine")
        if engine is None:
            raise InvalidInput(f"{path}, row {number}: the field engine is missing; add it.")
        if str(engine) not in newest:
            raise unknown("engine", str(engine), newest, f"It is in {path}.")
        unknown_columns = [name for name in fields if name not in {column.name for column in columns}]
        if unknown_columns:
            raise unknown("column of host_overheads", unknown_columns[0], [column.name for column in columns])
        if "request_us" in fields:
            fields = {"per_prompt_token_us": 0.0, "per_output_token_us": 0.0, "chat_us": 0.0} | fields
        if "per_request_us" in fields:
            fields = {"per_active_us": 0.0} | fields
        if "exposed_per_request_us" in fields:
            fields = {"exposed_requests_half": None} | fields
        defaults = {"from_version": "0", "source": f"given in {path.name}", "assumed": None, SPREAD: None}
        if figures <= fields.keys():
            # measured on the CPU that serves: not scaled to another one
            defaults["compiled"] = True
        else:
            defaults |= {name: newest[engine][name] for name in ("assumed", SPREAD)}
        rows.append({**newest[engine], **defaults, **fields})
    other_engines = [row for row in catalogue_rows if row["engine"] not in {row["engine"] for row in rows}]
    session.give("host_overheads", other_engines + rows)
