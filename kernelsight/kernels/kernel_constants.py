"""Resolves the constants of a kernel on a GPU from a pack: its own nodes, those of its lineage, or of sibling GPUs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.memory_cache import memoised
from kernelsight.catalog.tables import facts as catalogue
from kernelsight.kernels.coefficients import PATH, Coefficient, Node, NodeValues, log_values_by_node, values_along
from kernelsight.kernels.families import COMMUNICATION
from kernelsight.kernels.hardware import GDDR
from kernelsight.kernels.pack import nodes_of

UNKNOWN = "unknown"
GENERATIONS = {"8.9": "ada", "8": "ampere", "9": "hopper", "10": "sm_100", "12": "sm_120"}
GENERATIONS |= {"gfx908": "cdna1", "gfx90a": "cdna2", "gfx942": "cdna3", "gfx950": "cdna4"}
# rows of a pack without a vendor are fitted to this one's GPUs; their family constants serve vendors without a fit too
FIRST_VENDOR = "nvidia"
# gpus.kind of what launches each kernel, and of what keeps its weights on the chip
LAUNCHING, ON_CHIP = "gpu", "on_chip_accelerator"


def generation(compute_capability: str | None) -> str | None:
    """Return the generation of a GPU, or None: GPUs that share instructions, left out as one by a cross-generation fit.

    >>> generation("8.9"), generation("10.3"), generation("gfx942"), generation("6.0")
    ('ada', 'sm_100', 'cdna3', None)
    """
    text = compute_capability or ""
    return GENERATIONS.get(text) or GENERATIONS.get(text.partition(".")[0])


class Facts(NamedTuple):
    """Facts of one family from ``kernel_implementations``, by implementation, and from ``gpus``, by GPU."""

    lineage: dict[str, str]
    structure: dict[tuple[str, str], float]  # (implementation, coefficient): value of a fixed coefficient
    inherited: dict[tuple[str, str], float]  # (lineage, coefficient): value for kernels that do not state their own
    generation: dict[str, str | None]
    capability: dict[str, float]  # compute capability, 0 where it is no number
    design: dict[str, bool]  # whether memory is HBM; for collectives, whether the link is PCIe: siblings agree in it
    vendor: dict[str, str | None]  # None: the first vendor, as in packs
    kind: dict[str, str]  # gpus.kind


def family_facts(family: str, implementations: pa.Table, gpus: pa.Table) -> Facts:
    """Return the facts of a family from ``kernel_implementations`` and ``gpus``."""
    return memoised((implementations, gpus), family, lambda: _family_facts(family, implementations, gpus))


def _family_facts(family: str, implementations: pa.Table, gpus: pa.Table) -> Facts:
    rows = implementations.filter(pc.equal(implementations["family"], family)).to_pylist()
    inherited: dict[tuple[str, str], float] = {}
    for row in rows:
        inherited.setdefault((row["lineage"], row["coefficient"]), row["value"])
    names, texts = gpus["gpu"].to_pylist(), gpus["compute_capability"].to_pylist()
    return Facts(
        {row["implementation"]: row["lineage"] for row in rows},
        {(row["implementation"], row["coefficient"]): row["value"] for row in rows},
        inherited,
        {name: generation(text) for name, text in zip(names, texts, strict=True)},
        {name: capability_number(text) for name, text in zip(names, texts, strict=True)},
        _over_pcie(gpus)
        if family in COMMUNICATION
        else {name: text not in GDDR for name, text in zip(names, texts, strict=True)},
        vendors_of(gpus),
        dict(zip(names, pc.fill_null(gpus["kind"], LAUNCHING).to_pylist(), strict=True)),
    )


def vendors_of(gpus: pa.Table) -> dict[str, str | None]:
    """Return the vendor of each GPU as packs name it: None for the first one."""
    pairs = zip(gpus["gpu"].to_pylist(), gpus["vendor"].to_pylist(), strict=True)
    return {gpu: None if vendor == FIRST_VENDOR else vendor for gpu, vendor in pairs}


def _over_pcie(gpus: pa.Table) -> dict[str, bool]:
    """Return by GPU whether messages go over PCIe: it has no link, or its link is PCIe."""
    links = gpus["link_fabric"].to_pylist()
    return {gpu: not link or link.startswith("pcie") for gpu, link in zip(gpus["gpu"].to_pylist(), links, strict=True)}


def relinked(family: str, gpus: pa.Table) -> Callable[[str, str], bool]:
    """Return ``test(gpu, fit)``: whether one of the two has PCIe and the other a link, in a family of collectives.

    Then no sweep of ``fit``, the GPU whose fit ``gpu`` takes, says how long the messages of ``gpu`` take.
    """
    if family not in COMMUNICATION:
        return lambda gpu, fit: False
    over_pcie, catalogue_over_pcie = _over_pcie(gpus), _over_pcie(catalogue("gpus"))
    return lambda gpu, fit: over_pcie.get(gpu) != catalogue_over_pcie.get(fit, over_pcie.get(fit))


def lineage_of(facts: Facts, implementation: str) -> str:
    """Return the lineage of a kernel; one without a stated lineage is a lineage of its own."""
    return facts.lineage.get(implementation, implementation)


def structure_at(
    facts: Facts, coefficients: Sequence[Coefficient], paths: Sequence[Mapping[str, str]]
) -> dict[str, np.ndarray]:
    """Return the fixed coefficients at each path, (paths,): the implementation's, its lineage's, or the start."""
    return {
        declared.name: np.array(
            [
                facts.structure.get(
                    (path["implementation"], declared.name),
                    facts.inherited.get((path["lineage"], declared.name), declared.start),
                )
                for path in paths
            ],
            dtype=float,
        )
        for declared in coefficients
        if declared.owner == "fixed"
    }


def constants_at(
    facts: Facts,
    rows: pa.Table,
    family: str,
    coefficients: Sequence[Coefficient],
    paths: Sequence[Mapping[str, str]],
    without: str | None = None,
    measured: bool = True,
    vendor: str | None = None,
) -> dict[str, np.ndarray]:
    """Return every coefficient at each path, (paths,), from ``eta_coefficients`` rows of one fit.

    ``without``: the generation that the fit left out, None: none; ``vendor``: whose fit, None: the first vendor's;
    ``measured``: whether factors of the path's own GPU count. Where they do not, or there are none, the mean factors of
    its :func:`siblings` do.
    """
    fitted = fitted_gpus(rows, family, without, vendor)
    node_sets: list[NodeValues] = []
    for gpu in (None, *sorted({path["gpu"] for path in paths})):
        stand_in = (gpu,) if gpu is None or (measured and gpu in fitted) else siblings(facts, gpu, fitted)
        key = ("nodes", family, without, vendor, gpu, stand_in)
        read = partial(_nodes, rows, family, without, vendor, gpu, stand_in)
        node_sets.append(memoised((rows,), key, lambda read=read: log_values_by_node(read())))
    return {**values_along(coefficients, node_sets, paths), **structure_at(facts, coefficients, paths)}


def siblings(facts: Facts, gpu: str, fitted: Collection[str]) -> tuple[str, ...]:
    """Return the other fitted GPUs of a GPU's generation with its design (``Facts.design``), in alphabetical order."""
    generation_of_gpu, design = facts.generation.get(gpu), facts.design.get(gpu)
    if generation_of_gpu is None:
        return ()
    others = (name for name in sorted(fitted) if name != gpu and facts.design.get(name) == design)
    return tuple(name for name in others if facts.generation.get(name) == generation_of_gpu)


