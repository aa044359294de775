"""`--gpus FILE`: hypothetical hardware is a row; what is wrong with a row is told."""

from __future__ import annotations

import json

import pytest

from kernelsight.dataflow.contract import load_contracts
from kernelsight.dataflow.locations import folder
from kernelsight.errors import KernelSightError
from kernelsight.session import connect
from tests.cli.conftest import predict_all

RATE = "memory_bandwidth_bytes_per_s"
FAST = {"gpu": "fast", "like": "h100_sxm", RATE: 6.7e12}
# flags of a deployment, the phase of a step and its sizes
STEPS = [
    ({"model": "qwen3-0.6b"}, "decode", {"context_len": 2000, "batch_size": 64}),
    ({"model": "qwen3-30b-a3b", "tp": 2}, "mixed", {"input_len": 512, "context_len": 3000, "batch_size": 30}),
    ({"model": "gpt-oss-120b", "tp": 4}, "prefill", {"input_len": 1000}),
]
STEP = ("predict", "--model", "qwen3-0.6b", "--gpu", "fast", "--context-len", 100)


@pytest.fixture
def gpus(tmp_path):
    """Write a file of GPUs: objects as JSON, text or bytes as they are."""

    def write(content, ending=".json"):
        path = tmp_path / f"gpus{ending}"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_twice_the_bandwidth_makes_no_kernel_and_no_step_slower():
    with connect() as session:
        rate = next(row for row in session.table("gpus").to_pylist() if row["gpu"] == "h100_sxm")[RATE]
        session.extend("gpus", [FAST | {RATE: 2 * rate}])
        cases = {
            (flags["model"], gpu): (flags | {"gpu": gpu}, phase, sizes)
            for flags, phase, sizes in STEPS
            for gpu in ("h100_sxm", "fast")
        }
        steps = predict_all(session, cases)
    for flags, _, _ in STEPS:
        before, after = (steps[flags["model"], gpu] for gpu in ("h100_sxm", "fast"))
        # a step whose launches take longer than its kernels stays as it is
        assert after["total_us"] <= before["total_us"] and after["gpu_us"] < before["gpu_us"]
        latencies = {kernel["call"]: kernel["latency_us"] for kernel in after["kernels"]}
        slower = [
            kernel["name"]
            for kernel in before["kernels"]
            if latencies[kernel["call"]] > kernel["latency_us"] * (1 + 1e-6)
        ]
        assert before["kernels"] and slower == []


def test_a_gpu_like_a_measured_one_has_its_fit():
    model = {"model": "qwen3-0.6b"}
    cases = {
        "real": {"gpu": "h100_sxm"},
        "twin": {"gpu": "twin"},
        "measured": {"gpu": "twin", "tier": "target-measured"},
        "unmeasured": {"gpu": "twin", "tier": "cross-generation"},
        **{gpu: {"gpu": gpu} for gpu in ("alone", "null", "as_l4")},
    }
    with connect() as session:
        like = {"like": "h100_sxm"}
        rows = [{"gpu": "twin"} | like, {"gpu": "as_l4", "like": "l4"}]
        rows += [{"gpu": "alone", "measured_as": "alone"} | like, {"gpu": "null", "measured_as": None} | like]
        session.extend("gpus", rows)
        steps = predict_all(
            session, {case: (model | flags, "decode", {"context_len": 100}) for case, flags in cases.items()}
        )
    answers = {
        case: next(kernel for kernel in step["kernels"] if kernel["name"] == "gate_up_proj")
        for case, step in steps.items()
    }
    width = {case: kernel["latency_p95_us"] / kernel["latency_us"] for case, kernel in answers.items()}
    real, twin, alone, null = (answers[case] for case in ("real", "twin", "alone", "null"))
    assert (twin["latency_us"], twin["tier"]) == (real["latency_us"], "hypothetical")
    assert twin["evidence"] == real["evidence"].replace("sweep of h100_sxm", "fit of h100_sxm, hypothetical")
    # the sweep's own narrow interval is that of the GPU that was measured
    assert width["twin"] > width["real"]
    assert answers["measured"]["latency_us"] == twin["latency_us"]
    assert answers["unmeasured"]["tier"] == "cross-generation"
    assert all(alone[name] == null[name] for name in ("latency_us", "latency_p95_us", "tier", "evidence"))
    assert null["latency_us"] != twin["latency_us"] and null["tier"] == "cross-generation"
    # like a GPU that nobody measured: there is no fit to take
    assert answers["as_l4"]["tier"] == "cross-generation"


