"""RDMA counters, NVIDIA's library and driver, IMEX channels: read from files, and judged.

No machine of these tests has such hardware: the samples are what others published of theirs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.model import Fabric, Gpus, Level
from mpiboot.doctor import looks, network
from mpiboot.doctor.network import CountersPart, NvidiaPart
from tests.doctor.test_judges import FACTS, device, told

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
WITH_GPUS = replace(FACTS, gpus=Gpus(8, "NVIDIA 2335"))

# /proc/driver/nvidia/version of the closed and of the open kernel driver.
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 12.3.0\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  "
    "(dvs-builder@U16-I1-N07-12-3)  Tue Mar  5 22:11:10 UTC 2024\n"
)
# `nvidia-smi -q` of a GB200 node, as NVIDIA's DRA driver shows it (its issue 626), and of a node
# whose NVLink ends at the node (torchcomms' pull request 1385).
RACK = """    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 2
        ClusterUUID                       : dc6e40c4-d722-4357-9ba6-5291dd461278
"""
NODE = RACK.replace("dc6e40c4-d722-4357-9ba6-5291dd461278", "00000000-0000-0000-0000-000000000000")


# -- RDMA counters ---------------------------------------------------------------------------------


def test_what_grows_between_two_readings_is_this_jobs(tmp_path: Path) -> None:
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    for name, value in (
        ("counters/symbol_error", "0"),
        ("counters/port_xmit_discards", "7"),
        ("counters/port_rcv_data", "9"),
        ("hw_counters/out_of_sequence", "100"),
        ("hw_counters/np_cnp_sent", "5"),
    ):
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(value + "\n")
    (tmp_path / "class/infiniband/mlx5_1/ports/1/counters").mkdir(parents=True)
    fabric = Fabric(devices=(device("mlx5_0"), replace(device("mlx5_1"), open_error="gone")))

    def later(seconds: float) -> None:
        assert seconds == looks.SPAN
        (port / "hw_counters/out_of_sequence").write_text("350\n")

    seen = looks.counters(replace(FACTS, fabric=fabric), tmp_path, later)
    sums = {"symbol_error": 0, "port_xmit_discards": 7, "out_of_sequence": 350, "np_cnp_sent": 5}
    assert seen.sums == {"mlx5_0:1": sums}
    assert seen.grown == {"mlx5_0:1": dict.fromkeys(sums, 0) | {"out_of_sequence": 250}}


def test_without_a_device_nothing_is_waited_for(tmp_path: Path) -> None:
    def never(_: float) -> None:
        raise AssertionError

    assert looks.counters(FACTS, tmp_path, never) == CountersPart({})
    assert told(network.counters(CountersPart({}))) == []


def test_an_error_that_grows_is_a_warning_and_congestion_is_none() -> None:
    sums = {"mlx5_0:1": {"out_of_sequence": 350, "np_cnp_sent": 5, "symbol_error": 0}}
    past = "since the driver's start: mlx5_0:1 out_of_sequence 350, np_cnp_sent 5"
    still = CountersPart(sums, {"mlx5_0:1": {"out_of_sequence": 0, "np_cnp_sent": 5}}, 1.0)
    assert told(network.counters(still)) == [
        (OK, f"no error is counted now on 1 RDMA port; {past}")
    ]
    (found,) = network.counters(
        replace(still, grown={"mlx5_0:1": {"out_of_sequence": 250, "np_cnp_sent": 5}})
    )
    assert (found.level, found.evidence) == (WARN, (past,))
    assert found.message == "within 1s grew mlx5_0:1 out_of_sequence 250"
    clean = CountersPart({"mlx5_0:1": {"symbol_error": 0}}, {"mlx5_0:1": {"symbol_error": 0}}, 1.0)
    assert told(network.counters(clean)) == [(OK, "no error is counted now on 1 RDMA port")]


# -- NVIDIA's driver and library -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "number"), [(CLOSED, "535.104.05"), (OPEN, "550.54.15"), ("", "")]
)
def test_the_drivers_version_is_read_of_both_kinds(message: str, number: str) -> None:
    assert looks.version(message) == number


@pytest.mark.parametrize(
    ("message", "uuid"), [(RACK, "dc6e40c4-d722-4357-9ba6-5291dd461278"), (NODE, ""), ("", "")]
)
def test_a_fabric_that_ends_at_the_node_has_no_cluster(message: str, uuid: str) -> None:
    assert looks.cluster(message) == uuid


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({}, "usr/lib/x86_64-linux-gnu"),
        ({"LD_LIBRARY_PATH": "rel:/usr/local/cuda/compat"}, "usr/local/cuda/compat"),
    ],
)
def test_the_library_is_found_as_the_loader_finds_it(
    tmp_path: Path, environ: dict[str, str], folder: str
) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(OPEN)
    channels = tmp_path / "dev/nvidia-caps-imex-channels"
    channels.mkdir(parents=True)
    assert looks.nvidia({}, tmp_path) == NvidiaPart("550.54.15")
    for name in ("nvidia0", "nvidia-caps-imex-channels/channel0"):
        (tmp_path / "dev" / name).touch()
    for place in ("usr/lib/x86_64-linux-gnu", "usr/local/cuda/compat"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "libcuda.so.550.54.15").touch()
        (tmp_path / place / "libcuda.so.1").symlink_to("libcuda.so.550.54.15")
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f"#!/bin/sh\ncat <<E\n{RACK}E\n")
    smi.chmod(0o755)
    seen = looks.nvidia({**environ, "PATH": f"{smi.parent}:/usr/bin:/bin"}, tmp_path)
    where = tmp_path / folder
    assert seen == NvidiaPart(
        "550.54.15",
        str(where / "libcuda.so.550.54.15"),
        str(where),
        "dc6e40c4-d722-4357-9ba6-5291dd461278",
        1,
    )


def test_the_folders_of_the_loaders_cache_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(CLOSED)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    (tmp_path / "etc/ld.so.conf.d").mkdir(parents=True)
    (tmp_path / "etc/ld.so.conf.d/nvidia.conf").write_text("# NVIDIA\n/opt/nvidia/lib\n")
    (tmp_path / "opt/nvidia/lib").mkdir(parents=True)
    (tmp_path / "opt/nvidia/lib/libcuda.so.1").touch()
    seen = looks.nvidia({"PATH": str(tmp_path)}, tmp_path)
    assert seen == NvidiaPart(
        "535.104.05",
        str(tmp_path / "opt/nvidia/lib/libcuda.so.1"),
        str(tmp_path / "opt/nvidia/lib"),
    )


LIB = "/usr/lib/x86_64-linux-gnu"
COMPAT = "/usr/local/cuda/compat"


@pytest.mark.parametrize(
    ("library", "found", "level", "message"),
    [
        (f"{LIB}/libcuda.so.550.54.15", LIB, OK, "fits the driver 550.54.15"),
        (f"{COMPAT}/libcuda.so.560.35.03", COMPAT, OK, "fits the driver 550.54.15"),
        (f"{LIB}/libcuda.so.1", LIB, OK, "the driver is 550.54.15"),
        (f"{LIB}/libcuda.so.535.104.05", LIB, FAIL, "is of driver 535.104.05"),
        (f"{LIB}/libcuda.so.560.35.03", LIB, FAIL, "CUDA does not start (error 803)"),
        (f"{COMPAT}/libcuda.so.535.104.05", COMPAT, FAIL, "is of driver 535.104.05"),
        ("", "", FAIL, "no libcuda.so.1, and the node's driver is 550.54.15"),
    ],
)
def test_a_library_of_another_driver_fails(
    library: str, found: str, level: Level, message: str
) -> None:
    seen = NvidiaPart("550.54.15", library, found)
    (item,) = network.cuda_library(seen, WITH_GPUS)
    assert (item.level, message in item.message) == (level, True)
    assert bool(item.hint) == (level is FAIL)
    assert ("LD_LIBRARY_PATH" in item.hint) == (level is FAIL and found == COMPAT)


def test_a_pod_without_a_gpu_needs_no_library() -> None:
    assert list(network.cuda_library(NvidiaPart("550.54.15"), FACTS)) == []
    assert list(network.cuda_library(NvidiaPart(""), WITH_GPUS)) == []


def test_nvlink_between_nodes_needs_a_channel() -> None:
    seen = NvidiaPart("570.1", cluster="dc6e40c4-d722-4357-9ba6-5291dd461278")
    reaches = "the GPUs' NVLink reaches other nodes (cluster dc6e40c4-d722-4357-9ba6-5291dd461278)"
    assert told(network.imex(NvidiaPart("570.1", channels=1))) == []
    assert told(network.imex(replace(seen, channels=1))) == [
        (OK, f"{reaches}, and this pod has an IMEX channel")
    ]
    assert told(network.imex(seen)) == [
        (
            WARN,
            f"{reaches}, but no IMEX channel is in this pod: between nodes NCCL uses the network",
        )
    ]


# -- variables that name links ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, None),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, None),
        ({"OMPI_MCA_btl_tcp_if_include": "10.0.0.0/8,eth0"}, None),
        ({"GLOO_SOCKET_IFNAME": "ens5"}, "GLOO_SOCKET_IFNAME=ens5: no link ens5 here"),
        ({"HYDRA_IFACE": "eth0, ib0"}, "HYDRA_IFACE=eth0, ib0: no link ib0 here"),
    ],
)
def test_a_variable_that_names_no_link_is_told(
    environ: dict[str, str], message: str | None
) -> None:
    found = told(network.named_links(environ, FACTS))
    assert [(level, text.partition(" (there")[0]) for level, text in found] == (
        [(WARN, message)] if message else []
    )


def test_settings_of_nccl_that_leave_others_without_effect_are_told() -> None:
    environ = {"NCCL_IB_GID_INDEX": "3", "NCCL_IB_ADDR_RANGE": "10.0.0.0/8"}
    assert told(network.two_settings(environ)) == [
        (WARN, f"{' and '.join(environ)} exclude each other: the range then has no effect")
    ]
