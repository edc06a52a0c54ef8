"""Energies measured on a Hopper GPU: rates that the chip can reach, and a subtraction that is checked by hand."""

import pytest

from benchmarks.cycle_model import hopper_energy

# Per SM and cycle, CUDA C++ programming guide, throughput table of compute capability 9.0; 1024 dense FLOPs of bf16 a
# tensor core. A count that the compiler removed, or that one warp makes for others, is above them.
A_CYCLE = {
    "FFMA": 128,
    "LOP3": 64,
    "EX2 and two LOP3": 16,
    "shared memory, read": 128,
    "L2, read": 64,
    "wgmma": 4096,
}
HBM = 4.8e12  # bytes a second, H200 data sheet


@pytest.mark.parametrize("row", hopper_energy.load(), ids=lambda row: row["what"])
def test_no_rate_is_above_what_the_chip_can_do(row):
    name = row["what"].split(" bf16")[0]
    if name == "HBM, read":
        assert HBM / 2 < row["per_second"] <= HBM
    elif name in A_CYCLE:
        most = A_CYCLE[name] * row["sms"] * row["mhz"] * 1e6
        assert most / 2 < row["per_second"] <= most
    else:
        assert "poll" in name or "wait" in name or row["per_second"] == 0


def test_an_energy_is_the_power_above_sleep_without_the_operations_beside_it():
    rows = [
        {"what": "threads asleep", "watts": 100.0, "per_second": 0},
        {"what": "LOP3", "watts": 300.0, "per_second": 2e13},  # 200 W: 10 pJ
        {
            "what": "EX2 and two LOP3",
            "watts": 300.0,
            "per_second": 4e12,
        },  # 50 pJ, of which 20 are two LOP3
    ]
    assert hopper_energy.energies(rows) == {"LOP3": pytest.approx(10), "EX2": pytest.approx(30)}
