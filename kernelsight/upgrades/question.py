"""The question of an upgrade, a row of ``upgrade_questions``: a deployment with its load, and two engines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
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
    """An upgrade: flags of deployment and load, both engines as ``engine:version``, and flags that change."""

    flags: Mapping[str, Any]
    engine_from: str
    engine_to: str
    changes: Mapping[str, Any] = MappingProxyType({})  # flags after where they differ; None: unset

    @classmethod
    def of(
        cls, flags: Mapping[str, Any], engine_from: str | None, engine_to: str | None, launch_to: str | None = None
    ) -> Question:
        """Return the question; ``launch_to``: the launch line after, where it changes. An end that is unset is the
        version in its line. Without one, two lines run the same version, and one line the newest of the sweeps after.

        InvalidInput: ``engine_from``, the flags and their launch line have no version, or ``launch_to`` no line before.

        >>> Question.of({"engine": "vllm", "engine_version": "0.24"}, None, "vllm:0.31").engine_from
        'vllm:0.24'
        """
        if launch_to is not None and flags.get("launch") is None:
            raise InvalidInput("--to-launch needs --launch, the launch line before; give both.")
        before = with_launch_line(flags)
        after = before if launch_to is None else with_launch_line({**flags, "launch": launch_to})
        engine_from = engine_from or _engine_of(before)
        if launch_to is not None:
            engine_to = engine_to or _engine_of(after)
            engine = str(after.get("engine", "vllm"))
            if engine_to is None and engine_from and read_engine(engine_from)["engine"] == engine:
                engine_to = engine_from
            elif engine_to is None:
                engine_from, engine_to = engine_from or _newest(before.get("engine", "vllm")), _newest(engine)
        if engine_from is None:
            raise InvalidInput(
                "the version before is unset; give --from ENGINE:VERSION, such as vllm:0.24, or a launch file "
                "whose image has a version."
            )
        changes = {
            name: after.get(name)
            for name in {**before, **after}
            if name not in ENGINE
            and (before.get(name) != after.get(name) or (after is not before and name in BACKENDS))
        }
        return cls(before, engine_from, engine_to or _newest(read_engine(engine_from)["engine"]), changes)

    def as_row(self, question_id: str) -> dict[str, Any]:
        """Return its row of ``upgrade_questions``."""
        texts = {"flags": object_text(self.flags), "changes": object_text(self.changes) if self.changes else None}
        return {"question_id": question_id, **self._asdict(), **texts}

    @property
    def sides(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The flags before and after; InvalidInput, UnknownName: an engine that is not given, or not known."""
        engines = [read_engine(text) for text in (self.engine_from, self.engine_to)]
        before = {name: value for name, value in self.flags.items() if name not in ENGINE}
        same = engines[0]["engine"] == engines[1]["engine"]
        kept = {name: value for name, value in before.items() if same or name not in BACKENDS}
        after = {name: value for name, value in {**kept, **self.changes}.items() if value is not None}
        return before | engines[0], after | engines[1]

    @property
    def changed(self) -> list[tuple[str, Any, Any]]:
        """Flags that change: name, before, after; None: unset."""
        ends = [(name, self.flags.get(name), value) for name, value in self.changes.items()]
        return [(name, before, after) for name, before, after in ends if before != after]


ENGINE = ("engine", "engine_version")
# tags of images that name no version
NEWEST_TAGS = ("latest", "nightly")


def question_of(row: Mapping[str, Any]) -> Question:
    """Return the question of a row of ``upgrade_questions``; InvalidInput: its flags are not a JSON object.

    >>> question_of({"flags": '{"gpu": "l4"}', "engine_from": "vllm:0.24", "engine_to": "vllm:0.31"}).sides[1]
    {'gpu': 'l4', 'engine': 'vllm', 'engine_version': '0.31'}
    """
    flags, changes = (read_flags(row, "upgrade_questions", name) for name in ("flags", "changes"))
    question = Question.of(flags, row["engine_from"], row["engine_to"], changes.pop("launch", None))
    return question._replace(changes={**question.changes, **changes})


