"""``calibrate import`` as a command: what it refuses, and that nothing half written stays."""

from __future__ import annotations

import pytest

from kernelsight.cli.main import main
from kernelsight.errors import InvalidInput, RunFailed, UnknownName
from kernelsight.fitting.kernel_sweeps.sources import RESEARCH, names

GEMM = {"op_name": "gemm", "kernel_source": "torch.nn.functional.linear", "gemm_dtype": "bfloat16"}
GEMM |= {"m": 16, "n": 4096, "k": 4096, "latency": 0.02}


def test_an_unknown_source_gets_the_nearest(import_from, tmp_path) -> None:
    with pytest.raises(UnknownName, match="unknown source of sweeps 'aiconfig'. Did you mean aiconfigurator"):
        import_from("aiconfig", tmp_path)


@pytest.mark.parametrize("source", names())
def test_a_path_that_is_not_there_is_refused(import_from, tmp_path, source) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        import_from(source, tmp_path / "nowhere")


@pytest.mark.parametrize("source", RESEARCH)
def test_an_installed_package_says_where_research_readers_are(import_from, tmp_path, monkeypatch, source) -> None:
    monkeypatch.setattr("kernelsight.laboratory.is_here", lambda: False)
    with pytest.raises(InvalidInput, match=f"calibrate import {source} is part of the evaluation .* from a checkout"):
        import_from(source, tmp_path)


def test_a_folder_that_cannot_be_written_is_told(put, import_from, tmp_path) -> None:
    root = put("h100_sxm/gemm/vllm", "gemm_perf", GEMM)
    with pytest.raises(InvalidInput, match="folder .* does not exist"):
        import_from("aiconfigurator", root, output=str(tmp_path / "no" / "sweep.parquet"))
    with pytest.raises(InvalidInput, match="ends in '.csv'; use one of .parquet"):
        import_from("aiconfigurator", root, output=str(tmp_path / "sweep.csv"))


def test_a_full_disk_leaves_nothing_behind(put, import_from, tmp_path, monkeypatch) -> None:
    root = put("h100_sxm/gemm/vllm", "gemm_perf", GEMM)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
    with pytest.raises(RunFailed, match="could not be written: No space left on device"):
        import_from("aiconfigurator", root)
    assert not list(tmp_path.glob("*points*"))


def test_the_command_prints_what_it_read_and_kept(put, tmp_path, capsys) -> None:
    root = put("h100_sxm/gemm/vllm", "gemm_perf", GEMM, GEMM | {"m": 0})
    words = [
        "calibrate",
        "import",
        "aiconfigurator",
        str(root),
        "-o",
        str(tmp_path / "sweep.parquet"),
        "--format",
        "csv",
    ]
    assert main(words) == 0
    out, notes = capsys.readouterr()
    assert out.splitlines() == ["family,gpu,read,kept,points,rejected,reason", "gemm,h100_sxm,2,1,1,1,empty_shape"]
    assert "2 rows read, 1 kept as 1 points, 1 rejected; written to" in notes
