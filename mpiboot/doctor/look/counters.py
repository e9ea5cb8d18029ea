"""Counters of RDMA ports, twice: what grows now is of this job, a sum may be of last month."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mpiboot.core.model import PodFacts
from mpiboot.doctor.report import CountersPart
from mpiboot.network.sysfs import text

# Their meaning: Documentation/ABI/stable/sysfs-class-infiniband, and NVIDIA's list of mlx5's
# counters for those of hw_counters.
NAMES: Final = {
    "counters": (
        *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors"),
        *("port_rcv_remote_physical_errors", "port_xmit_discards"),
        *("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
    ),
    "hw_counters": (
        *("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"),
        *("out_of_buffer", "req_transport_retries_exceeded", "roce_adp_retrans"),
        *("np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled"),
    ),
}
SPAN: Final = 1.0  # seconds between the two readings; the looks of the others take as long


def counters(
    facts: PodFacts, sys_root: Path = Path("/sys"), wait: Callable[[float], None] = time.sleep
) -> CountersPart:
    """Read the counters of the devices that this pod may open, and by how much they grow."""
    names = [device.name for device in facts.fabric.devices if device.opens]
    first = _read(names, sys_root)
    if not first:
        return CountersPart({})
    began = time.monotonic()
    wait(SPAN)
    sums = _read(names, sys_root)
    grown = {
        port: {name: value - first.get(port, {}).get(name, value) for name, value in now.items()}
        for port, now in sums.items()
    }
    return CountersPart(sums, grown, time.monotonic() - began)


def _read(names: list[str], sys_root: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for name in names:
        ports = sys_root / "class/infiniband" / name / "ports"
        for port in sorted(ports.iterdir()) if ports.is_dir() else ():
            values = {
                counter: text(port / folder / counter)
                for folder, listed in NAMES.items()
                for counter in listed
            }
            known = {counter: int(value) for counter, value in values.items() if value.isdigit()}
            if known:
                found[f"{name}:{port.name}"] = known
    return found
