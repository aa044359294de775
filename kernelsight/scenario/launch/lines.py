"""Reads a launch line (vLLM, SGLang, TensorRT-LLM) into flags of a deployment; lists ignored words with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kernelsight.errors import InvalidInput
from kernelsight.files.redaction import REDACTED
from kernelsight.scenario.flag_values import typed_value
from kernelsight.scenario.flags import FLAGS
from kernelsight.scenario.launch.command_options import Setting, read_options
from kernelsight.scenario.launch.engine_options import FALSE, TRUE, UNKNOWN, Option, find_option, find_variable, options
from kernelsight.scenario.launch.reading import Reading, Word
from kernelsight.scenario.launch.rules import RULES
from kernelsight.scenario.launch.server_commands import Command, read_commands

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
ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


class LaunchLine(NamedTuple):
    """A launch line that was read: the engine, the flags that it sets, and every word of it with its effect.

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

    def notes(self) -> list[str]:
        """Return a line of text for each effect of words: used, overridden, ignored and why."""
        return list(self._notes().values())

    def short_notes(self) -> list[str]:
        """Return at most three of these lines, cut, words that may change times first, and the number of words.

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
        lines = {"used": f"launch line of {ENGINE_NAMES[self.engine]}: {_used(self.words)}"}
        for effect, title in TITLES.items():
            by_reason: dict[str | None, list[str]] = {}
            for word in self.words:
                if word.effect == effect:
                    by_reason.setdefault(word.reason, []).append(word.words)
            if by_reason:
                words_of_reasons = "; ".join(f"{', '.join(words)} ({reason})" for reason, words in by_reason.items())
                lines[effect] = f"{title}: {words_of_reasons}"
        return lines


def _cut(text: str) -> str:
    """Return a note cut between words to LONGEST_NOTE characters."""
    return text if len(text) <= LONGEST_NOTE else f"{text[: LONGEST_NOTE - 2].rsplit(' ', 1)[0]} …"


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


def read_launch_line(text: str, read_files: bool = False) -> LaunchLine:
    """Return the flags of a launch line of vLLM, SGLang or TensorRT-LLM, and the effect of each of its words.

    ``text``: a line, a script or a manifest, or ``@FILE`` with one; secrets are redacted. ``read_files``: read the
    files of options that it names, such as ``--config``. Two commands, for prefill and decode replicas, become one
    disaggregated deployment. InvalidInput: it starts no known server or several, an option has no value or one out of
    range, or a file that it names exists and is not read.
    """
    commands = read_commands(text)
    if len(commands) == 1:
        return _read_command(commands[0], read_files, "replicas")
    roles = {_role(command): command for command in commands}
    if len(commands) == 2 and set(roles) == {"prefill", "decode"}:
        return _disaggregated(
            *(_read_command(roles[name], read_files, f"{name}_replicas") for name in ("prefill", "decode"))
        )
    raise InvalidInput(
        f"the launch text starts {len(commands)} servers; give one, or the prefill and the decode replicas of one "
        "disaggregated deployment."
    )


def _read_command(command: Command, read_files: bool, replicas: str) -> LaunchLine:
    """Return the launch line of one command; ``replicas``: the flag that a manifest's number of replicas sets."""
    reading = Reading(command.engine)

    def takes(name: str) -> str | None:
        option = find_option(command.engine, name)
        return option.takes if option else None

    for setting in read_options(command.words, takes, command.folder, read_files):
        _apply(reading, setting)
    # after all options are read: attention replicas divide sizes that other options set
    for option, setting, value in sorted(reading.pending, key=lambda pending: LATE.get(pending[0].rule or "", 0)):
        RULES[option.rule](reading, option, setting, value)
    if command.version:
        reading.use(
            Setting("image", command.version, f"image tag {command.version}"), "engine_version", command.version
        )
    for selector in command.selectors:
        _use_selector(reading, selector)
    if command.replicas is not None:
        _use_replicas(reading, command, replicas)
    for name, value in command.environment.items():
        option = find_variable(command.engine, name)
        setting = Setting(name, value, f"{name}={value}")
        if name in LONGER and value.lower() in ("1", "true") and "max_model_len" in reading.flags:
            reading.use(setting, "max_position_embeddings", reading.flags["max_model_len"], "as far as is asked")
            continue
        if option and option.rule:
            RULES[option.rule](reading, option, setting, value)
            continue
        effect = (option.effect, option.reason) if option else ("unknown", UNKNOWN)
        reading.ignore(setting, *effect)
    for words, reason in command.around:
        reading.ignore(Setting("", "", words), "none", reason)
    return LaunchLine(command.engine, reading.flags, tuple(reading.words))


