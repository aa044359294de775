"""State while a launch line is read: the flags so far, and the effect of each word."""

from __future__ import annotations

from typing import Any, NamedTuple

from kernelsight.errors import InvalidInput
from kernelsight.scenario.flag_values import typed_value
from kernelsight.scenario.flags import FLAGS
from kernelsight.scenario.launch.command_options import Setting
from kernelsight.scenario.launch.engine_options import Option


class Word(NamedTuple):
    """One option of a launch line, and its effect.

    ``effect``: used, none (no effect on times), not_modelled, unknown, or overridden; ``reason``: why, or a remark.
    """

    words: str
    effect: str
    flag: str | None = None
    value: Any = None
    reason: str | None = None


class Reading:
    """The flags read so far, the effect of each word, and options whose rules run after all words are read."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.flags: dict[str, Any] = {"engine": engine}
        self.words: list[Word] = []
        self.pending: list[tuple[Option, Setting, str]] = []
        # of each flag its value so far, and the places of the words that state it
        self._stated: dict[str, tuple[Any, list[int]]] = {}

    def use(self, setting: Setting, flag: str, value: Any, reason: str | None = None, part: Any = None) -> None:
        """Set a flag to a typed value; the last of two options counts, as in the engines. None: the default stays.

        ``part``: what an option adds to the value so far, which then stays.
        """
        if value is not None:
            value = self.flags[flag] = _typed(flag, value, setting)
            before, places = self._stated.get(flag, (value, []))
            if before != value and part is None:
                for place in places:
                    overridden = {"effect": "overridden", "reason": "stated again later in the line"}
                    self.words[place] = self.words[place]._replace(**overridden)
                places = []
            places.append(len(self.words))
            self._stated[flag] = value, places
        self.words.append(Word(setting.words, "used", flag, value if part is None else part, reason))

    def ignore(self, setting: Setting, effect: str, reason: str) -> None:
        """Record a word as ignored, with the reason."""
        self.words.append(Word(setting.words, effect, reason=reason))


def _typed(flag: str, value: Any, setting: Setting) -> Any:
    """Return a flag's typed value; InvalidInput names the words of the option."""
    if FLAGS[flag].kind in ("yes", "switch") and isinstance(value, str):
        value = value == "true"
    try:
        return typed_value(flag, value)
    except InvalidInput as error:
        problem = f"the value is none of {flag}; correct the file." if setting.of_file else error
        raise InvalidInput(f"{setting.words} of the launch line: {problem}") from None
