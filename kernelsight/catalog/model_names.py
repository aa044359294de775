"""Names of models: the catalogue's, their identifiers and aliases, and quantised variants, mirrors and copies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kernelsight import errors
from kernelsight.catalog.tables import facts
from kernelsight.files.own import own_json, own_text

CATALOGUE = Path(__file__).parent / "models.jsonl"
# stands for the owner of a repository in a launch line; whoever starts the server replaces it
UNKNOWN_OWNER = "REPOSITORY_OWNER"
# billions of parameters in a name
SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z0-9])")
ADVICE = (
    "For a model of the shape of one in the catalogue add --model-like; otherwise give the path to its config.json."
)


def catalogue_name(huggingface_id: str) -> str:
    """Return the repository's name in lower case, without owner and without -instruct."""
    return huggingface_id.rsplit("/", 1)[-1].lower().replace("-instruct", "")


def _lookup_key(name: str) -> str:
    """Return a name or identifier in the form in which all spellings of a model are equal."""
    owner, _, repository = name.strip().lower().rpartition("/")
    repository = catalogue_name(repository).removesuffix("-it").removeprefix("meta-")
    return f"{owner}/{repository}" if owner else repository


class Spelling(NamedTuple):
    """A spelling of a catalogue model: its name there, why, and whether their configs were compared."""

    model: str
    why: str
    compared: bool


@cache
def _spellings() -> dict[str, Spelling]:
    """Return the spellings by lookup key; one of the same config precedes one that is taken as its shape."""
    named = [(name, Spelling(model, "", True)) for model, own in _identifiers().items() for name in (model, own)]
    aliases = facts("model_aliases").to_pylist()
    named += [(row["name"], Spelling(row["model"], row["source"], row["compared"])) for row in aliases]
    found: dict[str, Spelling] = {}
    for name, spelling in sorted(named, key=lambda entry: not entry[1].compared):
        for spelled in (name, name.rsplit("/", 1)[-1]):
            found.setdefault(_lookup_key(spelled), spelling)
    return found


def entries() -> Iterator[dict[str, Any]]:
    """Yield the models of the catalogue: objects with a name, an identifier, a source and a ``config``."""
    yield from map(own_json, own_text(CATALOGUE).splitlines())


@cache
def _identifiers() -> dict[str, str]:
    """Return the Hugging Face identifiers of the catalogue by its names."""
    return {entry["model"]: entry["huggingface_id"] for entry in entries()}


def served_name(model_name: str, identifier: str | None = None) -> str:
    """Return the model name for an engine's command line: an identifier or folder as given, else the identifier.

    A catalogue name becomes its Hugging Face identifier, with -Instruct where the name has it; another name without an
    owner, which no folder has, gets ``UNKNOWN_OWNER``: several publish checkpoints of one name in different formats.
    ``identifier``: that of the model's row, where it is known.

    >>> served_name("meta-llama/Llama-3.1-8B-Instruct"), served_name("llama-3.1-8b")
    ('meta-llama/Llama-3.1-8B-Instruct', 'meta-llama/Llama-3.1-8B')
    >>> served_name("llama-3.1-8b-instruct"), served_name("models/mine/config.json")
    ('meta-llama/Llama-3.1-8B-Instruct', 'models/mine')
    >>> served_name("Llama-3.3-70B-Instruct-FP8")
    'REPOSITORY_OWNER/Llama-3.3-70B-Instruct-FP8'
    """
    if model_name.endswith(".json"):
        return str(Path(model_name).parent)
    if "/" in model_name:
        return model_name
    found = _spellings().get(_lookup_key(model_name))
    resolved = identifier or (_identifiers()[found.model] if found and found.compared else model_name)
    if "/" not in resolved:
        return model_name if Path(model_name).exists() else f"{UNKNOWN_OWNER}/{model_name}"
    is_instruct = "-instruct" in model_name.lower() and "-instruct" not in resolved.lower()
    return resolved + "-Instruct" if is_instruct else resolved


def shapes_like(name: str, names: Iterable[str]) -> list[str]:
    """Return the names of the family and size that a name states, else of about its size; all where it states none.

    >>> known = ["deepseek-r1", "qwen3-8b", "qwen3-32b", "codellama-34b-hf"]
    >>> shapes_like("someone/Sky-Qwen-32B", known), shapes_like("DeepSeek-R1-Distill-Sky-32B", known)
    (['qwen3-32b'], ['qwen3-32b', 'codellama-34b-hf'])
    """
    size, names = _size(name), list(names)
    if size is None:
        return names
    near = [each for each in names if (other := _size(each)) and size / 2 <= other <= size * 2]
    family = [each for each in near if _size(each) == size and _words(name) & _words(each)]
    return family or near


def _size(name: str) -> float | None:
    """Return the billions of parameters that a name states first."""
    found = SIZE.search(name.lower())
    return float(found[1]) if found else None


def _words(name: str) -> set[str]:
    return set(re.findall("[a-z]{3,}", name.lower()))


def resolve(name: str) -> str:
    """Return the catalogue name of a model from that name or its Hugging Face identifier, in any case.

    UnknownName lists the nearest names.
    """
    found = _spellings().get(_lookup_key(name))
    if found is None or not found.compared:
        raise errors.unknown("model", name, shapes_like(name, _identifiers()), ADVICE)
    return found.model


class Variant(NamedTuple):
    """A model that the catalogue has under another name."""

    base: str  # its name in the catalogue
    quantization: str | None  # of the table ``quantizations``; None: as the base
    source: str


@cache
def _endings() -> tuple[dict[str, Any], ...]:
    """Return the rows of ``model_variants``, the longest suffix first, of equal ones those with an owner first."""
    rows = facts("model_variants").to_pylist()
    return tuple(sorted(rows, key=lambda row: (-len(row["suffix"]), row["owner"] == "*")))


@cache
def find_variant(name: str) -> Variant | None:
    """Return the catalogue model that an identifier or path is a variant of, or None.

    Some configs were not compared with that of the base. InvalidInput: its name ends in a format that it does not say.

    >>> find_variant("Qwen/QwQ-32B")
    Variant(base='qwen2.5-32b', quantization=None, source='fine-tune: by its name and model card')
    """
    path, _, repository = name.rstrip("/").rpartition("/")
    for row in _endings():
        ending, owners = row["suffix"], ("*", path.rpartition("/")[2].lower())
        base = _spellings().get(_lookup_key(repository[: -len(ending)]))
        if not repository.lower().endswith(ending) or not base or row["owner"] not in owners:
            continue
        if row["quantization"] is None:
            raise errors.InvalidInput(
                f"{name} is quantised in a format that its name does not say ({row['source']}); use the model without "
                f"{ending} and --quantization, or give the path to a config.json or GGUF file."
            )
        return Variant(base.model, row["quantization"], row["source"])
    base = _spellings().get(_lookup_key(repository))
    if base is None:
        return None
    return Variant(base.model, None, "a copy of the same name" if base.compared else base.why)