def _engine_of(flags: Mapping[str, Any]) -> str | None:
    """Return engine and version of flags as ENGINE:VERSION, or None."""
    return f"{flags.get('engine', 'vllm')}:{flags['engine_version']}" if flags.get("engine_version") else None


def newest_swept(engine: str) -> str | None:
    """Return the newest version of an engine in the sweeps."""
    return next((row["swept_to"] for row in facts("engine_versions").to_pylist() if row["engine"] == engine), None)


def _newest(engine: str) -> str:
    return f"{engine}:{newest_swept(engine)}"


def read_engine(text: str) -> dict[str, str]:
    """Return the flags of ENGINE:VERSION, or of an image; tags that name no version are the newest of the sweeps.

    InvalidInput, UnknownName: it is neither, or the image's tag is not the engine's version.

    >>> read_engine("vllm/vllm-openai:v0.24.0")
    {'engine': 'vllm', 'engine_version': '0.24.0'}
    """
    image = str(text).strip()
    _path, slash, name = image.partition("@")[0].rpartition("/")
    engine, colon, version = name.partition(":")
    program, tag = program_of_image(image) if slash or engine not in ENGINES else (None, None)
    if program:
        engine = program.engine if program.engine in ENGINES else program.title or engine
        version = tag or (version if version in NEWEST_TAGS and program.versioned else "")
        if engine in ENGINES and not version:
            raise InvalidInput(
                f"the tag of the image {shown(text)} is no version of {engine}; give {_newest(engine)}, or its own."
            )
    elif slash or not colon or not version.strip():
        number = engine if re.fullmatch(r"v?\d[\w.]{0,40}", engine) else "0.24"
        raise InvalidInput(
            f"an engine is given as {shown(text)}; give ENGINE:VERSION, such as vllm:{number}, or its image."
        )
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES, f"Known: {', '.join(ENGINES)}.")
    newest = newest_swept(engine) if version.strip() in NEWEST_TAGS else None
    return {"engine": engine, "engine_version": newest or version.strip()}


def word(value: Any) -> str | None:
    """Return a setting's value as text, switches as true and false; None: unset."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def stated(value: Any) -> str:
    """Return a setting's value as text for a sentence."""
    return word(value) or "unset"


class Limit(NamedTuple):
    """A change of a metric that must not happen, such as tpot_p99:+5%."""

    metric: str  # of METRICS
    share: float  # the change as a share of the value before: above 0 a rise, below 0 a fall
    sure: bool = False  # passed only where the whole 90 % interval of the change lies beyond

    def is_passed_by(self, row: Mapping[str, Any]) -> bool:
        """Return whether the change of a metric, a row of ``Upgrade.metrics``, is beyond the limit."""
        change = row["change"] if not self.sure else row["low"] if self.share > 0.0 else row["high"]
        if change is None or not row["from"]:
            return False
        return change / row["from"] > self.share if self.share > 0.0 else change / row["from"] < self.share


def read_limits(texts: str | list[str] | tuple[str, ...] | None) -> list[Limit]:
    """Return the limits of --fail-if; InvalidInput, UnknownName: a text that is none."""
    limits = []
    for text in [texts] if isinstance(texts, str) else texts or ():
        name, _, change = text.partition(":")
        metric = name if name in METRICS else f"{name}_ms"
        if metric not in METRICS:
            names = [known.removesuffix("_ms") for known in METRICS]
            raise unknown("metric", name, names, f"Known: {', '.join(names)}.")
        found = re.fullmatch(r"([+-]\d{1,6}(?:\.\d{1,9})?)%(:sure)?", change.strip())
        share = float(found[1]) / 100.0 if found else 0.0
        if not found or not share:
            raise InvalidInput(
                f"--fail-if {shown(text)} states no change; give METRIC:+N% or METRIC:-N%, or METRIC:+N%:sure to fail "
                "only where the whole interval is beyond it."
            )
        limits.append(Limit(metric, share, bool(found[2])))
    return limits
