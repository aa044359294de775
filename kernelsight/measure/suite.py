"""Measurable kernels by family, and suites: JSON files of points to measure, as axes of sizes.

A point is one kernel, shape and cache state.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernelsight.dataflow.locations import folder
from kernelsight.errors import InvalidInput, unknown
from kernelsight.files.bounded_values import read_json
from kernelsight.files.budget import ROWS
from kernelsight.files.numbers import is_number
from kernelsight.files.own import own_rows
from kernelsight.measure.library_kernels import of_family


class Family(NamedTuple):
    """A row of ``measured_families.csv``; its first implementation and number format are the defaults of a suite.

    ``sizes``: required fields of ``sweep_points.shape``; ``defaults``: optional ones; ``caches``: states of the cache
    in which a suite measures it; ``others``: those that an entry has to name.
    """

    sizes: tuple[str, ...]
    implementations: tuple[str, ...]
    dtypes: tuple[str, ...]
    caches: tuple[str, ...]
    defaults: Mapping[str, int]
    others: tuple[str, ...]


def _row(row: Mapping[str, str]) -> Family:
    words = {name: tuple(row[name].split()) for name in Family._fields}
    defaults = {name: int(number) for name, number in (word.split("=") for word in words["defaults"])}
    return Family(**{**words, "defaults": defaults})


# cache state of a kernel that is measured warm once the GPU has worked for seconds: its power limit has taken hold
SUSTAINED = "sustained"
# our own kernels that no engine runs: for them no library is needed
PAGED, PAGED_PREFILL, PAGED_MLA, GROUPED = "paged_decode", "paged_prefill", "paged_mla_decode", "grouped_products"
OF_NO_ENGINE = frozenset({PAGED, PAGED_PREFILL, PAGED_MLA, GROUPED})
# kernels that read an 8-bit cache with 8-bit queries: their arithmetic is 8-bit too
EIGHT_BIT_QUERIES = frozenset({"flash_attention_3", "flash_attention_4"})
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_OWN = {row["family"]: _row(row) for row in own_rows(Path(__file__).resolve().parent / "measured_families.csv")}
# kernels that need no serving library, by family, and their formats
OWN = {name: family.implementations for name, family in _OWN.items()}
OWN_DTYPES = {name: family.dtypes for name, family in _OWN.items()}


def _with_libraries(name: str, family: Family) -> Family:
    """Return a family with the kernels of libraries, those first that stand in for an engine's."""
    kernels = of_family(name)
    implementations = [kernel.implementation for kernel in kernels]
    stand_in = set(family.implementations) - OF_NO_ENGINE
    ordered = (*family.implementations, *implementations) if stand_in else (*implementations, *family.implementations)
    dtypes = dict.fromkeys([*family.dtypes, *(dtype for kernel in kernels for dtype in kernel.formats)])
    return family._replace(implementations=ordered, dtypes=tuple(dtypes))


FAMILIES: dict[str, Family] = {name: _with_libraries(name, family) for name, family in _OWN.items()}


# (format, arithmetic) of labels that do not begin with their arithmetic
OTHER_FORMATS = {"nvfp4": ("nvfp4", "fp4"), "w4a16_mxfp4": ("mxfp4", "bf16")}


def number_formats(family: str, dtype: str, implementation: str = "") -> tuple[str | None, str | None]:
    """Return (format, math) of ``sweep_points``: the format of weight or cache, and the arithmetic."""
    if "/" in dtype:
        math, _, stored = dtype.partition("/")
        if implementation in EIGHT_BIT_QUERIES:
            return stored, stored
        return stored, math
    if family in ("gemm", "batched_gemm", "moe", "linear_attention"):
        return OTHER_FORMATS.get(dtype, (dtype, dtype.partition("_")[0]))
    return (dtype, None) if dtype in ("bf16", "fp16", "fp32", "fp8", "int8") else (None, None)