def rows_of_part(rows: pa.Table, family: str, part: str) -> pa.Table:
    """Return the ``eta_coefficients`` rows of one family and part (constant, correction, interval, points, ...)."""

    def read() -> pa.Table:
        start, stop = _spans(rows).get((family, part), (0, 0))
        if start is not None:
            return rows.slice(start, stop - start)
        return rows.filter(pc.and_(pc.equal(rows["family"], family), pc.equal(rows["part"], part)))

    return memoised((rows,), (family, part), read)


def parts_there(rows: pa.Table) -> list[tuple[str, str]]:
    """Return each (family, part) of which ``eta_coefficients`` has rows."""
    return list(_spans(rows))


def _spans(rows: pa.Table) -> dict[tuple[str, str], tuple[int | None, int]]:
    """Return the first row of each (family, part) and the row after its last; (None, ...) where rows are scattered."""

    def read() -> dict[tuple[str, str], tuple[int | None, int]]:
        runs = [pc.run_end_encode(rows[name].combine_chunks()) for name in ("family", "part")]
        ends = [run.run_ends.to_numpy() for run in runs]
        stops = np.union1d(*ends)
        names = [run.values.to_pylist() for run in runs]
        span_of: dict[tuple[str, str], tuple[int | None, int]] = {}
        for start, stop in zip([0, *stops.tolist()], stops.tolist(), strict=False):
            family, part = (words[int(np.searchsorted(end, stop))] for words, end in zip(names, ends, strict=True))
            span_of[family, part] = (None if (family, part) in span_of else start, stop)
        return span_of

    return memoised((rows,), "spans of parts", read)