@pytest.mark.whole
def test_what_a_hypothetical_gpu_rests_on_is_said(gpus, command):
    path = gpus({"gpu": "fast", "like": "h100_sxm"})
    sentence = "fast is hypothetical: its kernels use the fit of h100_sxm where there is one, with its own rates"
    assert sentence in command(*STEP, "--gpus", path, "--format", "json").json["assumed"]
    rest = ("--tier", "cross-generation", "--format", "json")
    assert sentence not in command(*STEP, "--gpus", path, *rest).json["assumed"]


def test_a_catalogue_gpu_that_is_overridden_is_hypothetical_and_named(gpus, command):
    path = gpus({"gpu": "h100_sxm", RATE: 6.7e12})
    words = ("predict", "--model", "qwen3-0.6b", "--gpu", "h100_sxm", "--context-len", 100, "--gpus", path)
    answer = command(*words, "--format", "json")
    assert answer.status == 0, answer.err
    assert next(row["tier"] for row in answer.json["kernels"] if row["name"] == "gate_up_proj") == "hypothetical"
    assert "gpus.json: its row h100_sxm replaces the catalogue GPU of that name" in answer.err


@pytest.mark.whole
def test_csv_json_and_a_list_say_the_same_under_a_name_of_digits(gpus, command):
    row, csv = FAST | {"gpu": "5070"}, f"gpu,like,{RATE}\n5070,h100_sxm,6.7e12\n"
    words = (*STEP, "--gpu", "5070", "--gpus")
    answers = [
        command(*words, path, "--format", "json")
        for path in (gpus(row), gpus([row], ".2.json"), gpus(csv, ".csv"), gpus("\ufeff" + csv, ".bom.csv"))
    ]
    assert len({answer.json["total_us"] for answer in answers}) == 1
    assert not any("replaces" in answer.err for answer in answers)
    assert command(*words, gpus(csv, ".csv")).out.startswith("qwen3-0.6b on 5070,")


def test_a_catalogue_gpu_is_overridden_for_this_command(gpus, command):
    path = gpus({"gpu": "l4", "tdp_w": 1})
    query = "select tdp_w, source from gpus where gpu = 'l4'"
    assert command("sql", query, "--gpus", path, "--format", "json").json == [
        {"tdp_w": 1.0, "source": "given in gpus.json"}
    ]
    assert command("sql", query, "--format", "json").json[0]["tdp_w"] > 1


