"""Architectures: files of data that turn the fields of a config.json into the shape of a model.

A file (YAML, one per family, in ``kernelsight/catalog/architectures`` or a user's own) states the classes that it
reads, the fields of their config with kinds, ranges and defaults, and expressions over these fields: for the columns of
``models``, and for the attention and feed-forward of each layer. ``docs/extending/architectures.md`` describes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kernelsight import errors
from kernelsight.caches.disk_cache import cached_for_program
from kernelsight.catalog.tables import contracts, program
from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import read_text
from kernelsight.files.bounded_values import parse_yaml
from kernelsight.files.budget import ARCHITECTURE
from kernelsight.files.forms import line_of, misfit
from kernelsight.models.config_fields import ConfigFields, Field, longest_context
from kernelsight.models.expressions import Expression
from kernelsight.models.field_files import FIELD, SCALAR, FieldFile, FieldScope
from kernelsight.number_format import number

FOLDER = Path(__file__).parent.parent / "catalog" / "architectures"
# far above any model: a typo must not make a list of a billion layers
MOST_LAYERS = 10_000
# what the sides of a further product are multiples of: numbers of a layer on one GPU
UNITS = ("one", "heads", "kv_heads", "intermediate", "shared_intermediate")
EXPRESSIONS = {"*": SCALAR}
SIDE = [SCALAR, dict.fromkeys(UNITS[1:], SCALAR)]
SECTIONS = {
    **{"architectures": [str], "like": [str, [str]], "source": str},
    "fields": {"*": [SCALAR, FIELD]},
    **{"layers": EXPRESSIONS, "columns": EXPRESSIONS, "modules": {"*": [str]}},
    "products": {"*": {"for!": [str], "format": {"attention", "ffn", "expert", "dtype"}, "n!": SIDE, "k!": SIDE}},
    "checks": [{"holds!": SCALAR, "field!": str, "expected!": str}],
    "notes": [{"when": SCALAR, "note!": str}],
}
"""Form of a file; see :func:`~kernelsight.files.forms.misfit`."""
KINDS_OF_LAYERS = ("count", "attention", "ffn")
# sizes of a layer that an architecture states where they differ from those of the model
SIZES = (
    *("heads", "kv_heads", "head_dim", "v_head_dim", "window", "intermediate", "experts", "top_k"),
    *("shared_intermediate", "index_heads", "expert_hidden", "compression", "shared_cache"),
    "value_projections",
)
TYPES = {"int64": (int, "a whole number"), "string": (str, "text"), "bool": (bool, "true or false")}
# names in expressions that are no fields
BOUND = ("layer", "layer_count")
# columns of ``models`` that no architecture states: names, formats, and what is read beside
BESIDE = frozenset(
    """
    model huggingface_id architecture layer_count dtype notes source mtp_format
    attention_format ffn_format expert_format activation_scales weight_block kv_cache_format
    """.split()
)


class Shape(NamedTuple):
    """What an architecture makes of a config: columns of ``models``, and each layer's attention and feed-forward."""

    columns: dict[str, Any]
    attention: list[str]  # of each layer, as ``model_layers`` names them
    ffn: list[str]  # of each layer
    sizes: list[dict[str, Any]]  # of each layer: those that differ from the model's, and its further products
    notes: list[str]  # sentences on what is not modelled
    modules: dict[str, list[str]]  # module names of matrices by class


class Product(NamedTuple):
    """A matrix product that some layers have beyond those of their kind; ``sides``: n and k, in multiples of units."""

    name: str
    kinds: frozenset[str]  # of attention or feed-forward
    format: str
    sides: dict[str, tuple[Expression, str]]


class Architecture(NamedTuple):
    """A family of architectures, as its file and those that it is like declare it.

    ``checks``: a condition, the field to blame where it does not hold, and what it must be; ``notes``: a condition, and
    a sentence where it holds.
    """

    origin: str
    fields: dict[str, Field]
    layers: dict[str, Expression]
    columns: dict[str, Expression]
    products: list[Product]
    modules: dict[str, list[str]]
    checks: list[tuple[Expression, str, str]]
    notes: list[tuple[Expression, str]]


