"""Launch signatures: deployments that launch the same kernels with the same shapes are lowered once, for all GPUs.

Model, parallel sizes and engine decide which kernels a step launches, and their shapes; the GPU decides their latency.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.kernels.families import launched

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader

# columns of deployment_settings that a call's time rests on, and that its call table lacks
PRICED_BY = ("tier", "engine_version", "attention_backend", "moe_backend", "latent_backend", "power_limit_w")


@reads("family_calls")
@produces("launch_signatures")
def signatures_of(
    deployment_settings: pa.Table,
    step_shapes: pa.Table,
    sharded_layers: pa.Table,
    layer_weights: pa.Table,
    layer_launches: pa.Table,
    gpu_formats: pa.Table,
    *,
    read: Reader,
) -> pa.Table:
    """Launch signatures: deployments that launch the same kernels at the same step shapes share one.

    A setting that no lowering query names changes no call. Where a call table is given, every deployment has a
    signature of its own.
    """
    names = step_shapes["deployment_id"].unique()
    if any(map(read.is_given, read.tables)):
        contents = pa.nulls(len(names), pa.string())
        return pa.table({"deployment_id": names, "signature_id": names, "content": contents})
    words = set(re.findall(r"\w+", " ".join(map(read.query_of, read.tables)))) - {"deployment_id", "gpu"}
    layers = (sharded_layers, layer_weights, layer_launches.filter(layer_launches["apart"]))
    launch_keys = _launch_keys(deployment_settings, layers, gpu_formats, {*words, *PRICED_BY})
    runs = pc.run_end_encode(step_shapes["deployment_id"].combine_chunks())
    stops = runs.run_ends.to_numpy()
    columns = [step_shapes[name].combine_chunks() for name in ("part", "x", "y", "step_shape_id")]
    parts = columns[0].dictionary_encode()
    columns[0] = parts.indices
    shape_columns = [column.to_numpy() for column in columns]
    firsts: dict[Any, str] = {}
    names = runs.values.to_pylist()
    signatures = [
        firsts.setdefault((launch_keys[name], *(values[start:stop].tobytes() for values in shape_columns)), name)
        for name, start, stop in zip(names, [0, *stops], stops, strict=False)
    ]
    part_names = parts.dictionary.to_pylist()
    contents = {name: hashlib.sha256(repr((part_names, key)).encode()).hexdigest() for key, name in firsts.items()}
    columns = (names, signatures, [contents[signature] for signature in signatures])
    return pa.table(
        {
            name: pa.array(column, pa.string())
            for name, column in zip(("deployment_id", "signature_id", "content"), columns, strict=True)
        }
    )


def launched_families(settings: pa.Table, sharded_layers: pa.Table, layer_weights: pa.Table) -> list[str]:
    """Return the kernel families that a deployment may launch: planning the query of any other would cost 10 ms."""
    traits = {*sharded_layers["attention"].to_pylist(), *sharded_layers["ffn"].to_pylist()}
    traits |= {size for size in ("tp", "pp", "dp") if (pc.max(settings[size]).as_py() or 1) > 1}
    if pc.any(layer_weights["quantizes_activations"]).as_py():
        traits.add("quantizes_activations")
    if pc.any(pc.ends_with(layer_weights["name"], "_stream_proj")).as_py():
        traits.add("residual_streams")
    if (pc.max(settings["max_loras"]).as_py() or 0) > 0:
        traits.add("adapters")
    return launched(traits)


def _launch_keys(
    settings: pa.Table, tables: Sequence[pa.Table], gpu_formats: pa.Table, read: set[str]
) -> dict[str, tuple]:
    """Return by deployment the rows that its calls follow from and are priced by, without its GPU and step shapes.

    ``tables``: of layers. ``read``: columns of ``deployment_settings``, and tables, that lowering queries name.
    """
    chosen = settings.select([name for name in settings.column_names if name in read])
    formats = _rows_by(gpu_formats, "gpu") if "gpu_formats" in read else {}
    layers = [_rows_by(table, "deployment_id", {"gpu"}) for table in tables]
    rows = zip(settings["deployment_id"].to_pylist(), settings["gpu"].to_pylist(), chosen.to_pylist(), strict=True)
    return {
        name: (tuple(row.values()), formats.get(gpu), *(rows_of.get(name) for rows_of in layers))
        for name, gpu, row in rows
    }


def _rows_by(table: pa.Table, key: str, without: set[str] = frozenset()) -> dict[str, tuple]:
    """Return a table's rows, as tuples without the columns ``key`` and ``without``, grouped by ``key``."""
    grouped_rows: dict[str, list[tuple]] = {}
    names = [name for name in table.column_names if name not in {key, *without}]
    for group, *row in zip(*(table[name].to_pylist() for name in (key, *names)), strict=True):
        grouped_rows.setdefault(group, []).append(tuple(row))
    return {group: tuple(rows) for group, rows in grouped_rows.items()}