def _constants(rows: pa.Table, family: str, without: str | None, vendor: str | None) -> pa.Table:
    """Return the constants of a vendor's fit that left out the generation ``without``."""
    constant_rows = rows_of_part(rows, family, "constant")
    return constant_rows.filter(
        pc.and_(_equal(constant_rows["without"], without), _equal(constant_rows["vendor"], vendor))
    )


def fitted_gpus(rows: pa.Table, family: str, without: str | None, vendor: str | None = None) -> set[str]:
    """Return the GPUs that a vendor's fit of a family rests on; ``without``: the generation that it left out."""

    def read() -> set[str]:
        return set(pc.unique(_constants(rows, family, without, vendor)["gpu"]).to_pylist()) - {None}

    return memoised((rows,), ("fitted", family, without, vendor), read)


def _nodes(
    rows: pa.Table,
    family: str,
    without: str | None,
    vendor: str | None,
    gpu: str | None,
    sources: tuple[str | None, ...],
) -> list[Node]:
    """Return the nodes of a GPU (None: those of no GPU): geometric means over the GPUs ``sources`` that have them."""
    fit = memoised((rows,), ("fit", family, without, vendor), partial(_fit, rows, family, without, vendor))
    if gpu is None:
        return nodes_of(fit.filter(pc.is_null(fit["gpu"])))
    gpu_nodes = nodes_of(fit.filter(pc.is_in(fit["gpu"], pa.array(sources, pa.string()))))
    if sources == (gpu,):
        return gpu_nodes
    same_nodes: dict[tuple, list[Node]] = {}
    for node in gpu_nodes:
        # the last word of a path that names a GPU is the GPU
        same_nodes.setdefault((node.level, (*node.path[:-1], gpu), node.coefficient), []).append(node)
    return [
        Node(*name, sum(node.log_value for node in nodes) / len(nodes), sum(node.log_sd for node in nodes) / len(nodes))
        for name, nodes in same_nodes.items()
    ]


def _fit(rows: pa.Table, family: str, without: str | None, vendor: str | None) -> pa.Table:
    """Return the columns that nodes are read from, of a vendor's fit that left out ``without``."""
    return _constants(rows, family, without, vendor).select([*PATH, "level", "coefficient", "value", "log_sd"])


def _equal(column: pa.ChunkedArray, value: str | None) -> pa.ChunkedArray:
    """Return whether each value of a column equals ``value``; None equals null."""
    return pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)


def fitted_vendors(rows: pa.Table, family: str) -> set[str | None]:
    """Return the vendors that a family's constants were fitted to; None: the first vendor."""
    return memoised(
        (rows,),
        ("vendors", family),
        lambda: set(pc.unique(rows_of_part(rows, family, "constant")["vendor"]).to_pylist()),
    )


def capability_number(text: str | None) -> float:
    """Return a compute capability as a number that orders GPUs; 0 where it is none."""
    try:
        return float(text or "")
    except ValueError:
        return 0.0
