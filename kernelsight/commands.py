"""What several verbs share: the session they work in, and the flags that name a deployment."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput
from kernelsight.plan import DEPLOYMENT_FLAGS, as_table

if TYPE_CHECKING:
    from kernelsight.session import Session

# what a hypothetical GPU need not state
UNSTATED = (
    "compute_capability",
    "bf16_flops_per_s",
    "fp8_flops_per_s",
    "fp4_flops_per_s",
    "int8_flops_per_s",
    "link_fabric",
    "measured_as",
    "estimated",
)


def open_session(arguments: Any) -> Session:
    """Return a session in memory, with the GPUs of --gpus beside the catalogue's and the kernel model of --pack."""
    from kernelsight.session import connect
    from kernelsight.write.output import progress

    session = connect()
    session.progress = progress
    if getattr(arguments, "gpus", None):
        extend_gpus(session, Path(arguments.gpus))
    if getattr(arguments, "pack", None):
        from kernelsight.eta.pack import read_pack, with_assumed

        session.give("eta_coefficients", with_assumed(read_pack(Path(arguments.pack))))
    return session


def deployment_flags(arguments: Any) -> dict[str, Any]:
    """Return the deployment's flags of parsed arguments, those left open out."""
    names = [*DEPLOYMENT_FLAGS, "enable_expert_parallel"]
    return {name: value for name in names if (value := getattr(arguments, name, None)) is not None}


def extend_gpus(session: Session, path: Path) -> None:
    """Add the GPUs of a CSV or JSON file to the catalogue's.

    A row that has the name of a catalogue GPU, or names one as ``like``, takes from it what it does not state, and
    its fit (``measured_as``). InvalidInput: the file cannot be read, or a new GPU lacks columns (all of them listed).
    """
    known = {row["gpu"]: row for row in session.table("gpus").to_pylist()}
    columns = [column.name for column in session.graph.known("gpus").columns]
    texts = {column.name for column in session.graph.known("gpus").columns if column.type == "string"} | {"like"}
    rows = []
    for number, stated in enumerate(_read_rows(path, texts), start=1):
        name = stated.get("gpu")
        if not name:
            raise InvalidInput(f"{path}, GPU {number}: it has no name; give the field gpu.")
        if not isinstance(name, str):
            raise InvalidInput(f"{path}, GPU {number}: its name is {name!r}; give a text.")
        like = stated.pop("like", None)
        if like is not None and str(like) not in known:
            from kernelsight.errors import unknown

            raise unknown("GPU", str(like), known, f"{path} names it as like.")
        base = known.get(like or name, {})
        plain = {"name": name, "vendor": "nvidia", "architecture": "hypothetical", "source": f"given in {path.name}"}
        row = {**({} if base else plain), **base, **stated, "source": stated.get("source", f"given in {path.name}")}
        row["measured_as"] = stated.get("measured_as", base.get("measured_as") or base.get("gpu"))
        if row["measured_as"] is not None and str(row["measured_as"]) not in {name, *known}:
            from kernelsight.errors import unknown

            raise unknown("GPU", str(row["measured_as"]), known, f"{path} names it as measured_as.")
        missing = [column for column in columns if row.get(column) is None and column not in UNSTATED]
        if missing:
            raise InvalidInput(
                f"{path}, GPU {name}: the fields {', '.join(missing)} are missing; state them, or name a "
                "catalogue GPU as like."
            )
        _refuse_implausible(row, path)
        rows.append(row)
    session.extend("gpus", as_table(session, "gpus", _without_strange(rows, columns, path)))


def _refuse_implausible(row: dict[str, Any], path: Path) -> None:
    """Refuse rates and sizes below one byte, operation or cycle (a second): they would overflow every latency."""
    for name, value in row.items():
        rate = name.endswith(("_per_s", "_hz", "_bytes")) and isinstance(value, int | float)
        if rate and value < 1:
            raise InvalidInput(f"{path}, GPU {row['gpu']}: {name} is {value}; give at least 1.")


def _without_strange(rows: list[dict[str, Any]], columns: list[str], path: Path) -> list[dict[str, Any]]:
    from kernelsight.errors import unknown

    for row in rows:
        for name in row:
            if name not in columns:
                raise unknown("column of gpus", name, columns, f"{path} states it.")
    return rows


def _read_rows(path: Path, texts: set[str]) -> list[dict[str, Any]]:
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}; --gpus takes a CSV or JSON file of GPUs.")
    if path.suffix.lower() == ".json":
        try:
            found = json.loads(path.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{path} is no JSON: {error}.") from None
        rows = found if isinstance(found, list) else [found]
        if not rows or not all(isinstance(row, dict) for row in rows):
            raise InvalidInput(
                f"{path} holds no GPU; give an object, or an array of objects, with the columns of gpus."
            )
        return [dict(row) for row in rows]
    if path.suffix.lower() != ".csv":
        raise InvalidInput(f"{path} ends in {path.suffix or 'nothing'!r}; --gpus takes .csv or .json.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [line for line in csv.reader(file) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path} is no CSV: {error}.") from None
    if len(lines) < 2:
        raise InvalidInput(f"{path} holds no GPU; give a header and a row for each.")
    header = lines[0]
    if len(set(header)) < len(header):
        raise InvalidInput(f"{path} has a column twice: {', '.join(header)}; keep one of each.")
    for number, line in enumerate(lines[1:], start=1):
        if len(line) != len(header):
            raise InvalidInput(
                f"{path}, GPU {number}: {len(line)} fields under {len(header)} columns; leave a field empty where "
                "nothing is stated."
            )
    return [
        {name: cell if name in texts else _number(cell) for name, cell in zip(header, line, strict=True) if cell}
        for line in lines[1:]
    ]


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