def architecture_of(name: object, label: str, own: Path | None = None) -> Architecture:
    """Return the architecture of a class named in a config, from the user's ``own`` file or the catalogue.

    InvalidInput: no file reads the class.
    """
    files = _files() if own is None else {**_files(), str(own): _content(own)}
    by_class = {each: stem for stem, content in files.items() for each in content.get("architectures", ())}
    if not isinstance(name, str) or name not in by_class:
        refused = errors.config_unsupported(label, "architecture", name, sorted(by_class))
        raise InvalidInput(f"{refused} State how another is read with --architecture FILE, or use --model-like M.")
    return _known(by_class[name]) if own is None else _architecture(by_class[name], files, str(own))


@cache
def _files() -> dict[str, dict[str, Any]]:
    """Return the content of every file of the catalogue by its stem."""
    paths = sorted(FOLDER.glob("*.yaml"))
    return cached_for_program(program(), "architectures", lambda: {path.stem: _content(path) for path in paths})


def _content(path: Path) -> dict[str, Any]:
    """Return the sections of a file; InvalidInput: it is not YAML, or has other sections."""

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"architecture file {path} {problem}.")

    text = read_text(path, refuse, ARCHITECTURE)
    documents = parse_yaml(text, refuse, ARCHITECTURE)
    content = documents[0] if len(documents) == 1 else None
    if not isinstance(content, dict):
        raise refuse("is not one YAML mapping")
    if content and not SECTIONS.keys() & content.keys():
        raise refuse(f"has none of the sections {', '.join(SECTIONS)}")
    if found := misfit(content, SECTIONS):
        *place, expected = found
        line = max(line_of(text, name) for name in place)
        raise InvalidInput(f"architecture file {path}, line {line}: {'.'.join(place)} must be {expected}.")
    return content | {"text": text}


@cache
def _known(stem: str) -> Architecture:
    return _architecture(stem, _files())


def _architecture(stem: str, files: Mapping[str, dict[str, Any]], own: str = "") -> Architecture:
    """Return the compiled architecture of a file, merged with those that it is like; ``own``: the user's file."""
    merged = _merged(stem, files)
    reading = FieldFile("architecture file", stem if stem == own else f"{stem}.yaml", merged["text"])
    fields, read = reading.fields(merged["fields"], BOUND), reading.expression
    for section, may, must in (
        ("layers", {*KINDS_OF_LAYERS, *SIZES}, KINDS_OF_LAYERS),
        ("columns", set(_own_columns()), [name for name, (*_, nullable) in _own_columns().items() if not nullable]),
    ):
        if unknown := sorted(set(merged[section]) - may):
            near = " or ".join(errors.nearest(unknown[0], may)) or "another name"
            raise reading.wrong(unknown[0], f"there is none among {section}; did you mean {near}?")
        if missing := [name for name in must if name not in merged[section]]:
            raise reading.wrong(section, f"they lack {', '.join(missing)}; be like decoder, or state them")
    for check in merged["checks"]:
        if check["field"] not in fields:
            raise reading.wrong("checks", f"there is no field {check['field']!r}")
    return Architecture(
        reading.origin,
        fields,
        {name: read(name, value) for name, value in merged["layers"].items()},
        {name: read(name, value) for name, value in merged["columns"].items()},
        [_product(reading, name, stated) for name, stated in merged["products"].items()],
        merged["modules"],
        [(read("holds", check["holds"]), check["field"], check["expected"]) for check in merged["checks"]],
        [(read("when", entry.get("when", True)), entry["note"]) for entry in merged["notes"]],
    )


