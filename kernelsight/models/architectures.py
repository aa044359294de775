"""Architectures: files of data that turn the fields of a config.json into the shape of a model.

A file (YAML, one per family, in ``kernelsight/catalog/architectures`` or a user's own) states the classes that it
reads, the fields of their config with kinds, ranges and defaults, and expressions over these fields: for the columns of
``models``, and for the attention and feed-forward of each layer. ``docs/extending/architectures.md`` describes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kernelsight import errors
from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import read_text
from kernelsight.files.bounded_values import parse_yaml
from kernelsight.models.config_fields import ConfigFields, Field
from kernelsight.models.expressions import Expression
from kernelsight.models.field_files import FieldFile, FieldScope, line_of
from kernelsight.models.limits import longest_context

FOLDER = Path(__file__).parent.parent / "catalog" / "architectures"
LARGEST_FILE = 2**16
# far above any model: a typo must not make a list of a billion layers
MOST_LAYERS = 10_000
SECTIONS = {
    "architectures": list,
    "like": list | str,
    "source": str,
    "fields": dict,
    "layers": dict,
    "columns": dict,
    "products": dict,
    "modules": dict,
    "checks": list,
    "notes": list,
}
ATTENTION = ("full", "sliding", "selected", "mla", "sparse", "compressed", "linear", "none")
FEED_FORWARD = ("dense", "moe", "none")
# sizes of a layer that an architecture states where they differ from those of the model
SIZES = (
    *("heads", "kv_heads", "head_dim", "v_head_dim", "window", "intermediate", "experts", "top_k"),
    *("shared_intermediate", "index_heads", "expert_hidden", "compression"),
)
# what the sides of a further product are multiples of: numbers of a layer on one GPU
UNITS = ("one", "heads", "kv_heads", "intermediate", "shared_intermediate")
# names in expressions that are no fields
BOUND = ("layer", "layer_count")


class Shape(NamedTuple):
    """What an architecture makes of a config: columns of ``models``, and each layer's attention and feed-forward."""

    columns: dict[str, Any]
    attention: list[str]  # of each layer: one of ATTENTION
    ffn: list[str]  # of each layer: one of FEED_FORWARD
    sizes: list[dict[str, Any]]  # of each layer: those that differ from the model's, and its further products
    notes: tuple[str, ...]  # sentences on what is not modelled
    modules: dict[str, list[str]]  # module names of matrices by class


class Check(NamedTuple):
    """A condition on a config: the field to blame where it does not hold, and what it must be."""

    holds: Expression
    field: str
    expected: str


class Product(NamedTuple):
    """A matrix product that some layers have beyond those of their kind: sides n and k, in multiples of units."""

    name: str
    kinds: tuple[str, ...]  # of attention or feed-forward
    format: str
    sides: tuple[tuple[Expression, str], tuple[Expression, str]]


class Architecture(NamedTuple):
    """A family of architectures, as its file and those that it is like declare it."""

    origin: str
    fields: dict[str, Field]
    layers: dict[str, Expression]
    columns: dict[str, Expression]
    products: tuple[Product, ...]
    modules: dict[str, list[str]]
    checks: tuple[Check, ...]
    notes: tuple[tuple[Expression, str], ...]


def architecture_of(name: object, label: str, own: Path | None = None) -> Architecture:
    """Return the architecture of a class named in a config, from the user's ``own`` file or the catalogue.

    InvalidInput: no file reads the class.
    """
    files = _files(own)
    by_class = {each: stem for stem, content in files.items() for each in content.get("architectures", ())}
    if not isinstance(name, str) or name not in by_class:
        refused = errors.config_unsupported(label, "architecture", name, sorted(by_class))
        raise InvalidInput(f"{refused} State how another is read with --architecture FILE, or use --model-like M.")
    return _architecture(by_class[name], own)


def known_architectures() -> list[str]:
    """Return the classes that the catalogue's files read, sorted."""
    return sorted(name for content in _files(None).values() for name in content.get("architectures", ()))


@cache
def _files(own: Path | None) -> dict[str, dict[str, Any]]:
    """Return the content of every file by its stem, the user's own among them."""
    from kernelsight.caches.disk_cache import cached_for_program
    from kernelsight.catalog.tables import program

    paths = sorted(FOLDER.glob("*.yaml"))
    known = cached_for_program(program(), "architectures", lambda: {path.stem: _content(path) for path in paths})
    return known if own is None else known | {str(own): _content(own)}


def _content(path: Path) -> dict[str, Any]:
    """Return the sections of a file; InvalidInput: it is not YAML, or has other sections."""

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"architecture file {path} {problem}.")

    text = read_text(path, refuse, LARGEST_FILE)
    documents = parse_yaml(text, refuse)
    content = documents[0] if len(documents) == 1 else None
    if not isinstance(content, dict):
        raise refuse("is not one YAML mapping")
    for name, value in content.items():
        if name not in SECTIONS or not isinstance(value, SECTIONS[name]):
            expected = f"sections are {', '.join(SECTIONS)}" if name not in SECTIONS else "it has another type"
            raise InvalidInput(f"architecture file {path}, line {line_of(text, str(name))}: {name!r}: {expected}.")
    return content | {"text": text}


