"""What an engine's version changes in a kernel's time: factors of measured versions on a fit to all of them.

Rows of part version hold, by kernel, GPU and version, the logarithm of measured / fitted at KNOTS_US of latency; with
``log_sd`` where the GPU's sweep lacks the version, and those of its generation foretell it. A version that no row names
takes the nearest earlier one. Rows without a GPU hold what GPUs have in common, for those whose sweeps lack the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.caches.memory_cache import memoised
from kernelsight.kernels.kernel_constants import rows_of_part

# latencies at which a version's factor is known; between them it is interpolated in the logarithm, beyond them constant
KNOTS_US = (10.0, 50.0, 250.0)
# of a 90 % interval of a normal distribution, in standard deviations
HALF_OF_90 = 1.645
# standard deviations of the logarithm of a move that GPUs of a generation foretell: of a small one, and of a large one
# as a share of it (benches/versions.py, hidden versions)
FORETOLD_SD, FORETOLD_SHARE = 0.023, 0.29
NEWEST = (10**9,)


class VersionAnswer(NamedTuple):
    """The factor on a kernel's latency in an engine version, and what it rests on."""

    logs: np.ndarray  # (KNOTS_US,) natural logarithm of the factor
    version: str | None  # the version of the GPU's sweep that answers; None: no sweep names versions of the kernel
    measured: bool  # whether that is the version in question
    log_sd: float  # what versions that were not measured add to the uncertainty; 0 where measured


UNVERSIONED = VersionAnswer(np.zeros(len(KNOTS_US)), None, True, 0.0)
_Known = dict[tuple[int, ...], tuple[str, np.ndarray, float | None]]  # by version_key: version, logs, log_sd


def version_key(version: str | None) -> tuple[int, ...]:
    """Return the numbers by which versions are sorted, as ``version_numbers`` in SQL; no release: the newest.

    >>> sorted(["0.10.1", "0.9.2", "0.9.2rc1", "nightly", "0.24"], key=version_key)
    ['0.9.2rc1', '0.9.2', '0.10.1', '0.24', 'nightly']
    >>> version_key("0.24") == version_key("v0.24.0"), version_key(None) == NEWEST
    (True, True)
    """
    if version is None or not re.match(r"v?\d", version):
        return NEWEST
    release, candidate, rest = version.partition("+")[0].partition("rc")
    numbers = [int(word) for word in re.findall(r"\d+", release)]
    numbers += [0] * (3 - len(numbers))
    # a release, which ends in 0, comes after its candidates
    return (*numbers, *((-1, *map(int, re.findall(r"\d+", rest))) if candidate else ()), 0)


def version_at(
    coefficients: pa.Table, family: str, kernel: Mapping[str, str], gpu: str, asked: str | None
) -> VersionAnswer:
    """Return what the version ``asked`` (None: the newest) of a kernel's engine changes on a GPU.

    ``coefficients``: ``eta_coefficients``; ``kernel``: engine, implementation and dtype.
    """
    known, drift = memoised((coefficients,), ("versions", family), lambda: _known_versions(coefficients, family))
    name = (kernel["engine"], kernel["implementation"], kernel["dtype"])
    own = known.get((*name, gpu), {})
    answers, key = own or known.get((*name, ""), {}), version_key(asked)
    if not answers:
        return UNVERSIONED
    nearest = at_or_before(answers, key)
    _, logs, log_sd = answers[nearest]
    swept = {at: version for at, (version, _, moved_sd) in answers.items() if moved_sd is None}
    sd = (log_sd or 0.0) if asked is None or key == nearest else drift
    return VersionAnswer(logs, swept[at_or_before(swept, nearest)], bool(own) and not sd, sd)


def version_factor(latency_us: np.ndarray, logs: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Return the factor of versions on latencies in microseconds; ``logs``: (versions, KNOTS_US), ``row``: of each."""
    at = np.interp(np.log(np.maximum(latency_us, 1e-9)), np.log(KNOTS_US), np.arange(float(len(KNOTS_US))))
    below = np.minimum(at.astype(int), len(KNOTS_US) - 2)
    low, high = logs[row, below], logs[row, below + 1]
    return np.exp(low + (high - low) * (at - below))


def at_or_before(versions: Iterable[tuple[int, ...]], key: tuple[int, ...]) -> tuple[int, ...]:
    """Return the newest of versions, by ``version_key``, up to ``key``; the oldest where all are newer."""
    return max((name for name in versions if name <= key), default=min(versions))


def _known_versions(coefficients: pa.Table, family: str) -> tuple[dict[tuple[str, ...], _Known], float]:
    """Return the versions of each kernel by (engine, implementation, dtype, GPU or ""), and the drift of a version."""
    known: dict[tuple[str, ...], _Known] = {}
    drift = 0.0
    for row in rows_of_part(coefficients, family, "version").to_pylist():
        if row["coefficient"] == "drift":
            drift = row["log_sd"]
            continue
        kernel = (row["engine"], row["implementation"], row["dtype"], row["gpu"] or "")
        answer = row["engine_version"], np.array(row["array"]), row["log_sd"]
        known.setdefault(kernel, {})[version_key(row["engine_version"])] = answer
    return known, drift