def _product(reading: FieldFile, name: str, stated: Mapping[str, Any]) -> Product:
    kinds, sides = frozenset(stated["for"]), {}
    if unknown := kinds - {*_kinds("attention"), *_kinds("ffn")}:
        raise reading.wrong(name, f"no layer is of kind {min(unknown)!r}")
    for side in ("n", "k"):
        value = stated[side] if isinstance(stated[side], dict) else {"one": stated[side]}
        if len(value) != 1:
            raise reading.wrong(name, f"{side} is an expression, or one for one of {', '.join(UNITS[1:])}")
        ((unit, size),) = value.items()
        sides[side] = reading.expression(name, size), unit
    return Product(name, kinds, stated.get("format", "ffn"), sides)


@cache
def _own_columns() -> dict[str, tuple[type, str, bool]]:
    """Return the columns of ``models`` that an architecture states: type, its words, and whether they may be null."""
    columns = (column for column in contracts()["models"].columns if column.name not in BESIDE)
    return {column.name: (*TYPES[column.type], column.nullable) for column in columns}


@cache
def _kinds(name: str) -> tuple[str, ...]:
    """Return the kinds of attention, or of ``ffn``, that a layer may have, as ``model_layers`` declares them."""
    return next(column.allowed for column in contracts()["model_layers"].columns if column.name == name)