@cache
def _architecture(stem: str, own: Path | None) -> Architecture:
    """Return the compiled architecture of a file, merged with those that it is like."""
    from kernelsight.catalog.tables import contracts

    merged = _merged(stem, _files(own))
    reading = _ArchitectureFile(str(own) if stem == str(own) else f"{stem}.yaml", merged["text"])
    fields = reading.fields(merged["fields"], BOUND)
    unknown = sorted(set(merged["layers"]) - {"count", "attention", "ffn", *SIZES})
    if unknown:
        raise reading.wrong(unknown[0], f"a layer has count, attention, ffn, {', '.join(SIZES)}")
    unknown = sorted(set(merged["columns"]) - set(contracts()["models"].column_names))
    if unknown:
        raise reading.wrong(unknown[0], "the table models has no such column")
    return Architecture(
        reading.origin,
        fields,
        {name: reading.expression(name, value) for name, value in merged["layers"].items()},
        {name: reading.expression(name, value) for name, value in merged["columns"].items()},
        tuple(reading.product(name, value) for name, value in merged["products"].items()),
        merged["modules"],
        tuple(reading.check(entry) for entry in merged["checks"]),
        tuple((reading.expression("when", entry.get("when", True)), str(entry["note"])) for entry in merged["notes"]),
    )


