"""Redacts secrets in commands, environments, addresses, JSON and YAML: each is replaced by ``<redacted>``.

The name of an option, variable, field or parameter decides whether its value is a secret; a password in an address
always is. Redaction is idempotent, and a redacted command still reads as the same deployment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.errors import InvalidInput
from kernelsight.files.shell_words import join_commands, split_commands

REDACTED = "<redacted>"
# options that carry a secret: all of vLLM 0.33.0 and SGLang 0.5.23; TensorRT-LLM 1.x has none. The engines accept
# abbreviated options, so that a prefix that reaches into the last word counts too
OPTIONS = ("--api-key", "--hf-token", "--admin-api-key", "--ssl-keyfile-password")
# first words of options that are switches, without a value
_SWITCHES = frozenset("allow enable disable no use skip return".split())
_WORD = re.compile(r"[a-z0-9]+")
_INNER_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# makes any name a secret's, anywhere in the name
_ALWAYS = re.compile(
    r"passw|passphrase|passcode|(^|_)pwd|pwd$|secret|credential|authorization"
    r"|(^|_)(api|access|auth|private|account|signing|encryption|master|license)_?(key|token)(s|id)?(_|$)"
)
# last words of secret options, fields and parameters: --hf-token is a secret, --max-num-batched-tokens a count
_LAST = frozenset("pass key keys apikey apikeys token auth jwt cookie bearer sig signature".split())
_COUNTED = frozenset("per max min num batched first next".split())  # before token
# words that make an environment variable a secret, anywhere in its name
_ANY = _LAST | frozenset("tokens creds pat".split())
_SIZE = re.compile(r"\d[\d.,_]*\s*[kmgt]?i?b?", re.IGNORECASE)
# a text without any of these holds no secret: a quick test
_MARK = re.compile(
    r"pass|pwd|secret|cred|key|tok|auth|jwt|cook|bear|sig|pat\b|(?<!\S)[^\s:/]*+[:/]\S+@|://", re.IGNORECASE
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PAIR = re.compile(r"(?<![\w.-])(?P<name>[\w.-]++)[\"']?\s*+[:=]\s*")
_VALUE = re.compile(r"\"[^\"]*\"?|'[^']*'?|[^\s\"']+")
_PARAMETER = re.compile(r"[^\s\"'&#]+")
_HEADER = re.compile(r"((?:authorization|cookie)\s*:\s*)[^\"']+|(\bbearer\s+)[^\s\"']+", re.IGNORECASE)
# the user and password before @ in an address; a password may contain slashes
_USER = re.compile(r"(://)(?:[^\s\"'/?#]+|[^\s\"'/?#@:]*:(?!\d+(?:[/?#]|$))[^\s\"'@]*)@")
# what may hold such ones: up to the last @ without a space or quote, so that no search goes further
_UP_TO_AT = re.compile(r"(?<![^\s\"'])[^\s\"']*@")
_USER_ALONE = re.compile(r"^[^\s:/@=]+:[^\s/@]+@(?!sha\d+:)(?=[\w.-]+)")
_OPTION = re.compile(r"--?[A-Za-z][\w.+-]*")
_COMMAND_NEXT = re.compile(r"-[A-Za-z]*c|--launch")  # what follows is a command in quotes: sh -c "..."
_YAML = re.compile(r"^[^\S\n]*+(- ++)?[\w.-]++:(\s|$)", re.MULTILINE)


def names_secret(name: str, variable: bool = False) -> bool:
    """Return whether a name's value is a secret; ``variable``: it names an environment variable, so any word counts."""
    words = _WORD.findall(_INNER_CAPITAL.sub("_", name).lower())
    if not words or (name.startswith("-") and words[0] in _SWITCHES):
        return False
    if variable and any(word in _ANY or word.startswith("pass") or word.endswith("pass") for word in words):
        return True
    if words[-1] in _LAST and not (words[-1] == "token" and words[-2:-1] and words[-2] in _COUNTED):
        return True
    return _ALWAYS.search("_".join(words)) is not None or _abbreviates_secret_option(name)


def _abbreviates_secret_option(name: str) -> bool:
    spelled = name.replace("_", "-")
    return any(option.startswith(spelled) and len(spelled) > option.rindex("-") + 1 for option in OPTIONS)


