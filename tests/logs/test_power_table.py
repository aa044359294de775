"""Tables of GPU power: nvidia-smi's own, and those with unix times; what is left out, what is refused."""

from __future__ import annotations

from kernelsight.logs import read_logs
from tests.logs.asked import faults, rows
from tests.logs.written import START, save

SMI = """timestamp, index, power.draw [W]
2026/11/23 18:00:00.001, 0, 100.00 W
2026/11/23 18:00:00.004, 1, 50.00 W
2026/11/23 18:00:01.002, 0, 300.00 W
2026/11/23 18:00:01.004, 1, 50.00 W
2026/11/23 18:00:02.003, 0, 300.00 W
2026/11/23 18:00:02.004, 1, [N/A]
"""


def test_what_nvidia_smi_writes_is_power_of_all_its_gpus_from_its_first_line_on(tmp_path):
    tables = read_logs(metrics=save(tmp_path / "smi.csv", SMI))
    first, second = rows(tables, "production_windows")
    assert (first["start_s"], first["end_s"], first["power_w"], first["power_gpus"]) == (0.0, 1.0, 250.0, 2)
    assert (second["start_s"], second["power_w"], second["power_gpus"]) == (1.0, 300.0, 1)
    assert faults(tables) == {"unreadable_value": 1}
    assert rows(tables, "production_logs")[0]["clock"] == "none"


def test_unix_times_and_one_power_of_all_gpus(tmp_path):
    text = f"at_s,power_w\n{START},400\n{START + 2.5},600\n"
    tables = read_logs(metrics=save(tmp_path / "power.csv", text))
    [row] = rows(tables, "production_windows")
    assert (row["start_s"], row["end_s"], row["power_w"]) == (0.0, 2.5, 500.0)
    assert rows(tables, "production_logs")[0]["start_unix_s"] == START
