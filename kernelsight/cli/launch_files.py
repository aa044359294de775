"""What `simulate --write-launch` and `size -o FOLDER/` write: the files that launch a deployment, none of them anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.present.output import note
from kernelsight.scenario.flags import FLAGS, LOAD_FLAGS

if TYPE_CHECKING:
    from kernelsight.session import Session


def write_launch(session: Session, form: str, flags: Mapping[str, Any], output: str | None) -> None:
    """Write the files of a form to a new file, or to stdout; ``flags``: of the deployment."""
    text = _text(session, form, flags)
    if output is None:
        print(text, end="")
    else:
        _write({Path(output): text})


def folder_of(output: str | None) -> Path | None:
    """Return the folder that ``-o FOLDER/`` names; None: no folder. InvalidInput: its files are there already."""
    from kernelsight.scenario.launch.written import FORMS

    if not output or not output.endswith("/"):
        return None
    _check([Path(output) / f"{form}.yaml" for form in FORMS])
    return Path(output)


def write_sized(session: Session, folder: Path, flags: Mapping[str, Any], chosen: Mapping[str, Any] | None) -> None:
    """Write the files of a sizing's chosen row in every form that can state it; ``flags``: those of the question."""
    from kernelsight.scenario.launch.written import FORMS

    if chosen is None:
        note(f"{folder}/: nothing is written, since no deployment was chosen")
        return
    own = {name: value for name, value in flags.items() if name not in LOAD_FLAGS}
    own |= {name: value for name, value in chosen.items() if name in FLAGS and name not in (*LOAD_FLAGS, "tier")}
    names = [name for name in ("prefill_replicas", "decode_replicas") if name in own] or ["replicas"]
    own |= {name: chosen["instances"] * (own.get(name) or 1) for name in names}
    texts = {}
    for form in FORMS:
        try:
            texts[folder / f"{form}.yaml"] = _text(session, form, own)
        except InvalidInput as problem:
            note(f"{form}.yaml is not written: {problem}")
    folder.mkdir(parents=True, exist_ok=True)
    _write(texts)


def _text(session: Session, form: str, flags: Mapping[str, Any]) -> str:
    """Return the text of the files of a form; notes say which flags no field of it expresses."""
    from kernelsight.scenario.launch.deployments import with_launch_line
    from kernelsight.scenario.launch.written import deployment_files
    from kernelsight.scenario.scenario_rows import model_rows, normalise, resolve_names

    stated = normalise(with_launch_line(flags))
    asked, resolved = stated.get("model"), resolve_names(session, stated)
    model = model_rows(session, resolved["model"])[0] if asked else None
    text, unsaid = deployment_files(form, resolved, model, str(asked))
    for name, value in unsaid.items():
        note(f"{form}: no option of the engine says {name} {value}; state it beside --launch when the file is read")
    return text


def _check(paths: list[Path]) -> None:
    for path in paths:
        if path.exists() or path.is_symlink():
            raise InvalidInput(f"-o {path} is there already, and is not overwritten; give another place.")


def _write(texts: Mapping[Path, str]) -> None:
    """Write texts to new files."""
    _check(list(texts))
    for path, text in texts.items():
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise RunFailed(f"{path} could not be written: {error.strerror}.") from None
