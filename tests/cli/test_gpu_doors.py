"""Names of GPUs: every option that takes one reads each spelling as ``--gpu`` does."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

import kernelsight as ks
from kernelsight.catalog.gpu_names import find_gpu
from kernelsight.catalog.tables import facts
from kernelsight.choices import choices
from kernelsight.cli.calibrate import evaluate, fit, import_sweeps, measure, plan
from kernelsight.cli.search.forecast import gpu_row
from kernelsight.dataflow.locations import folder
from kernelsight.scenario.prices import read_prices
from kernelsight.scenario.scenario_rows import resolve_gpu, resolve_names
from kernelsight.searching.scenarios import as_spelled
from tests.cli.conftest import run_command

SPELLED, PLAIN = "NVIDIA H100 80GB HBM3", "h100_sxm"
NAMES = ("gpu", "prefill_gpu", "train_gpus", "test_gpus", "sources", "prices")
TABLE = "m,n,k,us\n512,4096,4096,50\n"
MAPPED = ("--columns", "family==gemm", "m=m", "n=n", "k=k", "latency_us=us", "dtype==bf16")


def declared() -> set[str]:
    """Return the options that take names of GPUs, by verb or table; the files of ``--gpus`` hold rows of their own."""
    found = set()
    for path in folder("schemas").glob("*.json"):
        contract = json.loads(path.read_text())
        found |= {
            f"{contract['table']} {column['name']}"
            for column in contract.get("options", ())
            if "help" in column
            and (column.get("name") in NAMES or (column.get("name") == "gpus" and "G1" in column.get("metavar", "")))
        }
    verbs = json.loads((Path(ks.__file__).parent / "cli" / "verbs.json").read_text())
    blocks = {**verbs["shared"], **{name: verb.get("options", []) for name, verb in verbs["verbs"].items()}}
    for name, options in blocks.items():
        named = [one for one in options if isinstance(one, dict) and "name" in one]
        found |= {
            f"{name} {one['name']}"
            for one in named
            if one["name"] in NAMES or (one["name"] == "gpus" and one["metavar"] == "A,B")
        }
    return found


def imported(tmp_path: Path, name: str) -> str:
    (tmp_path / "kernels.csv").write_text(TABLE)
    target = tmp_path / "points.parquet"
    answer = run_command(
        "calibrate", "import", "profile", tmp_path / "kernels.csv", "--gpus", name, *MAPPED, "-o", target
    )
    assert answer.status == 0, answer.err
    return pa.parquet.read_table(target)["gpu"].to_pylist()[0]


def planned(session, monkeypatch, name: str) -> str:
    def stop(session, gpu, *rest):
        raise KeyError(gpu)

    monkeypatch.setattr(plan, "served_calls", stop)
    with pytest.raises(KeyError) as found:
        plan.run(Namespace(gpu=name, output="suite.json", models=None, engines=None, gpus=None, pack=None, db=None))
    return found.value.args[0]


def opened(monkeypatch, name: str) -> str:
    from kernelsight.measure.cuda import device

    monkeypatch.setattr(device, "open_gpu", lambda number, gpu: gpu)
    return measure.open_device(Namespace(device=0, gpu=name))


def chosen(monkeypatch, name: str) -> tuple[str, list[str]]:
    monkeypatch.setattr(
        choices, "choice_of", lambda sweeps, family, gpu, gpus, sources, calls: (gpu, list(sources or ()))
    )
    row = {"gpu": name, "calls": None, "sweeps": [], "family": "gemm", "sources": [name]}
    return choices.choice_of_question(row, facts("gpus"))


def split_of(name: str) -> tuple[str, str]:
    flags = dict.fromkeys(("budget", "points", "random_points", "tier", "whole_layers"), None)
    found = evaluate.split_of(Namespace(train_gpus=name, test_gpus=name, **flags))
    return found.train_gpus[0], found.test_gpus[0]


def searched(name: str) -> dict:
    arrays = SimpleNamespace(gpus={PLAIN: None})
    return as_spelled(arrays, {"gpu": name, "source_gpus": [name]})


def fitted(name: str) -> list[str]:
    return fit._listed(",".join(fit.plain_gpus(name)), [PLAIN], "GPU", "The sweeps have rows of")


def doors(session, tmp_path, monkeypatch, name: str) -> dict[str, object]:
    """Return what each option makes of a name."""
    flags = resolve_names(session, {"model": "qwen3-8b", "gpu": name, "prefill_gpu": name})
    choice, search = chosen(monkeypatch, name), searched(name)
    return {
        "deployments gpu": flags["gpu"],
        "deployments prefill_gpu": flags["prefill_gpu"],
        "size_questions gpus": resolve_gpu(session, name),
        "size_questions prices": next(iter(read_prices(session, f"{name}=2"))),
        "prices prices": next(iter(read_prices(session, {name: 2}))),
        "choice_questions gpu": choice[0],
        "choice_questions sources": choice[1][0],
        "search_scenarios gpu": search["gpu"],
        "search_scenarios sources": search["source_gpus"][0],
        "kernel_evaluations train_gpus": split_of(name)[0],
        "kernel_evaluations test_gpus": split_of(name)[1],
        "calibrate fit train_gpus": fitted(name)[0],
        "calibrate import gpus": imported(tmp_path, name),
        "calibrate plan gpu": planned(session, monkeypatch, name),
        "device gpu": opened(monkeypatch, name),
        "search forecast gpu": gpu_row(session, name)["gpu"],
        # a space keeps the name of its file: it is found by any spelling when it is searched
        "search import gpu": find_gpu(name).gpu,
    }


@pytest.mark.parametrize("name", [SPELLED, PLAIN, "nvidia-h100-80gb-hbm3", "H100-SXM", "H100_SXM"])
def test_every_door_reads_a_spelling_as_the_catalogue_name(session, tmp_path, monkeypatch, name):
    found = doors(session, tmp_path, monkeypatch, name)
    assert found == dict.fromkeys(found, PLAIN)
    assert set(found) == declared()


def test_names_that_no_edition_has_are_assumed_or_refused():
    assert import_sweeps.plain_gpus("H100, mine") == (PLAIN, "mine")
    answer = run_command("predict", "--model", "qwen3-8b", "--gpu", "TPU v5e")
    assert answer.status == 2 and "TPU v5e" in answer.err
