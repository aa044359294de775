"""Prices of GPUs, US dollars an hour of one GPU: read from text, a mapping or a file, and added to a grid."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput
from kernelsight.files.row_files import read_rows
from kernelsight.scenario.scenario_rows import resolve_gpu

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

PRICE_NAMES = ("price_per_gpu_hour", "price", "usd_per_hour")


def read_prices(session: Session, source: str | Path | Mapping[str, Any] | None) -> dict[str, float]:
    """Return prices by the catalogue's GPU names.

    ``source``: ``g1=2.2,g2=4``, a mapping, or a CSV or JSON file with the columns gpu and price_per_gpu_hour (or one
    JSON object of names and prices). UnknownName: an unknown GPU; InvalidInput: no price, or two for one GPU.
    """
    if source is None:
        return {}
    pairs = list(source.items()) if isinstance(source, Mapping) else _pairs(str(source))
    if not pairs:
        raise InvalidInput("--prices has no price; give GPU=PRICE in dollars an hour, such as h100_sxm=2.2.")
    prices: dict[str, float] = {}
    for name, value in pairs:
        gpu, price = resolve_gpu(session, str(name)), _price(name, value)
        if gpu in prices:
            raise InvalidInput(f"--prices has {gpu} twice; give each GPU one price.")
        prices[gpu] = price
    return prices


def priced(session: Session, rows: Sequence[Mapping[str, Any]], prices: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return rows of a grid with the price of their GPU; InvalidInput: a row has its own price, or its GPU has none."""
    priced_rows = []
    for number, row in enumerate(rows, start=1):
        if row.get("price_per_gpu_hour") is not None:
            raise InvalidInput(f"row {number} of the grid has a price, and so has --prices; keep one of them.")
        gpu = resolve_gpu(session, str(row["gpu"])) if row.get("gpu") is not None else None
        prefill_gpu = row.get("prefill_gpu")
        if gpu is not None and gpu not in prices:
            raise no_price([gpu])
        if prefill_gpu is not None and prices.get(resolve_gpu(session, str(prefill_gpu))) != prices.get(gpu):
            raise InvalidInput(f"row {number} of the grid has prefill replicas on GPUs of another price; use `size`.")
        priced_rows.append({**row, "price_per_gpu_hour": prices[gpu]} if gpu is not None else dict(row))
    return priced_rows


def no_price(gpus: Sequence[str]) -> InvalidInput:
    """Build the error for GPUs without a price while others have one."""
    add = ",".join(f"{gpu}=PRICE" for gpu in gpus)
    return InvalidInput(f"--prices has no price for {', '.join(gpus)}; add {add}, or leave --prices out.")


def _pairs(text: str) -> list[tuple[str, Any]]:
    """Return (GPU, price) pairs of text ``g1=2.2,g2=4``, or of the file that it names."""
    path = Path(text)
    if not os.path.exists(path) and ("=" in text or path.suffix.lower() not in (".csv", ".json")):
        words = [word.strip() for word in text.split(",") if word.strip()]
        for word in words:
            if "=" not in word:
                raise InvalidInput(f"--prices {word!r} is not GPU=PRICE; give dollars an hour, such as h100_sxm=2.2.")
        return [word.partition("=")[::2] for word in words]
    rows = read_rows(path, {"gpu"}, "--prices", "price")
    if (
        len(rows) == 1
        and "gpu" not in rows[0]
        and not any(isinstance(value, list | dict) for value in rows[0].values())
    ):
        return list(rows[0].items())
    name = next((name for name in PRICE_NAMES if name in rows[0]), None)
    if name is None or any(not {"gpu", name} <= set(row) for row in rows):
        raise InvalidInput(f"{path} lacks the columns gpu and price_per_gpu_hour; give both in every row.")
    return [(row["gpu"], row[name]) for row in rows]


def _price(gpu: str, value: Any) -> float:
    try:
        price = float(value)
    except (TypeError, ValueError):
        price = math.nan
    if isinstance(value, bool) or not 0.0 < price < math.inf:
        raise InvalidInput(f"the price of {gpu} is {value!r}; give dollars an hour for one GPU, above 0.")
    return price
