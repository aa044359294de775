"""Pages in a headless browser, and what tests of them share."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed: apt-get install chromium")
# what a page fetches: addresses in attributes, imports and style sheets
FETCHED = re.compile(
    r"""(?:src|href|action|data)\s*=\s*["']?\s*(?!data:)[\w/.:#]|@import|url\(\s*["']?(?!data:)http""", re.I
)


def without_scripts(page: str) -> str:
    return re.sub(r"<script.*?</script>", "", page, flags=re.S)


def open_in_browser(path: Path, folder: Path) -> tuple[str, list[str]]:
    """Return the page's elements once all is drawn, and what the console says."""
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1240,2400", "--enable-logging=stderr"]
    words += ["--virtual-time-budget=10000", "--disable-background-networking", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [str(BROWSER), *words, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def specs_of(page: Path) -> list[dict[str, Any]]:
    found = re.findall(r'<script type="application/json" id="figure-\d+-spec">(.*?)</script>', page.read_text(), re.S)
    return [json.loads(text) for text in found]
