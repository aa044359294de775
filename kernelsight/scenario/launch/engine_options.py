"""Lookup in the table ``engine_flags``: an engine's options by spelling, and translation of their values."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from kernelsight.catalog.tables import facts

UNKNOWN = "not in the table engine_flags: whether it changes times is not known"
TRUE = ("true", "1", "yes", "on")
FALSE = ("false", "0", "no", "off")


class Option(NamedTuple):
    """One row of ``engine_flags``: an option of an engine, and the flag that it sets."""

    engine: str
    option: str
    spellings: str | None
    takes: str
    flag: str | None
    value: str | None
    rule: str | None
    effect: str | None
    reason: str | None
    source: str

    @property
    def names(self) -> list[str]:
        """All spellings of the option, the canonical one first."""
        return [self.option, *(self.spellings or "").split()]

    def meaning(self, text: str) -> tuple[bool, str | None]:
        """Return (whether a value is understood, the flag's value for it); None: the default stays.

        >>> options("vllm")["--kv-cache-dtype"].meaning("fp8_e5m2"), options("vllm")["--max-model-len"].meaning("auto")
        ((True, 'fp8'), (True, None))
        """
        if self.value is None:
            return True, text
        pairs = dict(word.partition("=")[::2] for word in self.value.split() if "=" in word)
        if not pairs:
            return True, self.value
        if text in pairs:
            return True, pairs[text] or None
        return "*" in self.value.split(), text

    def written(self, value: str) -> str | None:
        """Return the option's value for a flag's value; None: the option cannot express it."""
        if self.value is None:
            return value
        pairs = [word.partition("=")[::2] for word in self.value.split() if "=" in word]
        if not pairs:
            return value if value == self.value else None
        return next(
            (option_value for option_value, flag_value in pairs if flag_value == value),
            value if "*" in self.value.split() else None,
        )


def spelled(name: str) -> str:
    """Return an option with dashes for underscores: the engines' argument parsers accept both."""
    return name if not name.startswith("-") else name.replace("_", "-")


@cache
def options(engine: str) -> dict[str, Option]:
    """Return the options of an engine, and the environment variables of libraries, by every spelling.

    >>> options("sglang")["--tp"].flag, options("trtllm")["--extra-llm-api-options"].takes
    ('tensor_parallel_size', 'file')
    """
    rows = [Option(**row) for row in facts("engine_flags").to_pylist() if row["engine"] in (engine, "any")]
    return {spelled(name): row for row in rows for name in row.names}


def find_option(engine: str, name: str) -> Option | None:
    """Return the option that a word names: a known spelling, or a unique prefix of one (as argparse does)."""
    by_name, spelling = options(engine), spelled(name)
    stem, dot, field = spelling.partition(".")
    if dot and stem == "-O":  # until vLLM 0.11, the short form of the whole configuration
        stem = "--compilation-config"
    if dot and stem in by_name:
        spelling = f"{spelled(by_name[stem].option)}.{field}"
    if spelling in by_name:
        return by_name[spelling]
    if not spelling.startswith("--") or len(spelling) < 6 or "." in spelling:
        return None
    matching = {row.option: row for key, row in by_name.items() if key.startswith(spelling) and "." not in key}
    return next(iter(matching.values())) if len(matching) == 1 else None


def find_variable(engine: str, name: str) -> Option | None:
    """Return the row of an environment variable: by its name, or by the longest prefix that ends in ``*``.

    >>> find_variable("vllm", "VLLM_LOGGING_LEVEL").effect, find_variable("vllm", "VLLM_USE_DEEP_GEMM").effect
    ('none', 'not_modelled')
    """
    by_name = options(engine)
    if name in by_name:
        return by_name[name]
    prefixes = [key for key in by_name if key.endswith("*") and name.startswith(key[:-1])]
    return by_name[max(prefixes, key=len)] if prefixes else None
