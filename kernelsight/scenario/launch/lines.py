"""Reads a launch line (vLLM, SGLang, TensorRT-LLM) into flags of a deployment; lists ignored words with a reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kernelsight.errors import InvalidInput
from kernelsight.files.redaction import REDACTED
from kernelsight.scenario.launch.command_options import Setting, nested, read_options
from kernelsight.scenario.launch.commands import engine_words
from kernelsight.scenario.launch.engine_options import FALSE, TRUE, UNKNOWN, Option, find_option, find_variable, options
from kernelsight.scenario.launch.reading import Reading, Word
from kernelsight.scenario.launch.rules import RULES, is_known_model
from kernelsight.scenario.launch.server_commands import Command

# similarity of names that differ by a letter or two: most likely a typing error
NEAR = 0.9
# variables with which an engine serves longer sequences than the model's config allows
LONGER = ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
FILE_NOT_HERE = (
    "the file is not here: its settings are not known; state them beside the line, or give the file and "
    "--read-launch-files"
)
TITLES = {
    "overridden": "launch line, overridden",
    "not_modelled": "launch line, ignored although it may change times",
    "unknown": "launch line, ignored",
    "none": "launch line, ignored because it does not change times",
}
# limits of a quoted long line: number of lines, characters per line
MOST_NOTES, LONGEST_NOTE = 3, 160
MATTERS_FIRST = ("not_modelled", "overridden", "unknown", "used", "none")


class LaunchLine(NamedTuple):
    """A launch line that was read: the engine, the flags that it sets, and every word of it with its effect.

    >>> from kernelsight.scenario.launch.deployments import read_launch_line
    >>> line = read_launch_line("vllm serve Qwen/Qwen3-8B -tp 2 --max-model-len 16k --port 80")
    >>> line.flags
    {'engine': 'vllm', 'model': 'Qwen/Qwen3-8B', 'tensor_parallel_size': 2, 'max_model_len': 16000}
    >>> [(word.words, word.effect) for word in line.words][-1]
    ('--port 80', 'none')
    """

    engine: str
    flags: dict[str, Any]
    words: tuple[Word, ...]

    def overridden_by(self, flags: Mapping[str, Any]) -> LaunchLine:
        """Return the line, words marked as overridden whose flags are also set in ``flags`` to another value."""
        words = [
            word._replace(effect="overridden", reason=f"{word.flag} {flags[word.flag]} is stated beside the line")
            if word.effect == "used" and flags.get(word.flag) is not None and flags[word.flag] != word.value
            else word
            for word in self.words
        ]
        return self._replace(words=tuple(words))

    def as_dict(self) -> dict[str, Any]:
        """Return the line as ``--format json`` prints it."""
        return {"engine": self.engine, "flags": self.flags, "words": [word._asdict() for word in self.words]}

    @property
    def assumed(self) -> list[str]:
        """A sentence for each flag that the line does not state, but that is taken from another word of it."""
        used = [word for word in self.words if word.effect == "used" and (word.reason or "").startswith("assumed: ")]
        return [f"{word.flag} {word.value}: {word.reason.removeprefix('assumed: ')}" for word in used]

    def notes(self) -> list[str]:
        """Return a line of text for each effect of words: used, overridden, ignored and why."""
        return list(self._notes().values())

    def short_notes(self) -> list[str]:
        """Return at most three of these lines, cut, words that may change times first, and the number of words.

        >>> from kernelsight.scenario.launch.deployments import read_launch_line
        >>> line = read_launch_line("vllm serve Qwen/Qwen3-8B -tp 2 --port 80")
        >>> line.short_notes() == sorted(line.notes(), key=line.notes().index)
        True
        """
        notes = self._notes()
        if len(notes) <= MOST_NOTES and all(len(text) <= LONGEST_NOTE for text in notes.values()):
            return list(notes.values())
        notes_first = [notes[effect] for effect in MATTERS_FIRST if effect in notes][:MOST_NOTES]
        cut = [
            text if len(text) <= LONGEST_NOTE else f"{text[: LONGEST_NOTE - 2].rsplit(' ', 1)[0]} …"
            for text in notes_first
        ]
        return [*cut, f"launch line: {len(self.words)} words in all; --verbose says what became of each"]

    def _notes(self) -> dict[str, str]:
        """Return the lines by the effect of their words."""
        lines = {"used": f"launch line of {engine_words(self.engine)['name']}: {_used(self.words)}"}
        for effect, title in TITLES.items():
            by_reason: dict[str | None, list[str]] = {}
            for word in self.words:
                if word.effect == effect:
                    by_reason.setdefault(word.reason, []).append(word.words)
            if by_reason:
                words_of_reasons = "; ".join(f"{', '.join(words)} ({reason})" for reason, words in by_reason.items())
                lines[effect] = f"{title}: {words_of_reasons}"
        return lines


def _used(words: tuple[Word, ...]) -> str:
    used = [word for word in words if word.effect == "used"]
    words_used = [
        f"{word.words} → {f'{word.flag} {word.value}' if word.value is not None else 'default'}"
        + (f" ({word.reason})" if word.reason else "")
        for word in used
    ]
    return "; ".join(words_used) or "no option"


# rules that depend on flags which other rules set, in their order
LATE = {"kv_tier": 1, "attention_dp": 2}
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_REPOSITORY = re.compile(r"[A-Za-z\d][\w.-]*/[\w.-]+")
ASSUMED_NAME = "the path or name of the weights is no known model"


def read_command(command: Command, read_files: bool = False, replicas: str = "replicas") -> LaunchLine:
    """Return the launch line of one command; ``replicas``: the flag that its number of replicas sets."""
    reading, role = Reading(command.engine), command.role

    def takes(name: str) -> str | None:
        option = find_option(command.engine, name)
        return option.takes if option else None

    settings = [
        setting
        for name, value in command.options
        if value is not None or command.engine == "trtllm"
        for setting in nested(name if name[:1] == "-" or name == "MODEL" else f"--{_spelled(name)}", value, takes)
    ]
    settings += read_options(command.words, takes, command.folder, read_files, command.texts)
    if command.engine != "trtllm":  # options of a command have precedence over those of its file
        settings.sort(key=lambda setting: not setting.of_file)
    for setting in _with_known_model(command, settings, reading):
        _apply(reading, setting)
    # after all options are read: attention replicas divide sizes that other options set
    for option, setting, value in sorted(reading.pending, key=lambda pending: LATE.get(pending[0].rule or "", 0)):
        RULES[option.rule](reading, option, setting, value)
    if command.version:
        reading.use(
            Setting("image", command.version, f"image tag {command.version}"), "engine_version", command.version
        )
    for label, name in role.facts.get("gpu", ()):
        _use_gpu(reading, label, name)
    if role.facts.get("replicas") is not None:
        _use_replicas(reading, command, replicas)
    for name, value in command.environment.items():
        option = find_variable(command.engine, name)
        setting = Setting(name, value, f"{name}={value}")
        if name in LONGER and value.lower() in ("1", "true") and "max_model_len" in reading.flags:
            reading.use(setting, "max_position_embeddings", reading.flags["max_model_len"], "as far as is asked")
        elif option and option.rule:
            RULES[option.rule](reading, option, setting, value)
        elif option and option.flag and option.flag not in reading.flags:
            _apply(reading, setting)
        elif option:
            reading.ignore(setting, option.effect or "overridden", option.reason or "an option states it")
        else:
            reading.ignore(setting, "unknown", UNKNOWN)
    for words, effect, reason in command.around:
        reading.ignore(Setting("", "", words), effect, reason)
    return LaunchLine(command.engine, reading.flags, tuple(reading.words))


def _spelled(name: str) -> str:
    """Return the name of a field as an option is spelled: maxModelLen is max-model-len."""
    return name if "_" in name or "-" in name else _CAPITAL.sub("-", name).lower()


def _with_known_model(command: Command, settings: Sequence[Setting], reading: Reading) -> list[Setting]:
    """Return the settings; the first model that is known replaces one that is not: weights are mounted under paths.

    Models are stated by options, by the form of the file, and by the names that the server answers to.
    """
    stated, served = command.role.facts.get("model"), command.role.facts.get("served_model")
    of_options = [
        item for item in settings if (found := find_option(command.engine, item.name)) and found.flag == "model"
    ]
    names = [setting.value for setting in of_options[:1]] + [name for name in (stated,) if name]
    answers = [
        name for item in settings if item.name.replace("_", "-") == "--served-model-name" for name in item.value.split()
    ]
    answers += [served] if served else []
    if len(names) + len(answers) == 0 or (names and not answers and of_options and not stated):
        return list(settings)
    candidates = [*names, *answers]
    known = next((name for name in candidates if is_known_model(name)), None)
    known = known or next((name for name in candidates if _REPOSITORY.fullmatch(name)), candidates[0])
    if of_options and known == of_options[0].value:
        return list(settings)
    assumed = ASSUMED_NAME if known in answers and names and known != candidates[0] else None
    kept = []
    for setting in settings:
        if setting in of_options:
            reading.ignore(setting, "overridden", f"{ASSUMED_NAME}: {known} is predicted")
        else:
            kept.append(setting)
    label = "served model name" if known in answers else "model"
    if "$" in known:
        raise InvalidInput(f"the model of the launch text, {known}, has a variable without a value; put it in.")
    reading.use(Setting("model", known, f"{label} {known}"), "model", known, assumed and f"assumed: {assumed}")
    return kept


def _refuse_typing_error(engine: str, setting: Setting) -> None:
    """Raise InvalidInput for a misspelled option that matters: the engine would not start with it either."""
    import difflib

    counts = sorted(name for name, option in options(engine).items() if option.flag or option.rule)
    near = difflib.get_close_matches(setting.name, counts, n=1, cutoff=NEAR)
    if near:
        raise InvalidInput(
            f"{engine_words(engine)['name']} has no option {setting.name}; did you mean {near[0]}? Correct the launch "
            "line, or remove the word."
        )


def _apply(reading: Reading, setting: Setting) -> None:
    """Use, postpone or ignore one setting of a command, by its row of ``engine_flags``."""
    option = find_option(reading.engine, setting.name)
    if setting.name == "MODEL" and "model" in reading.flags:
        reading.ignore(setting, "unknown", "a word that belongs to no option")
    elif option is None and "." in setting.name and find_option(reading.engine, setting.name.partition(".")[0]):
        reading.ignore(setting, "not_modelled", "this field is not known to the simulator")
    elif option is None:
        _refuse_typing_error(reading.engine, setting)
        reading.ignore(setting, "unknown", UNKNOWN)
    elif option.takes == "file":
        reading.ignore(setting, "not_modelled", FILE_NOT_HERE)
    elif option.effect:
        reading.ignore(setting, option.effect, option.reason)
    elif option.flag is None:
        reading.ignore(setting, "none", option.reason or "holds other settings")
    else:
        understood, value = option.meaning(setting.value)
        if option.takes in ("none", "optional") and setting.value == "false" and option.value is None:
            value = "false"
        if not understood:
            value_shown = "its value" if setting.of_file else setting.value
            reading.ignore(
                setting, "not_modelled", f"{value_shown} is not predicted; understood are {_values_understood(option)}"
            )
        elif setting.value == REDACTED and option.rule == "kv_connector":  # JSON that cannot be read is redacted whole
            reading.ignore(setting, "not_modelled", "its value is redacted")
        elif setting.value == REDACTED:
            raise InvalidInput(
                f"the value of {setting.name} in the launch line is redacted: it, or the variable that it comes from, "
                "bears the name of a secret or holds a password; write a plain value."
            )
        elif "$" in setting.value:
            raise InvalidInput(f"{setting.words} of the launch line has a variable without a value; put it in.")
        elif option.takes in ("none", "optional") and not setting.of_file and setting.value not in TRUE + FALSE:
            raise InvalidInput(
                f"{setting.words} of the launch line: a switch takes no value but true or false; remove it."
            )
        elif option.rule:
            reading.pending.append((option, setting, value))
        else:
            reading.use(setting, option.flag, value, option.reason)


def _values_understood(option: Option) -> str:
    """Return the values of an option that are predicted, one for each value of its flag."""
    first_spelling = {
        flag_value: option_value
        for option_value, _, flag_value in reversed([pair.partition("=") for pair in option.value.split()])
    }
    return ", ".join(reversed(first_spelling.values()))


def _use_gpu(reading: Reading, label: str, name: str) -> None:
    """Set the flag gpu from a node selector or another field, if it names a GPU; ``gpu:h100:8`` does too."""
    from kernelsight.catalog.gpu_names import find_gpu

    setting = Setting(label, name, f"{label} {name}")
    parts = [name, *name.split(":"), name.partition("gpu-")[2].partition(":")[0]]
    gpu_name = next((found for part in parts if part and (found := find_gpu(part))), None)
    if gpu_name is None:
        reading.ignore(setting, "none", "names no known GPU")
    else:
        reading.use(setting, "gpu", gpu_name.gpu, gpu_name.assumed)


def _use_replicas(reading: Reading, command: Command, flag: str) -> None:
    """Set the number of replicas; the pods of a server on several nodes are one replica."""
    replicas = command.role.facts["replicas"]
    setting = Setting("replicas", str(replicas), f"replicas: {replicas}")
    nodes = "1" if command.role.facts.get("nodes") else command.after("--nnodes") or "1"
    number = int(replicas) if str(replicas).isdecimal() and len(str(replicas)) < 10 else 0
    if not number or not nodes.isdecimal() or number % (int(nodes) or 1):
        reading.ignore(
            setting, "not_modelled", "no number of servers: one is predicted; state --replicas beside the line"
        )
    elif int(nodes) > 1:
        reading.use(setting, flag, number // int(nodes), f"each server has {nodes} of them as its nodes")
    else:
        reading.use(setting, flag, number, "requests go to them in turn, unless --router is stated")
