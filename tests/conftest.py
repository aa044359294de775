"""What holds for all tests: none depends on the machine's speed; how many worlds are drawn; how workers share out."""

from __future__ import annotations

import os

# before numpy: threads of OpenBLAS wait for each other actively, which takes a hundred times the time of one thread as
# soon as two workers, or anything else, share the cores
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gc
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelsight.session import Session, connect
from tests.known_queries import KnownQueries, asked_anew
from tests.special_files import interrupted

sys.path.append(str(Path(__file__).resolve().parents[1] / "benches"))
import record

# percent of the random worlds that tests draw; .ci/run draws them all
WORLDS_PERCENT = float(os.environ.get("KERNELSIGHT_WORLDS", "5"))
# enough for every planted fault that no worked-out world shows; rarer ones have a worked-out world
LEAST_WORLDS = 60
LEFT_TO_CI = pytest.mark.skip(reason=".ci/run runs it (KERNELSIGHT_WORLDS=100)")
QUERIES = KnownQueries()
QUERIES.start()

# tests see what nodes compute, not what an earlier run kept
os.environ["KERNELSIGHT_CACHE"] = ""
# a check of what is handed in draws the same worlds each time (`CI`, which such checks set); everybody else new ones
settings.register_profile("any machine", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("any machine")


def random_worlds(count: int, few: int | None = None) -> settings:
    """Return the settings of a test on ``count`` random worlds, of which KERNELSIGHT_WORLDS percent are drawn.

    The environment variable may be above 100, for a longer search. ``few``: how many are enough below 100, of worlds
    that differ little, as damaged files do.
    """
    drawn = max(math.ceil(count * WORLDS_PERCENT / 100), min(count, LEAST_WORLDS))
    drawn = min(drawn, few) if few and WORLDS_PERCENT < 100 else drawn
    return settings(max_examples=drawn, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def in_time() -> Iterator[None]:
    """Fail a test that waits for a pipe, or reads a device without end, instead of waiting with it."""
    yield from interrupted()


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session that nothing is given to."""
    with connect() as opened:
        yield opened


@pytest.fixture(scope="session")
def kept_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder for what this process keeps in this run."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def kept_trials(kept_folder: Path) -> Iterator[None]:
    """Keep what deployments serve at a rate for the next question of this run, as a user's questions do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELSIGHT_CACHE", str(kept_folder))
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Keep what Python and JAX compile and queries gave for other workers, commands of tests, and the next run."""
    if hasattr(config, "cache"):
        QUERIES.folder = config.cache.mkdir("known-queries")
        keep_bytecode(config.cache.mkdir("bytecode"))
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(config.cache.mkdir("compiled-by-jax")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


def keep_bytecode(folder: Path) -> None:
    """Keep what Python compiles in a folder where nothing may be written beside the sources.

    Without it each worker writes the asserts of all tests anew, and each command compiles the package.
    """
    if sys.dont_write_bytecode:
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(folder)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run named tests, and all on a machine of one core, in this process; else a worker a core."""
    named = any("::" in argument for argument in config.args)
    return 0 if named or len(os.sched_getaffinity(0)) == 1 else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Refuse files of tests that cannot be imported: their doctests would be skipped, and with them all their tests."""
    report = yield
    if report.skipped and collector.path.name.startswith("test_") and "unable to import module" in str(report.longrepr):
        report.outcome = "failed"
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = any("::" in argument for argument in config.args)
    if WORLDS_PERCENT < 100 and not named:
        for item in items:
            if item.get_closest_marker("whole"):
                item.add_marker(LEFT_TO_CI)


@settings(max_examples=1, database=None)
@given(st.none())
def an_example(_: None) -> None:
    """Draw one example."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    # hypothesis makes its random numbers with its first example, and asks the garbage collector who holds them: a
    # frozen module holds nothing in its eyes, and a warning would fail the test
    an_example()
    # what is there by now stays to the end: it is looked at no more, and the rest less often
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    QUERIES.anew = asked_anew(item.path)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not worker_of(session.config):
        QUERIES.tidy()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List results of benches that are older than what they rest on: no test fails for it, pages say so too."""
    stale = record.stale()
    if stale and not worker_of(terminalreporter.config):
        terminalreporter.section(f"{len(stale)} results of benches are older than the program (benches/record.py)")
        for name, parts in stale.items():
            terminalreporter.line(f"{name}: before changes to {', '.join(parts)}")


def worker_of(config: pytest.Config) -> str:
    """Return the name of the worker that this process is, or nothing."""
    return getattr(config, "workerinput", {}).get("workerid", "")
