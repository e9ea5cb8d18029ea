"""The shell's reading of counters, over a stand-in of sysfs: no machine here has such ports."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from mpiboot.hosts import host_shell
from mpiboot.network import records

PORT = "class/infiniband/mlx5_1/ports/1"
VALUES = {
    f"{PORT}/counters/port_xmit_data": "250\n",
    f"{PORT}/counters/port_rcv_data": "18446744073709551615\n",
    f"{PORT}/hw_counters/out_of_sequence": "7\n",
    f"{PORT}/hw_counters/lifespan": "10\n",
    f"{PORT}/hw_counters/packet_seq_err": "0\n",
    f"{PORT}/counters/symbol_error": "100\n",
    f"{PORT}/hw_counters/np_cnp_sent": "100\n",  # is no error
    "class/infiniband/rxe0/ports/1/hw_counters/sent_pkts": "0\n",
    # A port whose counters this pod lacks, as of a device that is shared between namespaces.
    "class/infiniband/mlx5_9/ports/1/state": "4: ACTIVE\n",
}


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def ask(folder: Path, shell: str = "/bin/sh") -> dict[str, dict[str, int]]:
    command = host_shell.ask(records.QUESTION).replace("/sys/class", f"{folder}/class")
    words = [*shell.split(), "-c", command]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found = host_shell.read(done.stdout.replace(str(folder), "/sys")).counters
    return {name: {**values} for name, values in found.items()}


@pytest.mark.parametrize("shell", ["/bin/sh", "busybox sh"])
def test_ports_and_links_are_read_in_one_question(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell.split(maxsplit=1)[0]) is None:
        pytest.skip(f"no {shell}")
    for path, value in VALUES.items():
        write(tmp_path, {path: value})
    found = ask(tmp_path, shell)
    lo = found.pop("lo")
    assert lo.keys() == {"rx_bytes", "tx_bytes"}
    assert {name: found[name] for name in ("mlx5_1:1", "rxe0:1")} == {
        "mlx5_1:1": {
            "port_xmit_data": 250,
            "port_rcv_data": (1 << 64) - 1,
            "out_of_sequence": 7,
            "packet_seq_err": 0,
            "symbol_error": 100,
        },
        "rxe0:1": {"sent_pkts": 0},
    }
    assert "mlx5_9:1" not in found


def test_without_rdma_the_links_are_read(tmp_path: Path) -> None:
    assert [name for name in ask(tmp_path) if ":" in name] == []
    assert "lo" in ask(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "/proc/net/dev:Inter-|   Receive                                    |  Transmit",
        "/sys/class/infiniband/mlx5_1/ports/1/counters/port_xmit_data:N/A (no PMA)",
        "/sys/class/infiniband/mlx5_1/ports/1/counters/port_xmit_data:",
        f"/sys/class/infiniband/mlx5_1/ports/1/counters/port_xmit_data:{'9' * 5000}",
        f"/proc/net/dev: eth0: {'9' * 5000} 0 0 0 0 0 0 0 0 0 0 0",
        "eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16",
    ],
)
def test_what_is_no_counter_is_passed_over(line: str) -> None:
    assert records.read_counters([line]) == {}


def test_a_counter_has_one_meaning() -> None:
    moved = [name for row in records.TRAFFIC for name in (*row.sent, *row.received)]
    names = [*moved, *records.ERRORS]
    assert len(names) == len({*names})
    assert records.QUESTION.split()[1:] == names
