"""The correction of one measured GPU: fitted to what its expression leaves of its sweep, applied to rows of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.fitting.correction import (
    MOST_STEPS,
    TEACHERS,
    WIDE,
    Fit,
    Student,
    as_stored,
    correction_rows,
    fit_correction,
)
from kernelsight.fitting.expressions import predict_family, read_rows
from kernelsight.fitting.nearby import MOST_POINTS, fit_nearby
from kernelsight.fitting.pack_rows import correction_arrays, nearby_rows
from kernelsight.fitting.splits import LAYERS, site_names
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.features import features, names_of
from kernelsight.kernels.latency_model import Form
from kernelsight.kernels.nearby import Nearby, nearby_delta, nearby_of
from kernelsight.kernels.network import correction, network_of, scaled
from kernelsight.kernels.resolve import family_facts

# rows of other GPUs that show how the remainder varies with the shape: more teach nothing new
OTHER_ROWS = 30_000
OWN_ROWS = 60_000
# products are asked for by the million: a network of a third of the work, trained four times as long, costs their
# median error on L40S and H100 0.1 points; attention would lose 0.3 to 0.5
STUDENTS = {"gemm": Student((40, 20), 48_000)}
# of so few rows a network is better trusted in part, and the points with the rest: the median error left at other
# sites fell by 3 to 10 % of itself in six cells of 120 to 335 rows (H100, H200, L40S), and rose in one of 540
FEW_ROWS, SHARE_OF_FEW = 400, 0.75
# layers from which on one of them is held out at a time: few as they are, rows of one layer say nothing of another
FEWEST_LAYERS = 2


class Measured(NamedTuple):
    """A fitted correction, and of each row behind it: the expression's latency, what that leaves, and the kernel."""

    fit: Fit
    nearby: dict[str, Nearby]
    latency_us: np.ndarray
    log_ratio: np.ndarray
    kernels: list[str]


def fit_measured(
    family: str,
    form: Form,
    table: pa.Table,
    target: str,
    coefficients: pa.Table,
    implementations: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    effort: float = MOST_STEPS,
) -> Measured:
    """Fit the correction of ``target`` to training rows of it and of others, beside the constants that they gave.

    ``effort``: see :func:`kernelsight.fitting.correction.fit_correction`.
    """
    own = np.asarray(pc.equal(table["gpu"], target))
    kept = np.sort(np.concatenate([_spaced(np.flatnonzero(own), OWN_ROWS), _spaced(np.flatnonzero(~own), OTHER_ROWS)]))
    table = table.take(pa.array(kept))
    base = predict_family(family, form, table, coefficients, implementations, gpus, fabrics)
    log_ratio = np.log(table["latency_us"].to_numpy() / base)
    kernels = kernels_of(table)
    seen = features_of(family, form, table, implementations, gpus, fabrics)
    fit = fit_correction(
        seen,
        log_ratio,
        kernels,
        table["gpu"].to_pylist(),
        target,
        # what is asked for is a model without measurements, not another split of one that has them
        site_names(family, table, whole_layers=True)[1],
        _matter(family),
        effort,
        STUDENTS.get(family, WIDE),
        FEWEST_LAYERS if family in LAYERS else 2 * TEACHERS,
    )
    mine = np.flatnonzero(np.asarray(pc.equal(table["gpu"], target)))
    kernels = [kernels[row] for row in mine]
    nearby = {}
    if mine.size <= FEW_ROWS:
        fit = fit._replace(network=fit.network._replace(strength=SHARE_OF_FEW * fit.network.strength))
    if mine.size <= MOST_POINTS:
        network = as_stored(fit.network)
        residual = log_ratio[mine] - correction(np, seen[mine], nodes_at(kernels, fit.nodes), network)
        nearby = fit_nearby(scaled(seen[mine], network), residual, kernels)
    return Measured(fit, nearby, base[mine], log_ratio[mine], kernels)


def correct(
    family: str,
    form: Form,
    table: pa.Table,
    latency_us: np.ndarray,
    rows: list[dict],
    implementations: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
) -> np.ndarray:
    """Return ``latency_us`` of the table's rows, all of one measured GPU, with the correction that ``rows`` hold."""
    network, nodes = network_of(row for row in rows if row["part"] == "correction")
    nearby = nearby_of([row for row in rows if row["part"] == "nearby"])
    kernels = kernels_of(table)
    node = nodes_at(kernels, nodes)
    corrected_us = np.empty(latency_us.size)
    seen = features_of(family, form, table, implementations, gpus, fabrics)
    for first in range(0, corrected_us.size, 65_536):
        block = slice(first, first + 65_536)
        corrected_us[block] = latency_us[block] * np.exp(correction(np, seen[block], node[block], network))
    return corrected_us * np.exp(nearby_delta(scaled(seen, network), kernels, nearby))


def rows_of(family: str, target: str, own: Measured) -> list[dict]:
    """Return the correction, and the points of a small sweep, as ``eta_coefficients`` rows."""
    source = f"fitted to the sweep of {target}"
    return [
        *correction_arrays(correction_rows(family, target, own.fit, source)),
        *nearby_rows(family, target, own.nearby, source),
    ]


def nodes_at(kernels: Sequence[str], nodes: Sequence[str]) -> np.ndarray:
    """Return the position of each kernel among the nodes of a network, -1 where the sweep did not run it."""
    node_number = {node: number for number, node in enumerate(nodes)}
    return np.array([node_number.get(kernel, -1) for kernel in kernels], dtype=int)


def features_of(
    family: str, form: Form, table: pa.Table, implementations: pa.Table, gpus: pa.Table, fabrics: pa.Table
) -> np.ndarray:
    """Return (rows, F): what a correction sees of training rows."""
    rows = read_rows(form, table, family_facts(family, implementations, gpus), gpus, fabrics)
    return features(np, family, form.view(np, rows.call), rows.gpu)


def kernels_of(table: pa.Table) -> list[str]:
    """Return engine|implementation|dtype of each row: what has a bias of its own."""
    names = (table[name].to_pylist() for name in ("engine", "implementation", "dtype"))
    return ["|".join(words) for words in zip(*names, strict=True)]


def has_correction(family: str) -> bool:
    """Tell whether a correction knows what to see of a family."""
    return bool(FAMILIES[family].features.sizes)


def _matter(family: str) -> np.ndarray:
    """Sizes and flags tell how far a call lies from a sweep; how they round to tiles and waves does not."""
    seen = FAMILIES[family].features
    counted = len(seen.sizes) + len(seen.flags)
    return (np.arange(len(names_of(family))) < counted).astype(float)


def _spaced(rows: np.ndarray, most: int) -> np.ndarray:
    """At most ``most`` of the rows, evenly spaced in their order (that of their key)."""
    return rows if rows.size <= most else rows[np.linspace(0, rows.size - 1, most).round().astype(int)]
