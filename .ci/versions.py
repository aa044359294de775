"""Installs the wheel under each available Python, with the newest and the lowest dependencies, and runs its commands.

python .ci/versions.py [3.11 3.12 ...] [--keep FOLDER]

For a Python without an interpreter here, and for 64-bit ARM, dependencies are only resolved. Prints one line per check;
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
Check = tuple[str, bool, str]  # name, whether it holds, the last line of output


def run(*words: object, folder: Path = ROOT) -> tuple[bool, str]:
    """Run a command; return whether it succeeded, and its output."""
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def uv(*words: object) -> tuple[bool, str]:
    """Run uv with this interpreter; return whether it succeeded, and its output."""
    return run(sys.executable, "-m", "uv", *words)


def interpreter(version: str) -> str | None:
    """Return a working interpreter of a Python version; None without one."""
    candidates = [
        shutil.which(f"python{version}"),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
    ]
    for candidate in filter(None, candidates):
        runs, output = run(candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        if runs and output == version:
            return candidate
    return None


def smoke(python: str, wheel: Path, folder: Path, *options: str) -> Iterator[Check]:
    """Yield whether an interpreter can install the wheel, and whether its commands run."""
    name = f"{folder.name} {' '.join(options)}".strip()
    home = folder / "environment"
    made, output = uv("venv", "--python", python, home)
    if made:
        made, output = uv("pip", "install", "--python", home / "bin" / "python", *options, wheel)
    yield f"{name}: installed", made, last(output)
    if not made:
        return
    _, listed = uv("pip", "list", "--python", home / "bin" / "python", "--format", "freeze")
    print(f"  {name}: {' '.join(listed.split())}", flush=True)
    for words in SMOKE:
        started = time.monotonic()
        command = [word.replace("|", " ") for word in words.split(" ")]
        ran, output = run(home / "bin" / "kernelsight", *command, folder=folder)
        yield f"{name}: {command[0]} ({time.monotonic() - started:.0f} s)", ran, last(output)


def resolved(version: str, platform: str | None) -> Check:
    """Return whether every dependency has wheels for a Python version on a platform."""
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
    is_resolved, output = uv(*words, *where)
    return f"{version}: wheels for {platform or 'this platform'}", is_resolved, last(output)


def last(output: str) -> str:
    """Return the last line of a command's output."""
    return output.splitlines()[-1] if output else ""


def checks(versions: list[str], folder: Path) -> Iterator[Check]:
    """Yield the result of every check."""
    built, output = uv("build", "--wheel", "--out-dir", folder, ROOT)
    yield "wheel built", built, last(output)
    [wheel] = folder.glob("*.whl")
    lowest = True
    for version in versions:
        python = interpreter(version)
        if python:
            environment_folder = folder / version
            environment_folder.mkdir()
            yield from smoke(python, wheel, environment_folder)
            if lowest:
                environment_folder = folder / f"{version}-lowest"
                environment_folder.mkdir()
                yield from smoke(python, wheel, environment_folder, "--resolution", "lowest-direct")
                lowest = False
        else:
            yield resolved(version, None)
        yield resolved(version, ARM)


def main() -> int:
    """Run the checks and print a line for each; return 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--keep", type=Path, help="folder for the environments, which is kept")
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for what, holds, output in checks(list(arguments.versions), folder):
            failed += not holds
            print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else ': ' + output}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