# largest size of a kernel: a typo would fill the memory
MOST = 2**40
# most points of a suite: a typo in the axes would fill the memory before anything is measured
MOST_POINTS = 10**6
ENTRY_FIELDS = ("family", "implementation", "dtype", "cache", "axes", "points")
SUITE_FIELDS = ("suite", "doc", "minutes", "rule", "entries")


class Point(NamedTuple):
    """One kernel to measure. ``cache``: warm (its data is in L2), cold (flushed from it) or SUSTAINED."""

    family: str
    implementation: str
    dtype: str
    cache: str
    shape: tuple[tuple[str, int], ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The shape by name."""
        return dict(self.shape)

    @property
    def key(self) -> str:
        """The point's identity, the same in every run."""
        return json.dumps([self.family, self.implementation, self.dtype, self.cache, self.shape])


class Rule(NamedTuple):
    """When a point is done: its median has ``relative_error``, or the samples or seconds are used up."""

    relative_error: float = 0.005
    least_samples: int = 20
    most_samples: int = 1000
    most_seconds: float = 2.0
    block: int = 10
    most_repeats: int = 20
    cool_seconds: float = 1.0


class Suite(NamedTuple):
    """A name, the stopping rule, and the points in the order in which they are measured."""

    name: str
    rule: Rule
    points: tuple[Point, ...]

    @property
    def digest(self) -> str:
        """The first eight bytes of the SHA-256 of points and rule, in hexadecimal."""
        text = json.dumps([[point.key for point in self.points], list(self.rule)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def suites_folder() -> Path:
    """Return the folder of the shipped suites."""
    return folder("benches") / "suites"


def read_suite(name: str) -> Suite:
    """Read a suite by its name or its JSON file; InvalidInput or UnknownName: it is invalid, or does not exist."""
    shipped = {path.stem: path for path in suites_folder().glob("*.json")}
    path = shipped.get(name, Path(name))
    if not path.exists():
        if path.suffix == ".json":
            raise InvalidInput(f"suite {name} does not exist; `kernelsight calibrate plan -o {name}` writes one.")
        raise unknown("suite", name, shipped, f"Known: {', '.join(sorted(shipped))}, or the path to a JSON file.")
    advice = "give the name of a suite, or a JSON file as `kernelsight calibrate plan -o FILE` writes it"
    return suite_of(
        read_json(path, lambda problem: InvalidInput(f"the suite {path} {problem}; {advice}."), ROWS), str(path)
    )


def suite_of(content: Any, origin: str) -> Suite:
    """Return the suite of a parsed JSON value; ``origin``: its file, for errors."""
    if not isinstance(content, dict) or not isinstance(content.get("entries"), list) or not content["entries"]:
        raise InvalidInput(f"the suite {origin} has no entries; give an object with a list of them, as in quick.json.")
    _only_known(content, SUITE_FIELDS, f"the suite {origin}")
    rule = _rule(content.get("rule", {}), origin)
    name = content.get("suite") or Path(origin).stem
    if not isinstance(name, str):
        raise InvalidInput(f"the suite {origin}: suite is {name!r}; give its name.")
    entries, count = [], 0
    for number, entry in enumerate(content["entries"], start=1):
        where = f"the suite {origin}, entry {number}"
        entries.append(_points(entry, where, MOST_POINTS - count))
        count += len(entries[-1])
    return Suite(name, rule, tuple(_interleaved(entries).values()))


def _interleaved(entries: Sequence[Sequence[Point]]) -> dict[str, Point]:
    """Return the points of all entries by key, interleaved so that a partial run covers all entries equally.

    Empty launches come first: the least time of any kernel is known after a second. Then one point of each entry, in
    the order of the entries.
    """
    placed = [
        (-1.0 if point.family == "launch" else number / len(points), point)
        for points in entries
        for number, point in enumerate(points)
    ]
    by_key: dict[str, Point] = {}
    for _, point in sorted(placed, key=lambda placed_point: placed_point[0]):
        by_key.setdefault(point.key, point)
    return by_key


def _rule(fields: Any, origin: str) -> Rule:
    if not isinstance(fields, dict):
        raise InvalidInput(f"the suite {origin}: rule is {fields!r}; give an object, as in quick.json.")
    _only_known(fields, Rule._fields, f"the rule of the suite {origin}")
    whole_fields = {name for name, value in Rule._field_defaults.items() if isinstance(value, int)}
    for name, value in fields.items():
        if not is_number(value) or not 0 < value < 1e6:
            raise InvalidInput(f"the suite {origin}: {name} of the rule is {value!r}; give a number above 0.")
        if name in whole_fields and value != int(value):
            raise InvalidInput(
                f"the suite {origin}: {name} of the rule is {value!r}; give a whole number of at least 1."
            )
    return Rule(**{name: int(value) if name in whole_fields else float(value) for name, value in fields.items()})


def _points(entry: Any, where: str, most: int) -> list[Point]:
    if not isinstance(entry, dict):
        raise InvalidInput(f"{where} is {entry!r}; give an object with family and axes.")
    _only_known(entry, ENTRY_FIELDS, where)
    name = entry.get("family")
    if not isinstance(name, str) or name not in FAMILIES:
        raise unknown("kernel family", str(name), FAMILIES, f"It is in {where}.")
    family = FAMILIES[name]
    fields = {
        "implementation": (family.implementations, family.implementations[:1]),
        "dtype": (family.dtypes, family.dtypes[:1]),
        "cache": ((*family.caches, *family.others), family.caches),
    }
    combinations = list(itertools.product(*(_words(entry, field, *words, where) for field, words in fields.items())))
    shapes = _shapes(entry, family, where, most // len(combinations))
    return [Point(name, *combination, shape) for combination in combinations for shape in shapes]


def _words(
    entry: Mapping[str, Any], field: str, allowed: Sequence[str], default: Sequence[str], where: str
) -> list[str]:
    value = entry.get(field, default)
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not words:
        raise InvalidInput(f"{where}: {field} is {value!r}; give one of {', '.join(allowed)}, or a list of them.")
    for word in words:
        if word not in allowed:
            raise unknown(field, str(word), allowed, f"It is in {where}; known: {', '.join(allowed)}.")
    return words


def _shapes(entry: Mapping[str, Any], family: Family, where: str, most: int) -> list[tuple[tuple[str, int], ...]]:
    axes, bases = entry.get("axes", {}), entry.get("points", [{}])
    if not isinstance(axes, dict) or not isinstance(bases, list) or not all(isinstance(base, dict) for base in bases):
        raise InvalidInput(f"{where}: axes must be an object of lists, and points a list of objects.")
    lists = {name: values if isinstance(values, list) else [values] for name, values in axes.items()}
    if empty := [name for name, values in [*lists.items(), ("points", bases)] if not values]:
        raise InvalidInput(f"{where}: {', '.join(empty)} is an empty list; give its values.")
    if duplicates := sorted({name for base in bases for name in base} & set(lists)):
        raise InvalidInput(f"{where} has {', '.join(duplicates)} in axes and in points; give a size once.")
    if len(bases) * math.prod(len(values) for values in lists.values()) > most:
        raise InvalidInput(f"{where} makes more than {MOST_POINTS:,} points of the suite; shorten its axes.")
    shapes = []
    for base in bases:
        for values in itertools.product(*lists.values()):
            shape = {**family.defaults, **base, **dict(zip(lists, values, strict=True))}
            if missing := [name for name in family.sizes if name not in shape]:
                raise InvalidInput(f"{where} is missing the sizes {', '.join(missing)}; add them to axes or points.")
            for size, value in shape.items():
                least = min(family.defaults.get(size, 1), 1)
                if size not in family.sizes and size not in family.defaults:
                    raise unknown("size", size, [*family.sizes, *family.defaults], f"It is in {where}.")
                if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MOST:
                    raise InvalidInput(f"{where}: {size} is {value!r}; give a whole number of at least {least}.")
            shapes.append(tuple(sorted(shape.items())))
    return shapes


def _only_known(fields: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for name in fields:
        if name not in allowed:
            raise unknown("field", str(name), allowed, f"It is in {where}.")