def redacted_variable(name: str, value: str) -> str:
    """Redact the value of an environment variable.

    >>> redacted_variable("DB_PASSWORD", "x"), redacted_variable("MAX_TOKENS", "8k")
    ('<redacted>', '8k')
    """
    if not value or (name.lower().endswith("tokens") and _SIZE.fullmatch(value)):
        return value
    return REDACTED if names_secret(name, variable=True) else redacted_text(value)


def redacted_words(words: Sequence[str]) -> list[str]:
    """Redact the words of a command.

    An option and its secret become one word, so that no parser takes ``<redacted>`` for a word of the command.
    """
    redacted: list[str] = []
    # whether the next word is a secret, and whether those after it may be too
    awaited = several = False
    for place, word in enumerate(words):
        if place and words[place - 1].endswith("sshpass") and word.startswith("-p"):
            redacted.append(f"-p{REDACTED}")
            awaited, several = word == "-p", False
            continue
        if awaited and not _is_option(word):
            if _OPTION.fullmatch(redacted[-1]):
                redacted[-1] += f"={REDACTED}"
            elif not redacted[-1].endswith(REDACTED):
                redacted.append(REDACTED)
            awaited = several
            continue
        awaited = several = False
        name, equals, value = word.partition("=")
        if _OPTION.fullmatch(name):
            secret = names_secret(name)
            awaited = secret and not equals
            several = awaited and _WORD.findall(name.lower())[-2:-1] == ["api"]  # vLLM takes several keys
            redacted.append(f"{name}={REDACTED if secret and value else redacted_text(value)}" if equals else word)
        elif _VARIABLE.match(word) and not (place and _COMMAND_NEXT.fullmatch(words[place - 1])):
            redacted.append(f"{name}={redacted_variable(name, value)}")
        else:
            awaited = word[-1:] in (":", "=") and names_secret(word)
            several = awaited and "auth" in word.lower()  # Authorization: Bearer x
            redacted.append(redacted_text(word))
    return redacted


def _is_option(word: str) -> bool:
    return word.startswith("--") or re.fullmatch(r"-[A-Za-z]{1,3}", word) is not None


def redacted_tree(value: Any, secret: bool = False) -> Any:
    """Redact a JSON or YAML value at every depth; ``secret``: every scalar in it is a secret."""
    if isinstance(value, Mapping):
        variable = value.get("name") if "value" in value else None  # as Kubernetes writes an environment
        is_secret = {key: secret or names_secret(str(key)) for key in value}
        if isinstance(variable, str) and names_secret(variable, variable=True):
            is_secret["value"] = True
        return {key: redacted_tree(inner, is_secret[key]) for key, inner in value.items()}
    if isinstance(value, list):
        if not secret and all(isinstance(item, str) for item in value):
            return redacted_words(value)
        return [redacted_tree(item, secret) for item in value]
    if secret and isinstance(value, str | int | float) and not isinstance(value, bool):
        return REDACTED
    return redacted_text(value) if isinstance(value, str) else value


def redacted_text(text: str) -> str:
    """Redact one word, which may be an address, JSON, a header, or a command in quotes.

    YAML, and text that is no command or too long for one, are redacted as a whole where they could hold a secret.
    """
    if not _MARK.search(text):
        return text
    if text.lstrip()[:1] in ("{", "["):
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError):
            return REDACTED
        clean = redacted_tree(tree)
        return text if clean == tree else json.dumps(clean, ensure_ascii=False)
    text = _HEADER.sub(lambda match: f"{match[1] or match[2]}{REDACTED}", text)
    if text.split() == [text]:
        text = _UP_TO_AT.sub(lambda part: _USER.sub(rf"\1{REDACTED}@", part[0]), text)
        return _without_pairs(_USER_ALONE.sub(f"{REDACTED}@", text))
    if "\n" in text and _YAML.search(text):
        return REDACTED
    try:
        commands = list(split_commands(text))
    except InvalidInput:
        return REDACTED
    clean = [redacted_words(words) for words in commands]
    return text if clean == commands else join_commands(clean)


def _without_pairs(text: str) -> str:
    """Redact the values of secret names in a text without spaces: name=value, name: value."""
    value = _PARAMETER if "://" in text else _VALUE
    pieces, end = [], 0
    for pair in _PAIR.finditer(text):
        if pair.start() < end or not names_secret(pair["name"], variable=pair["name"].isupper()):
            continue
        match = value.match(text, pair.end())
        if match:
            quote = match[0][:1] if match[0][:1] in "\"'" else ""
            pieces += [text[end : pair.end()], quote, REDACTED, quote]
            end = match.end()
    return "".join([*pieces, text[end:]])
