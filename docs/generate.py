"""Writes outputs of examples and recorded figures of benches into the pages of the documentation.

    python docs/generate.py            # everything
    python docs/generate.py PAGE ...   # the figures and examples of these pages
    python docs/generate.py --figures  # the figures of benches only (docs/figures/blocks.py); runs no example

An example is a fenced block after one of these comments. Each page runs in a separate folder:

    <!-- run -->             `kernelsight` commands (bash) or Python, run in this process
    <!-- run COMMAND -->     one command that the page shows elsewhere; without a block
    <!-- file NAME -->       written to NAME before the next block runs
    <!-- output 1-4 "TTFT" -->  replaced by the last output: lines 1 to 4 and those that begin with TTFT; or all lines
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from figures.blocks import with_figures

from kernelsight.cli.main import main as kernelsight_main

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"(<!-- (run|file|output)([^\n]*?) -->\n)(?:(\s*```(\w*)\n)(.*?)(```\n))?", re.S)
FENCE = re.compile(r"^```bash[^\n]*\n(.*?)^```", re.S | re.M)
# ---------------------------------------------------------------- examples


def pages() -> list[Path]:
    """Return every page of the repository."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def with_examples(text: str) -> str:
    """Return a page after running its examples, with each output block replaced by the new output."""
    namespace: dict[str, Any] = {"__name__": "example"}
    printed = [""]

    def replaced(match: re.Match[str]) -> str:
        comment, kind, options, head, language, body, tail = match.groups()
        if kind == "run" and options:
            printed[0] = run_commands(options)
            return match.group()
        if head is None:
            raise ValueError(f"no fenced block follows {comment.strip()}.")
        if kind == "file":
            target = Path(options.strip())
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(body, encoding="utf-8")
        elif kind == "run":
            printed[0] = run_python(body, namespace) if language == "python" else run_commands(body)
        else:
            body = chosen_lines(printed[0], options)
        return comment + head + body + tail

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return BLOCK.sub(replaced, text)


def commands(body: str) -> Iterator[list[str]]:
    """Yield the words of each command of a bash block; a command continues after a backslash and inside quotes.

    >>> list(commands("kernelsight sql 'select 1\\n  as one'  # a comment\\nkernelsight tables"))
    [['kernelsight', 'sql', 'select 1\\n  as one'], ['kernelsight', 'tables']]
    """
    text = ""
    for line in body.replace("\\\n", " ").splitlines():
        text += line + "\n"
        with contextlib.suppress(ValueError):  # no closing quotation: the command continues
            if words := shlex.split(text, comments=True):
                yield words
            text = ""
    if text:
        raise ValueError(f"no closing quotation in the example {text!r}.")


def run_commands(body: str) -> str:
    """Run `kernelsight` commands in this process; return the last one's stdout."""
    out = io.StringIO()
    for words in commands(body):
        if words[0] != "kernelsight":
            raise ValueError(f"examples run kernelsight alone, and this one begins with {words[0]!r}.")
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = kernelsight_main(words[1:])
            except SystemExit as stop:  # argparse refuses wrong words
                status = stop.code
        if status:
            raise RuntimeError(f"`{shlex.join(words)}` ended with {status}: {err.getvalue()}")
    return out.getvalue()


def run_python(body: str, namespace: dict[str, Any]) -> str:
    """Run Python code in its page's namespace; return its stdout."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(body, "example", "exec"), namespace)
    return out.getvalue()


def chosen_lines(printed: str, selection: str) -> str:
    """Return the lines in ranges such as ``1-3``, and those that begin with quoted texts; ``...`` for omitted lines.

    >>> chosen_lines("a\\nb\\nc\\nd\\ne\\n", ' 1-2 4 "e"')
    'a\\nb\\n...\\nd\\ne\\n'
    """
    lines = printed.rstrip("\n").splitlines()
    starts = re.findall(r'"([^"]+)"', selection)
    numbers = re.findall(r"(\d+)(?:-(\d+))?", re.sub(r'"[^"]+"', "", selection))
    ranges = [(int(first), int(last or first)) for first, last in numbers]
    if missing := [start for start in starts if not any(line.startswith(start) for line in lines)]:
        raise ValueError(f"no line of the output begins with {missing[0]!r}; it is:\n{printed}")
    parts: list[str] = []
    for number, line in enumerate(lines, start=1):
        kept = any(first <= number <= last for first, last in ranges) or line.startswith(tuple(starts))
        if kept or not selection.strip():
            parts.append(line)
        elif parts[-1:] != ["..."]:
            parts.append("...")
    return "\n".join([*parts, ""])


def main() -> None:
    """Write figures and outputs of all pages, or of the named ones."""
    parser_of_pages = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser_of_pages.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: all")
    parser_of_pages.add_argument("--figures", action="store_true", help="figures of benches only; runs no example")
    arguments = parser_of_pages.parse_args()
    for path in arguments.pages or pages():
        before = path.read_text(encoding="utf-8")
        after = with_figures(before if arguments.figures else with_examples(before))
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"{path}: renewed", file=sys.stderr)


if __name__ == "__main__":
    main()