def _merged(stem: str, files: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the sections of a file over those of the files that it is like; lists are joined, mappings updated."""
    merged: dict[str, Any] = {name: {} for name in ("fields", "layers", "columns", "products", "modules")}
    merged |= {"checks": [], "notes": []}
    for part in _lineage(stem, files, ()):
        for name, value in merged.items():
            added = files[part].get(name, type(value)())
            merged[name] = added + value if isinstance(value, list) else value | _declared(name, value, added)
    return merged | {"text": files[stem]["text"]}


def _lineage(stem: str, files: Mapping[str, dict[str, Any]], below: tuple[str, ...]) -> list[str]:
    """Return the files that a file is like, the most general first, each once, and itself."""
    if stem not in files or stem in below:
        reason = "is like itself" if stem in below else "is no architecture file"
        raise InvalidInput(f"architecture file {below[-1] if below else stem}: {stem!r} {reason}.")
    like = files[stem].get("like", [])
    above = [_lineage(name, files, (*below, stem)) for name in ([like] if isinstance(like, str) else like)]
    return [*dict.fromkeys(name for line in above for name in line), stem]


def _declared(section: str, known: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return declarations over known ones; of fields, a plain value states a default, ``required`` takes it away."""
    if section != "fields":
        return dict(added)
    fields = {}
    for name, value in added.items():
        field = known.get(name, {}) | (value if isinstance(value, dict) else {"default": value})
        if field.pop("required", False):
            field.pop("default", None)
        fields[name] = field
    return fields


class _ArchitectureFile(FieldFile):
    """The reading of an architecture file: its products and checks."""

    kind = "architecture file"

    def product(self, name: str, declared: Any) -> Product:
        """Return a further product of layers."""
        declared = {"format": "ffn"} | (declared if isinstance(declared, dict) else {})
        kinds, known = declared.get("for"), {*ATTENTION, *FEED_FORWARD}
        if set(declared) != {"for", "format", "n", "k"} or not isinstance(kinds, list) or not set(kinds) <= known:
            raise self.wrong(name, "a product states for (kinds of layers), n, k, and format")
        if declared["format"] not in ("attention", "ffn", "expert", "dtype"):
            raise self.wrong(name, "the format of a product is attention, ffn, expert or dtype")
        sides = []
        for side in ("n", "k"):
            value = declared[side] if isinstance(declared[side], dict) else {"one": declared[side]}
            if len(value) != 1 or not set(value) <= set(UNITS):
                raise self.wrong(name, f"{side} is an expression, or one for each of {', '.join(UNITS[1:])}")
            sides += [(self.expression(name, expression), unit) for unit, expression in value.items()]
        return Product(name, tuple(kinds), declared["format"], (sides[0], sides[1]))

    def check(self, entry: Any) -> Check:
        """Return a condition on a config."""
        if not isinstance(entry, dict) or set(entry) != set(Check._fields):
            raise self.wrong("checks", f"each has {', '.join(Check._fields)}")
        return Check(self.expression("holds", entry["holds"]), str(entry["field"]), str(entry["expected"]))


class _Scope(FieldScope):
    """The values that expressions of an architecture refer to: also its layers, and functions over them."""

    def __init__(self, architecture: Architecture, config: ConfigFields) -> None:
        super().__init__(architecture.fields, config)
        self.architecture = architecture
        self.attention: list[str] = []
        self.ffn: list[str] = []
        self["count"] = lambda kind: self.attention.count(kind) + self.ffn.count(kind)
        self["yarn"] = lambda positions: longest_context(config, positions)

    def __missing__(self, name: str) -> Any:
        if name != "layer_count":
            return super().__missing__(name)
        layers = self.value(self.architecture.layers["count"])
        if not 1 <= layers <= MOST_LAYERS:
            name = self.architecture.layers["count"].names[0]
            raise self.wrong(name, self[name], f"of 1 to {MOST_LAYERS} layers")
        self["layer_count"] = layers
        return layers

    def wrong(self, name: str, value: Any, expected: str) -> InvalidInput:
        """Return the error for a field with an unusable value."""
        field = self.fields.get(name)
        if field is not None and field.kind == "kinds" and isinstance(value, int):
            value, expected = f"{value} entries", f"a list of num_hidden_layers ({self['layer_count']}) entries"
        return super().wrong(name, value, expected)


def shape_of(architecture: Architecture, config: ConfigFields) -> Shape:
    """Return the shape that an architecture makes of a config; InvalidInput: a field is missing or has another value.

    A sliding window as long as the context sees everything, so that its layers are full.
    """
    scope = _Scope(architecture, config)
    scope.attention, scope.ffn = (
        list(_of_layers(scope, architecture.layers[name], name, known))
        for name, known in (("attention", ATTENTION), ("ffn", FEED_FORWARD))
    )
    sizes = [_sizes_of(scope, layer) for layer in range(scope["layer_count"])]
    for name, value in scope.items():
        field = architecture.fields.get(name)
        if field and field.kind == "kinds" and len(value or ()) not in (0, scope["layer_count"]):
            raise scope.wrong(name, len(value), "")
        if field and field.kind == "numbers" and value and max(value) >= field.least + scope["layer_count"]:
            last = field.least + scope["layer_count"] - 1
            raise scope.wrong(name, max(value), f"numbers of layers, {field.least} to {last}")
    evaluated = {name: each for name, each in architecture.columns.items() if name != "sliding_window"}
    columns = {"layer_count": scope["layer_count"], "sliding_window": None}
    columns["max_positions"] = scope.value(evaluated.pop("max_positions"))
    if "sliding" in scope.attention:
        window = scope.value(architecture.columns["sliding_window"])
        if window >= columns["max_positions"]:
            scope.attention = ["full" if kind == "sliding" else kind for kind in scope.attention]
        else:
            columns["sliding_window"] = window
    columns |= {name: scope.value(each) for name, each in evaluated.items()}
    for check in architecture.checks:
        if not scope.value(check.holds):
            stated = architecture.fields[check.field].place(config)
            value = stated[0].values[stated[1]] if stated else scope[check.field]
            expected = _filled(check.expected, lambda name: f"{scope.spelling(name)} ({scope[name]})")
            raise errors.config_field_wrong(*architecture.fields[check.field].label_name(config), value, expected)
    notes = tuple(
        _filled(note, lambda name: f"{scope[name]:,}") for when, note in architecture.notes if scope.value(when)
    )
    return Shape(columns, scope.attention, scope.ffn, sizes, notes, architecture.modules)


def _sizes_of(scope: _Scope, layer: int) -> dict[str, Any]:
    """Return the sizes of a layer that the architecture states, and its further products where it has some."""
    scope["layer"] = layer
    kinds = (scope.attention[layer], scope.ffn[layer])
    layers = scope.architecture.layers
    sizes = {name: scope.value(layers[name]) for name in SIZES if name in layers}
    products = [
        {"name": product.name, "format": product.format}
        | {
            f"{side}{of}": value
            for side, (size, unit) in zip("nk", product.sides, strict=True)
            for of, value in (("", scope.value(size)), ("_of", unit))
        }
        for product in scope.architecture.products
        if {*kinds} & {*product.kinds}
    ]
    products = [product for product in products if product["n"] and product["k"]]
    return {name: value for name, value in sizes.items() if value is not None} | (
        {"products": products} if products else {}
    )


def _filled(text: str, written: Callable[[str], str]) -> str:
    """Return a text with what is written for the fields that it names in braces."""
    return re.sub(r"\{(\w+)\}", lambda found: written(found[1]), text)


def _of_layers(scope: _Scope, expression: Expression, name: str, known: Iterable[str]) -> Iterable[str]:
    """Yield the kind of each layer."""
    for layer in range(scope["layer_count"]):
        scope["layer"] = layer
        kind = scope.value(expression)
        if kind not in known:
            raise InvalidInput(
                f"architecture file {scope.architecture.origin}: {name} of layer {layer} is {kind!r}, but must be one "
                f"of {', '.join(known)}."
            )
        yield kind
