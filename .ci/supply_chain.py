"""Builds the wheel twice and checks it: equal bytes, licences of dependencies, an SBOM, known vulnerabilities.

python .ci/supply_chain.py [-o dist]

Writes the wheel, ``sbom.cdx.json`` (CycloneDX) and ``licences.csv`` of the wheel and its dependencies into the folder.
Two builds must be equal, every dependency must have a licence that does not bind users of the library (``REFUSED``),
and no version may have a known vulnerability; reports if the advisories cannot be reached. The tools are installed into
a separate environment. Exits 1 if a check fails. Needs a package index.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("cyclonedx-bom>=7", "pip-licenses>=5", "pip-audit>=2.9", "hatchling>=1.27", "build>=1.2")
# 1 January 2025: any fixed moment, so that archives hold the same times
EPOCH = "1735689600"
# licences that would bind a program that uses the library; LGPL does not bind if a library is only imported
REFUSED = ("AGPL", "GNU AFFERO", "GPL-2", "GPL-3", "GNU GENERAL PUBLIC", "SSPL", "BUSL", "UNKNOWN")
# for packages that ship GCC's runtime libraries under its exception, or name it beside their own licence
ALLOWED_BESIDE = ("WITH GCC-EXCEPTION", "GCC-EXCEPTION", "LESSER")
Check = tuple[str, bool, str]


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository's folder; return its result."""
    return subprocess.run(
        [str(word) for word in words], cwd=ROOT, capture_output=True, text=True, env=os.environ | environment
    )


def environment_of(folder: Path, *packages: object) -> Path:
    """Create an environment with some packages; return its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    done = run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    if done.returncode:
        raise SystemExit(f"the environment could not be made: {done.stderr.strip().splitlines()[-1]}")
    return python


def built(tools: Path, folder: Path) -> dict[str, str]:
    """Build wheel and source archive into a folder; return their names and SHA-256."""
    done = run(tools, "-m", "build", "--outdir", folder, ROOT, SOURCE_DATE_EPOCH=EPOCH)
    if done.returncode:
        raise SystemExit(f"the build failed: {done.stdout.strip().splitlines()[-1]}")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def builds_are_equal(tools: Path, first: Path, second: Path) -> Check:
    """Check that two builds have equal bytes."""
    one, other = built(tools, first), built(tools, second)
    return "two builds are the same bytes", one == other, ", ".join(f"{name} {sha[:12]}" for name, sha in one.items())


def licences(tools: Path, python: Path, target: Path) -> Check:
    """Write the licence of every package, and check that none is of ``REFUSED``."""
    words = ("--python", python, "--from", "mixed", "--format", "json", "--with-urls")
    rows = json.loads(run(tools.with_name("pip-licenses"), *words).stdout)
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["Name", "Version", "License", "URL"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    bad = [f"{row['Name']}: {row['License']}" for row in rows if is_refused(row["License"])]
    names = ", ".join(sorted({row["License"].splitlines()[0] for row in rows}))
    return f"licences of {len(rows)} packages", not bad, "; ".join(bad) or names


def is_refused(licence: str) -> bool:
    """Return whether a licence binds the user's program or is unknown."""
    words = licence.upper()
    for beside in ALLOWED_BESIDE:
        if beside in words:
            return any(name in words for name in ("AFFERO", "AGPL", "SSPL", "BUSL"))
    return any(name in words for name in REFUSED)


def bill_of_materials(tools: Path, python: Path, target: Path) -> Check:
    """Write the CycloneDX document of an environment; check that it has components."""
    words = (
        "environment",
        "--output-reproducible",
        "--of",
        "JSON",
        "-o",
        target,
        "--pyproject",
        ROOT / "pyproject.toml",
    )
    done = run(tools.with_name("cyclonedx-py"), *words, python)
    if done.returncode:
        return "SBOM", False, done.stderr.strip().splitlines()[-1]
    document = json.loads(target.read_text(encoding="utf-8"))
    return (
        "SBOM",
        bool(document["components"]),
        f"CycloneDX {document['specVersion']}, {len(document['components'])} components",
    )


def vulnerabilities(tools: Path, python: Path) -> Check:
    """Check that no installed package has a known vulnerability."""
    site_packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    done = run(tools.with_name("pip-audit"), "--path", site_packages, "--format", "json", "--progress-spinner", "off")
    if not done.stdout.strip():
        return "known vulnerabilities: NOT CHECKED", True, f"no advisories: {done.stderr.strip().splitlines()[-1]:.120}"
    packages = json.loads(done.stdout)["dependencies"]
    known = sum("vulns" in row for row in packages)  # the others are not on the package index, such as this wheel
    if not known:
        return "known vulnerabilities: NOT CHECKED", True, f"the index has no advisories of {len(packages)} packages"
    rows = [row for row in packages if row.get("vulns")]
    bad = [f"{row['name']} {row['version']}: {', '.join(one['id'] for one in row['vulns'])}" for row in rows]
    return f"known vulnerabilities of {known} packages", not bad, "; ".join(bad) or "none"


def checks(target: Path, folder: Path) -> Iterator[Check]:
    """Yield the result of every check."""
    tools = environment_of(folder / "tools", *TOOLS)
    target.mkdir(parents=True, exist_ok=True)
    yield builds_are_equal(tools, folder / "first", folder / "second")
    [wheel] = (folder / "first").glob("*.whl")
    for path in (folder / "first").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    python = environment_of(folder / "installed", wheel)
    yield licences(tools, python, target / "licences.csv")
    yield bill_of_materials(tools, python, target / "sbom.cdx.json")
    yield vulnerabilities(tools, python)


def main() -> int:
    """Run the checks and print a line for each; return 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist", help="output folder")
    arguments, failed = parser.parse_args(), 0
    with tempfile.TemporaryDirectory() as folder:
        for what, holds, detail in checks(arguments.output.resolve(), Path(folder)):
            failed += not holds
            print(f"{'ok  ' if holds else 'FAIL'} {what}: {detail}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