def _merged(stem: str, files: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the sections of a file over those of the files that it is like: mappings updated, its own lists first.

    Of a field, a plain value states the default, and ``required`` takes it away.
    """
    merged: dict[str, Any] = {name: {} for name in ("fields", "layers", "columns", "products", "modules")}
    merged |= {"checks": [], "notes": []}
    for part in _lineage(stem, files, ()):
        stated = files[part]
        for name, value in stated.get("fields", {}).items():
            field = merged["fields"].get(name, {}) | (value if isinstance(value, dict) else {"default": value})
            if field.pop("required", False):
                field.pop("default", None)
            merged["fields"][name] = field
        for name in ("layers", "columns", "products", "modules"):
            merged[name] |= stated.get(name, {})
        for name in ("checks", "notes"):
            merged[name] = stated.get(name, []) + merged[name]
    return merged | {"text": files[stem]["text"]}


def _lineage(stem: str, files: Mapping[str, dict[str, Any]], below: tuple[str, ...]) -> list[str]:
    """Return the files that a file is like, the most general first, each once, and itself."""
    if stem not in files or stem in below:
        reason = "is like itself" if stem in below else "is no architecture file"
        raise InvalidInput(f"architecture file {below[-1] if below else stem}: {stem!r} {reason}.")
    like = files[stem].get("like", [])
    above = [_lineage(name, files, (*below, stem)) for name in ([like] if isinstance(like, str) else like)]
    return [*dict.fromkeys(name for line in above for name in line), stem]


def shape_of(architecture: Architecture, config: ConfigFields) -> Shape:
    """Return the shape that an architecture makes of a config; InvalidInput: a field is missing or has another value.

    A sliding window as long as the context sees everything, so that its layers are full.
    """
    kinds: dict[str, list[str]] = {"attention": [], "ffn": []}
    scope = FieldScope(architecture.fields, config)
    scope["count"] = lambda kind: kinds["attention"].count(kind) + kinds["ffn"].count(kind)
    scope["yarn"] = lambda positions: longest_context(config, positions)
    count = architecture.layers["count"]
    layers = scope["layer_count"] = scope.value(count)
    if type(layers) is not int or not 1 <= layers <= MOST_LAYERS:
        expected = f"of 1 to {number(MOST_LAYERS)} layers"
        raise scope.wrong((*count.names, "count")[0], f"{layers} layers", expected)
    for name in kinds:
        kinds[name] = [_kind_of(scope, architecture, name, layer) for layer in range(layers)]
    sizes = [_sizes_of(scope, architecture, layer, {of[layer] for of in kinds.values()}) for layer in range(layers)]
    _check_lists(scope, layers)
    columns = {"layer_count": layers, "sliding_window": None}
    columns["max_positions"] = _whole(scope, architecture, "max_positions", architecture.columns["max_positions"])
    if "sliding" in kinds["attention"]:
        window = _whole(scope, architecture, "sliding_window", architecture.columns["sliding_window"])
        if window >= columns["max_positions"]:
            kinds["attention"] = ["full" if kind == "sliding" else kind for kind in kinds["attention"]]
        else:
            columns["sliding_window"] = window
    columns |= {name: scope.value(each) for name, each in architecture.columns.items() if name not in columns}
    for name, (kind, words, nullable) in _own_columns().items():
        if type(columns.get(name)) is not kind and not (columns.get(name) is None and nullable):
            raise _wrong_value(architecture, name, columns.get(name), words)
    for holds, field, expected in architecture.checks:
        if not scope.value(holds):
            place = architecture.fields[field].place(config)
            value = place[0].values[place[1]] if place else scope[field]
            filled = _filled(expected, scope, lambda name: f"{scope.spelling(name)} ({scope[name]})")
            raise errors.config_field_wrong(*architecture.fields[field].label_name(config), value, filled)
    said = (note for when, note in architecture.notes if scope.value(when))
    notes = [_filled(note, scope, lambda name: number(scope[name])) for note in said]
    return Shape(columns, kinds["attention"], kinds["ffn"], sizes, notes, architecture.modules)


def _check_lists(scope: FieldScope, layers: int) -> None:
    """Check lists of layers in a config, whether or not an expression reads them."""
    for name, field in scope.fields.items():
        if field.kind not in ("kinds", "numbers") or field.place(scope.config) is None:
            continue
        if field.kind == "kinds" and len(scope[name]) not in (0, layers):
            raise scope.wrong(name, len(scope[name]), "")
        if field.kind == "numbers" and scope[name] and max(scope[name]) >= field.least + layers:
            expected = f"numbers of layers, {field.least} to {field.least + layers - 1}"
            raise scope.wrong(name, max(scope[name]), expected)


def _kind_of(scope: FieldScope, architecture: Architecture, name: str, layer: int) -> str:
    """Return the kind of a layer's attention or feed-forward."""
    scope["layer"] = layer
    kind = scope.value(architecture.layers[name])
    if kind not in _kinds(name):
        raise InvalidInput(
            f"architecture file {architecture.origin}: {name} of layer {layer} is {kind!r}, but must be one of "
            f"{', '.join(_kinds(name))}."
        )
    return kind


def _whole(scope: FieldScope, architecture: Architecture, name: str, expression: Expression) -> int:
    """Return the value of an expression, a whole number of at least 0."""
    value = scope.value(expression)
    if type(value) is not int or value < 0:
        raise _wrong_value(architecture, name, value, "a whole number of at least 0")
    return value


def _wrong_value(architecture: Architecture, name: str, value: Any, expected: str) -> InvalidInput:
    return InvalidInput(
        f"architecture file {architecture.origin}: {name} is {value!r} for this config, but must be {expected}."
    )


def _sizes_of(scope: FieldScope, architecture: Architecture, layer: int, kinds: set[str]) -> dict[str, Any]:
    """Return the sizes of a layer that the architecture states, and its further products where it has some."""
    scope["layer"] = layer
    stated = {name: architecture.layers[name] for name in SIZES if name in architecture.layers}
    stated = {name: size for name, size in stated.items() if scope.value(size) is not None}
    sizes: dict[str, Any] = {name: _whole(scope, architecture, name, size) for name, size in stated.items()}
    products = []
    for product in architecture.products:
        row: dict[str, Any] = {"name": product.name, "format": product.format}
        for side, (size, unit) in product.sides.items() if kinds & product.kinds else ():
            row |= {side: _whole(scope, architecture, product.name, size), f"{side}_of": unit}
        products += [row] if row.get("n") and row["k"] else []
    return sizes | ({"products": products} if products else {})


def _filled(text: str, scope: FieldScope, written: Callable[[str], str]) -> str:
    """Return a text with what is written for the fields that it names in braces."""
    return re.sub(r"\{(\w+)\}", lambda found: written(found[1]) if found[1] in scope.fields else found[0], text)
