"""Which deployments launch the same kernels: they are lowered once, and each GPU prices their calls.

Which kernels a step launches, and their sizes, follow from the model, how it is split, and the engine; how long they
take, from the GPU.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.kernels.families import launched

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader

# settings that a call's time rests on without being a column of its calls
PRICED_BY = ("tier", "moe_backend", "power_limit_w")


def signatures_of(
    settings: pa.Table,
    step_shapes: pa.Table,
    sharded_layers: pa.Table,
    layer_weights: pa.Table,
    gpu_formats: pa.Table,
    read: Reader,
) -> pa.Table:
    """Return ``launch_signatures`` of the deployments that have step shapes.

    A setting that no lowering query names changes no call. Where calls were given, each deployment stands for itself.
    """
    names = step_shapes["deployment_id"].unique()
    if any(map(read.is_given, read.tables)):
        contents = pa.nulls(len(names), pa.string())
        return pa.table({"deployment_id": names, "signature_id": names, "content": contents})
    words = set(re.findall(r"\w+", " ".join(map(read.query_of, read.tables)))) - {"deployment_id", "gpu"}
    price_keys = _stated(settings, sharded_layers, layer_weights, gpu_formats, {*words, *PRICED_BY})
    runs = pc.run_end_encode(step_shapes["deployment_id"].combine_chunks())
    stops = runs.run_ends.to_numpy()
    columns = [step_shapes[name].combine_chunks() for name in ("part", "x", "y", "step_shape_id")]
    parts = columns[0].dictionary_encode()
    columns[0] = parts.indices
    knots = [column.to_numpy() for column in columns]
    firsts: dict[Any, str] = {}
    names = runs.values.to_pylist()
    signatures = [
        firsts.setdefault((price_keys[name], *(values[start:stop].tobytes() for values in knots)), name)
        for name, start, stop in zip(names, [0, *stops], stops, strict=False)
    ]
    spelled = parts.dictionary.to_pylist()
    contents = {name: hashlib.sha256(repr((spelled, own)).encode()).hexdigest() for own, name in firsts.items()}
    columns = (names, signatures, [contents[signature] for signature in signatures])
    return pa.table(
        {
            name: pa.array(column, pa.string())
            for name, column in zip(("deployment_id", "signature_id", "content"), columns, strict=True)
        }
    )


def launched_families(settings: pa.Table, sharded_layers: pa.Table, layer_weights: pa.Table) -> list[str]:
    """Return the families that some deployment launches: a query that finds nothing takes 10 ms to plan."""
    traits = {*sharded_layers["attention"].to_pylist(), *sharded_layers["ffn"].to_pylist()}
    traits |= {size for size in ("tp", "pp", "dp") if (pc.max(settings[size]).as_py() or 1) > 1}
    if pc.any(layer_weights["quantizes_activations"]).as_py():
        traits.add("quantizes_activations")
    return launched(traits)


def _stated(
    settings: pa.Table, sharded_layers: pa.Table, layer_weights: pa.Table, gpu_formats: pa.Table, read: set[str]
) -> dict[str, tuple]:
    """Return by deployment all that its calls are made of and priced by, but for its GPU and its knots."""
    chosen = settings.select([name for name in settings.column_names if name in read])
    formats = _rows_by(gpu_formats, "gpu") if "gpu_formats" in read else {}
    layers = [_rows_by(table, "deployment_id", {"gpu"}) for table in (sharded_layers, layer_weights)]
    rows = zip(settings["deployment_id"].to_pylist(), settings["gpu"].to_pylist(), chosen.to_pylist(), strict=True)
    return {
        name: (tuple(row.values()), formats.get(gpu), *(each.get(name) for each in layers)) for name, gpu, row in rows
    }


def _rows_by(table: pa.Table, key: str, without: set[str] = frozenset()) -> dict[str, tuple]:
    """Return the other columns' rows by a column that names them."""
    rows_of_owner: dict[str, list[tuple]] = {}
    names = [name for name in table.column_names if name not in {key, *without}]
    for owner, *row in zip(*(table[name].to_pylist() for name in (key, *names)), strict=True):
        rows_of_owner.setdefault(owner, []).append(tuple(row))
    return {owner: tuple(rows) for owner, rows in rows_of_owner.items()}