def _refuse_typing_error(engine: str, setting: Setting) -> None:
    """Raise InvalidInput for a misspelled option that matters: the engine would not start with it either."""
    import difflib

    counts = sorted(name for name, option in options(engine).items() if option.flag or option.rule)
    near = difflib.get_close_matches(setting.name, counts, n=1, cutoff=NEAR)
    if near:
        raise InvalidInput(
            f"{ENGINE_NAMES[engine]} has no option {setting.name}; did you mean {near[0]}? Correct the launch line, or "
            "remove the word."
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


def _use_selector(reading: Reading, selector: str) -> None:
    """Set the flag gpu from a node selector, if it names a GPU."""
    from kernelsight.scenario.gpu_names import find_gpu

    setting = Setting("nodeSelector", selector, f"nodeSelector {selector}")
    gpu_name = find_gpu(selector)
    if gpu_name is None:
        reading.ignore(setting, "none", "names no known GPU")
    else:
        reading.use(setting, "gpu", gpu_name.gpu, gpu_name.assumed)


def _use_replicas(reading: Reading, command: Command, flag: str) -> None:
    """Set the number of replicas; the pods of a server on several nodes are one replica."""
    replicas = command.replicas
    setting = Setting("replicas", str(replicas), f"replicas: {replicas}")
    words = " ".join(command.words).replace("=", " ").split()
    nodes = words[words.index("--nnodes") + 1] if "--nnodes" in words[:-1] else "1"
    number = int(replicas) if str(replicas).isdecimal() else 0
    if not number or not nodes.isdecimal() or number % (int(nodes) or 1):
        reading.ignore(
            setting, "not_modelled", "no number of servers: one is predicted; state --replicas beside the line"
        )
    elif int(nodes) > 1:
        reading.use(setting, flag, number // int(nodes), f"each server has {nodes} of them as its nodes")
    else:
        reading.use(setting, flag, number, "requests go to them in turn, unless --router is stated")


def _role(command: Command) -> str | None:
    """Return "prefill" or "decode" by a command's disaggregation options, or None."""
    text = " ".join(command.words).lower()
    roles = {
        "prefill": ("--disaggregation-mode prefill", "kv_producer", "--server_role context"),
        "decode": ("--disaggregation-mode decode", "kv_consumer", "--server_role generation"),
    }
    text = text.replace("=", " ")
    return next((role for role, signs in roles.items() if any(sign in text for sign in signs)), None)


def _disaggregated(prefill: LaunchLine, decode: LaunchLine) -> LaunchLine:
    """Return one launch line from those of prefill and decode replicas: decode flags, and prefill flags that differ."""
    if prefill.engine != decode.engine:
        raise InvalidInput("the prefill and the decode replicas of the launch text are of different engines; give one.")
    flags = dict(decode.flags)
    for name, line in (("prefill_replicas", prefill), ("decode_replicas", decode)):
        flags[name] = line.flags.get(name, 1)
    words = [word._replace(words=f"decode: {word.words}") for word in decode.words if not _states_role(word)]
    for word in prefill.words:
        prefill_flag = f"prefill_{word.flag}"
        prefill_word = word._replace(words=f"prefill: {word.words}")
        if word.effect != "used" or word.flag in ("engine", "model", "prefill_replicas"):
            words += [] if _states_role(word) else [prefill_word]
        elif prefill_flag in FLAGS:
            flags[prefill_flag] = word.value
            words.append(prefill_word._replace(flag=prefill_flag))
        elif decode.flags.get(word.flag) == word.value:
            words.append(prefill_word._replace(reason="as for the decode replicas"))
        else:
            reason = "the prefill replicas take this from the decode replicas"
            words.append(prefill_word._replace(effect="not_modelled", reason=reason))
    return LaunchLine(decode.engine, flags, tuple(words))


def _states_role(word: Word) -> bool:
    return word.words.startswith(("--disaggregation-mode", "--kv-transfer-config", "--server_role"))


def with_launch_line(
    flags: Mapping[str, Any], lines_read: dict[tuple[str, bool], LaunchLine] | None = None
) -> dict[str, Any]:
    """Return flags with the flag ``launch`` replaced by the flags of its line; explicit flags have precedence.

    The flag ``read_launch_files``: read files that the line names. ``lines_read``: cache of lines by their text and
    this flag.

    >>> with_launch_line({"launch": "vllm serve Qwen/Qwen3-8B -tp 2", "tensor_parallel_size": 1, "gpu": "l4"})
    {'engine': 'vllm', 'model': 'Qwen/Qwen3-8B', 'tensor_parallel_size': 1, 'gpu': 'l4'}
    """
    explicit_flags = {name: value for name, value in flags.items() if name not in ("launch", "read_launch_files")}
    text, read_files = flags.get("launch"), typed_value("read_launch_files", flags.get("read_launch_files") or False)
    if text is None:
        if read_files:
            raise InvalidInput("read_launch_files needs launch, the line that names the files; give both, or neither.")
        return explicit_flags
    if not isinstance(text, str):
        raise InvalidInput(f"launch is of type {type(text).__name__}; give a launch line as text, or @FILE.")
    lines = {} if lines_read is None else lines_read
    if (text, read_files) not in lines:
        lines[text, read_files] = read_launch_line(text, read_files)
    return lines[text, read_files].flags | {name: value for name, value in explicit_flags.items() if value is not None}
