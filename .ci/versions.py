"""Installs the wheel under every Python that is here, with the newest and the lowest dependencies, and runs it.

python .ci/versions.py [3.11 3.12 ...] [--keep FOLDER]

A version of Python without an interpreter here is resolved only, as are wheels for 64-bit ARM. Prints a line a check;
exits 1 if one fails. Needs uv (``pip install uv``) and a package index.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
ARM = "aarch64-unknown-linux-gnu"
LOAD = "--model qwen3-0.6b --gpu l4 --request-rate 20 --num-prompts 4 --isl 64 --osl 4"
SMOKE = (
    "--version",
    "tables --format csv",
    "predict --model qwen3-0.6b --gpu l4 --context-len 100 --format json",
    f"simulate {LOAD} --format json -o run.duckdb",
    "sql select|count(*)|from|kernel_breakdown --db run.duckdb --format csv",
)
Check = tuple[str, bool, str]  # what, whether it holds, the last line that was said


def run(*words: object, folder: Path = ROOT) -> tuple[bool, str]:
    """Run a command; return whether it succeeded, and all that it said."""
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def uv(*words: object) -> tuple[bool, str]:
    """Run uv of this interpreter."""
    return run(sys.executable, "-m", "uv", *words)


def interpreter(version: str) -> str | None:
    """Return the interpreter of a version that is here and runs."""
    places = [shutil.which(f"python{version}"), *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for place in filter(None, places):
        found, said = run(place, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        if found and said == version:
            return place
    return None


def smoke(python: str, wheel: Path, folder: Path, *how: str) -> Iterator[Check]:
    """Yield whether the wheel can be installed by an interpreter, and whether its commands run."""
    name = f"{folder.name} {' '.join(how)}".strip()
    home = folder / "environment"
    made, said = uv("venv", "--python", python, home)
    if made:
        made, said = uv("pip", "install", "--python", home / "bin" / "python", *how, wheel)
    yield f"{name}: installed", made, last(said)
    if not made:
        return
    _, listed = uv("pip", "list", "--python", home / "bin" / "python", "--format", "freeze")
    print(f"  {name}: {' '.join(listed.split())}", flush=True)
    for words in SMOKE:
        started = time.monotonic()
        command = [word.replace("|", " ") for word in words.split(" ")]
        ran, said = run(home / "bin" / "kernelsight", *command, folder=folder)
        yield f"{name}: {command[0]} ({time.monotonic() - started:.0f} s)", ran, last(said)


def resolved(version: str, platform: str | None) -> Check:
    """Return whether wheels of every dependency exist for a version of Python on a platform."""
    where = ["--python-platform", platform] if platform else []
    words = [
        "pip",
        "compile",
        ROOT / "pyproject.toml",
        "--python-version",
        version,
        "--only-binary",
        ":all:",
        "--quiet",
    ]
    found, said = uv(*words, *where)
    return f"{version}: wheels for {platform or 'this platform'}", found, last(said)


def last(said: str) -> str:
    """Return the last line of what a command said."""
    return said.splitlines()[-1] if said else ""


def checks(versions: list[str], folder: Path) -> Iterator[Check]:
    """Yield every check."""
    built, said = uv("build", "--wheel", "--out-dir", folder, ROOT)
    yield "wheel built", built, last(said)
    [wheel] = folder.glob("*.whl")
    lowest = True
    for version in versions:
        python = interpreter(version)
        if python:
            place = folder / version
            place.mkdir()
            yield from smoke(python, wheel, place)
            if lowest:
                place = folder / f"{version}-lowest"
                place.mkdir()
                yield from smoke(python, wheel, place, "--resolution", "lowest-direct")
                lowest = False
        else:
            yield resolved(version, None)
        yield resolved(version, ARM)


def main() -> int:
    """Run the checks and print a line for each; return 1 if one fails."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("versions", nargs="*", default=VERSIONS)
    arguments.add_argument("--keep", type=Path, help="folder for the environments, which stays")
    asked = arguments.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for what, holds, said in checks(list(asked.versions), folder):
            failed += not holds
            print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else ': ' + said}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