@pytest.mark.parametrize(
    ("content", "ending", "words"),
    [
        ("{", ".json", "is not JSON (line 1, column 2: "),
        ("[]", ".json", "has no GPU; give an object, or an array of objects"),
        ("[1]", ".json", "has no GPU; give an object, or an array of objects"),
        ({"like": "h100_sxm"}, ".json", "GPU 1: the field gpu (its name) is missing; add it."),
        (FAST | {"gpu": 5}, ".json", "GPU 1: its name is 5; give a string."),
        (FAST | {"like": "h100"}, ".json", "unknown GPU 'h100'. Did you mean h100_sxm"),
        (FAST | {"like": ["h100_sxm"]}, ".json", "unknown GPU "),
        (FAST | {"measured_as": "h100"}, ".json", "unknown GPU 'h100'. Did you mean h100_sxm"),
        (FAST | {"measured_as": ["h100_sxm"]}, ".json", "unknown GPU "),
        (
            {"gpu": "fast", "memory_bytes": 8e10},
            ".json",
            "missing fields sm_count, sm_clock_hz, l2_bytes, memory_bandwidth_bytes_per_s, fp32_flops_per_s",
        ),
        (
            FAST | {"memory_bandwith": 1},
            ".json",
            "unknown column of gpus 'memory_bandwith'. Did you mean memory_bandwidth_bytes_per_s",
        ),
        (
            FAST | {"memory_bandwidth_bytes_per_s": 0},
            ".json",
            "memory_bandwidth_bytes_per_s is 0; give bytes a second as a number, at least 1e+09.",
        ),
        (
            FAST | {"memory_bandwidth_bytes_per_s": -1.0},
            ".json",
            "memory_bandwidth_bytes_per_s is -1.0; give bytes a second as a number, at least 1e+09.",
        ),
        (
            FAST | {"memory_bandwidth_bytes_per_s": 1e-308},
            ".json",
            "memory_bandwidth_bytes_per_s is 1e-308; give bytes a second as a number, at least 1e+09.",
        ),
        (
            FAST | {"memory_bandwidth_bytes_per_s": 8},
            ".json",
            "memory_bandwidth_bytes_per_s is 8; give bytes a second as a number, at least 1e+09.",
        ),
        (FAST | {"memory_bytes": 288}, ".json", "memory_bytes is 288; give bytes as a number, at least 1e+08."),
        (FAST | {"memory_bytes": "288 GB"}, ".json", "memory_bytes is '288 GB'; give bytes as a number"),
        (FAST | {"bf16_flops_per_s": 989}, ".json", "bf16_flops_per_s is 989; give operations a second as a number"),
        (FAST | {"sm_clock_hz": 1.98}, ".json", "sm_clock_hz is 1.98; give cycles a second as a number"),
        (
            FAST | {"memory_bandwidth_bytes_per_s": "much"},
            ".json",
            "memory_bandwidth_bytes_per_s is 'much'; give bytes a second as a number, at least 1e+09.",
        ),
        (
            FAST | {"memory_bandwidth_bytes_per_s": True},
            ".json",
            "memory_bandwidth_bytes_per_s is True; give bytes a second as a number, at least 1e+09.",
        ),
        (
            FAST | {"memory_bandwidth_bytes_per_s": float("nan")},
            ".json",
            "memory_bandwidth_bytes_per_s is nan",
        ),
        (FAST | {"sm_count": 1.5}, ".json", "sm_count is 1.5; give a value of type int64."),
        (
            FAST | {"sm_count": 0},
            ".json",
            "column sm_count: 1 row fails 'sm_count > 0 and sm_count <= 1000000' (row 1: 0)",
        ),
        ([FAST, FAST], ".json", "1 duplicate key (gpu 'fast')"),
        (FAST | {"link_fabric": "wire"}, ".json", "gpus.link_fabric is 'wire', which is not in fabrics.fabric."),
        ("", ".csv", "has no GPU; give a header, and a line for each."),
        ("gpu,like\n", ".csv", "has no GPU; give a header, and a line for each."),
        ("gpu,gpu\na,b\n", ".csv", "has duplicate columns in its 2; keep one of each."),
        (
            "gpu,like\nfast,h100_sxm,3\n",
            ".csv",
            "GPU 1: 3 fields for 2 columns; leave fields without a value empty.",
        ),
        (b"\xff\xfe\x00gpu", ".csv", "is not UTF-8 (line 1)"),
        (b"\xff\xfe\x00", ".json", "is not UTF-8 (line 1)"),
        ("x", ".txt", "ends in '.txt'; --gpus takes .csv or .json."),
    ],
)
def test_files_that_are_refused(content, ending, words, gpus, refusal):
    assert words in refusal(*STEP, "--gpus", gpus(content, ending))


def test_a_file_that_is_not_there(refusal, tmp_path):
    assert (
        refusal(*STEP, "--gpus", tmp_path) == f"file {tmp_path} is a folder; --gpus takes a CSV or JSON file of GPUs."
    )


IMPOSSIBLE = {"int64": (2**62,), "float64": (2.0**62, 1e308)}


@pytest.mark.parametrize("column", [each for each in load_contracts(folder("schemas"))["gpus"].columns if each.unit])
def test_every_quantity_of_a_gpu_is_bounded(column):
    """A table of hypothetical GPUs cannot state what no GPU has: 2^62 W were served as 3.7e17 W."""
    with connect() as session:
        row = session.query("select * from gpus where gpu = 'mi300x'").to_pylist()[0]
        for value in IMPOSSIBLE[column.type]:
            with pytest.raises(KernelSightError, match=f"column {column.name}: 1 row fails"):
                session.give("gpus", [row | {column.name: value if column.type == "int64" else float(value)}])


@pytest.mark.parametrize("value", ["1e400", "nan", "9", "", "gfx", "9.0 or so", "-9.0"])
def test_a_compute_capability_has_the_form_of_one(value):
    with connect() as session:
        row = session.query("select * from gpus where gpu = 'h100_sxm'").to_pylist()[0]
        with pytest.raises(KernelSightError, match="column compute_capability: 1 row fails"):
            session.give("gpus", [row | {"compute_capability": value}])
        session.give("gpus", [row | {"compute_capability": "13.5"}])
