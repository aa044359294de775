"""CuPy as measurer, on a fake CuPy that compiles, launches and counts time by what the source says."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.contract import conform
from kernelsight.errors import InvalidInput
from kernelsight.searching.cupy_measurer import measure_with_cupy, read_launch
from tests.asked import refusals

LAUNCH = {
    "kernel": "add",
    "problem_size": [1000],
    "grid_divisors": [["block_size_x", "work"]],
    "arguments": [{"dtype": "float32", "size": 4}, {"dtype": "int32", "value": 4}],
    "samples": 5,
}


class Fake:
    """A CuPy whose kernels write 1 into their first argument and take block x 0.001 ms each launch."""

    def __init__(self) -> None:
        self.now, self.launches, self.options = 0.0, [], []

    def module(self) -> types.ModuleType:
        fake = self
        failed = type("CUDARuntimeError", (RuntimeError,), {})
        broken = type("CompileException", (Exception,), {})

        class RawModule:
            def __init__(self, code: str, options: tuple[str, ...], backend: str) -> None:
                if "error" in code:
                    raise broken("line 1")
                fake.options.append(options)
                self.code = code

            def get_function(self, name: str) -> Any:
                def launch(grid: Any, block: Any, arguments: Any, shared_mem: int) -> None:
                    if "crash" in self.code:
                        raise failed("illegal address")
                    fake.launches.append((name, grid, block))
                    arguments[0][:] = 2.0 if "wrong" in self.code else 1.0
                    fake.now += block[0] * 1e-3

                return launch

        class Event:
            def record(self) -> None:
                self.at = fake.now

            def synchronize(self) -> None: ...

        cuda = types.SimpleNamespace(
            compiler=types.SimpleNamespace(CompileException=broken),
            runtime=types.SimpleNamespace(CUDARuntimeError=failed),
            driver=types.SimpleNamespace(CUDADriverError=failed),
            Device=lambda: types.SimpleNamespace(synchronize=lambda: None),
            Event=Event,
            get_elapsed_time=lambda start, end: end.at - start.at,
        )
        found = types.ModuleType("cupy")
        found.RawModule, found.cuda, found.asarray, found.asnumpy = RawModule, cuda, np.asarray, np.asarray
        return found


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    found = Fake()
    monkeypatch.setitem(sys.modules, "cupy", found.module())
    return found


def candidates(*sources: str | None, **parameters: Any) -> pa.Table:
    given = json.dumps({"block_size_x": 64, "work": 2} | parameters)
    rows = [
        {"space": "add", "candidate_id": f"c{place}", "parameters": given, "source_text": source}
        for place, source in enumerate(sources)
    ]
    return pa.Table.from_pylist(rows, contracts()["kernel_candidates"].schema)


def launch(folder: Path, **more: Any) -> Any:
    np.save(folder / "ones.npy", np.ones(4, np.float32))
    (folder / "launch.json").write_text(json.dumps(LAUNCH | more))
    return read_launch(folder / "launch.json")


def test_a_candidate_is_compiled_with_its_parameters_and_timed(fake: Fake, tmp_path: Path) -> None:
    found = measure_with_cupy(candidates("good", vector="float4"), launch(tmp_path))
    assert found["latency_us"].to_pylist() == pytest.approx([64.0])
    assert found["samples"].to_pylist() == [5]
    assert fake.launches[0] == ("add", (8, 1, 1), (64, 1, 1)), "1000 / (64 x 2), rounded up"
    assert fake.options == [("-Dblock_size_x=64", "-Dwork=2", "-Dvector=float4")]
    conform(found, contracts()["kernel_measurements"])


def test_failures_have_their_status_and_do_not_end_the_measurement(fake: Fake, tmp_path: Path) -> None:
    how = launch(tmp_path, expected={"argument": 0, "file": "ones.npy"})
    found = measure_with_cupy(candidates("error", "crash", "wrong", "good"), how)
    assert found["status"].to_pylist() == ["compile_failed", "runtime_failed", "wrong_result", "ok"]
    assert found["latency_us"].is_null().to_pylist() == [True, True, True, False]


def test_a_candidate_without_source_takes_that_of_the_launch(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "add.cu").write_text("good")
    assert measure_with_cupy(candidates(None), launch(tmp_path, source="add.cu"))["status"].to_pylist() == ["ok"]
    with pytest.raises(InvalidInput, match="candidate c0 has no source_text; name the kernel's file as source"):
        measure_with_cupy(candidates(None), launch(tmp_path))


def test_a_grid_needs_its_parameters(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="divides the grid by tile, which candidate c0 does not have"):
        measure_with_cupy(candidates("good"), launch(tmp_path, grid_divisors=[["tile"]]))


def test_without_cupy_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InvalidInput, match="--measure cupy needs CuPy; install cupy-cuda12x"):
        measure_with_cupy(candidates("good"), launch(tmp_path))


@pytest.mark.parametrize(
    ("change", "sentence"),
    refusals("searching/test_cupy_measurer::test_launches_that_say_too_little_are_refused"),
)
def test_launches_that_say_too_little_are_refused(tmp_path: Path, change: dict, sentence: str) -> None:
    with pytest.raises(InvalidInput) as error:
        launch(tmp_path, **change)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("text", "sentence"), [("{", "is not JSON .line 1"), ("[]", "is no object"), ("{}", "lacks kernel")]
)
def test_files_that_are_no_launch_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "launch.json").write_text(text)
    with pytest.raises(InvalidInput, match=sentence):
        read_launch(tmp_path / "launch.json")
    with pytest.raises(InvalidInput, match="does not exist; --measure cupy needs a JSON file"):
        read_launch(tmp_path / "none.json")
