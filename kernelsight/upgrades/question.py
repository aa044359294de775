"""The question of an upgrade, a row of ``upgrade_questions``: a deployment with its load, and two engines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput, shown, unknown
from kernelsight.scenario.flags import ENGINES
from kernelsight.scenario.launch.deployments import with_launch_line
from kernelsight.scenario.launch.programs import program_of_image
from kernelsight.scenario.scenario_rows import BACKENDS
from kernelsight.scenario.stated_flags import object_text, read_flags

# metrics of the answer: columns of scenario_summary
METRICS = ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "output_throughput", "capacity")


class Question(NamedTuple):
    """An upgrade: flags of deployment and load, and both engines as ``engine:version``."""

    flags: Mapping[str, Any]
    engine_from: str
    engine_to: str

    @classmethod
    def of(cls, flags: Mapping[str, Any], engine_from: str | None, engine_to: str | None) -> Question:
        """Return the question; an end that is unset is the version in the flags, or the newest one of the sweeps.

        InvalidInput: neither ``engine_from`` nor the flags or their launch line have a version.

        >>> Question.of({"engine": "vllm", "engine_version": "0.24"}, None, "vllm:0.31").engine_from
        'vllm:0.24'
        """
        flags = with_launch_line(flags)
        if engine_from is None:
            if not flags.get("engine_version"):
                raise InvalidInput(
                    "the version before is unset; give --from ENGINE:VERSION, such as vllm:0.24, or a launch file "
                    "whose image has a version."
                )
            engine_from = f"{flags.get('engine', 'vllm')}:{flags['engine_version']}"
        engine = read_engine(engine_from)["engine"]
        swept = {row["engine"]: row["swept_to"] for row in facts("engine_versions").to_pylist()}
        return cls(flags, engine_from, engine_to or f"{engine}:{swept[engine]}")

    def as_row(self, question_id: str) -> dict[str, Any]:
        """Return its row of ``upgrade_questions``."""
        return {"question_id": question_id, **self._asdict(), "flags": object_text(self.flags)}

    @property
    def sides(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The flags before and after; InvalidInput, UnknownName: an engine that is not given, or not known."""
        engines = [read_engine(text) for text in (self.engine_from, self.engine_to)]
        kept = {name: value for name, value in self.flags.items() if name not in ("engine", "engine_version")}
        own = {name: value for name, value in kept.items() if name not in BACKENDS}
        return kept | engines[0], (kept if engines[0]["engine"] == engines[1]["engine"] else own) | engines[1]


def question_of(row: Mapping[str, Any]) -> Question:
    """Return the question of a row of ``upgrade_questions``; InvalidInput: its flags are not a JSON object.

    >>> question_of({"flags": '{"gpu": "l4"}', "engine_from": "vllm:0.24", "engine_to": "vllm:0.31"}).sides[1]
    {'gpu': 'l4', 'engine': 'vllm', 'engine_version': '0.31'}
    """
    return Question(read_flags(row, "upgrade_questions", "flags"), row["engine_from"], row["engine_to"])


def read_engine(text: str) -> dict[str, str]:
    """Return the flags of an engine and its version; InvalidInput, UnknownName: it is not ENGINE:VERSION, or an image.

    >>> read_engine("vllm/vllm-openai:v0.24.0")
    {'engine': 'vllm', 'engine_version': '0.24.0'}
    """
    engine, colon, version = str(text).strip().partition(":")
    program, tag = program_of_image(str(text).strip()) if "/" in engine else (None, None)
    if program and tag:
        engine, version = program.engine, tag
    elif not colon or not version.strip():
        number = engine if re.fullmatch(r"v?\d[\w.]{0,40}", engine) else "0.24"
        raise InvalidInput(f"an engine is given as {shown(text)}; give ENGINE:VERSION, such as vllm:{number}.")
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES, f"Known: {', '.join(ENGINES)}.")
    return {"engine": engine, "engine_version": version.strip()}


class Limit(NamedTuple):
    """A change of a metric that must not happen, such as tpot_p99:+5%."""

    metric: str  # of METRICS
    share: float  # the change as a share of the value before: above 0 a rise, below 0 a fall

    def is_passed_by(self, change: float | None, before: float | None) -> bool:
        """Return whether a change from ``before``, in the metric's unit, is beyond the limit."""
        if change is None or not before:
            return False
        return change / before > self.share if self.share > 0.0 else change / before < self.share


def read_limits(texts: str | list[str] | tuple[str, ...] | None) -> list[Limit]:
    """Return the limits of --fail-if; InvalidInput, UnknownName: a text that is none."""
    limits = []
    for text in [texts] if isinstance(texts, str) else texts or ():
        name, _, change = text.partition(":")
        metric = name if name in METRICS else f"{name}_ms"
        if metric not in METRICS:
            names = [known.removesuffix("_ms") for known in METRICS]
            raise unknown("metric", name, names, f"Known: {', '.join(names)}.")
        found = re.fullmatch(r"[+-]\d{1,6}(\.\d{1,9})?%", change.strip())
        share = float(found[0].rstrip("%")) / 100.0 if found else 0.0
        if not share:
            raise InvalidInput(f"--fail-if {shown(text)} states no change; give METRIC:+N% or METRIC:-N%.")
        limits.append(Limit(metric, share))
    return limits
