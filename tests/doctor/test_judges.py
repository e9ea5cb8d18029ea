"""Each judge of a pod's parts, with a value for every outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from mpiboot.core.facts import Fabric, Gpus, PodFacts, RdmaDevice, Route
from mpiboot.core.model import Finding, Level
from mpiboot.core.settings import Settings
from mpiboot.doctor import looks, network, pod
from mpiboot.doctor.checks import BY_REFERENCE, DoctorCheck
from mpiboot.doctor.network import CountersPart, NvidiaPart, PciPart
from mpiboot.doctor.pod import (
    ImagePart,
    LimitsPart,
    MemoryPart,
    Program,
    ServersPart,
    ShmPart,
    SshdPart,
    SshdSettings,
    SshListener,
)
from tests.fakes import plans

WARN, FAIL = Level.WARN, Level.FAIL
MPI = plans.MPIS["openmpi4"]
ORTED = Program("orted", "/usr/bin/orted")
GIB, MIB = 1 << 30, 1 << 20
USED = "memory: 1 GiB of 4 GiB in use"

_FACTS = plans.worker(plans.hosts(2)[0], 0, MPI).facts
assert _FACTS is not None
FACTS: PodFacts = _FACTS


def told(found: Iterable[Finding]) -> list[str]:
    """Level and sentence; what is not well says what to do."""
    listed = list(found)
    assert all(item.hint or item.level is Level.OK for item in listed)
    assert all(item.check in BY_REFERENCE for item in listed)
    return [f"{item.level.value}: {item.message}" for item in listed]


def device(name: str) -> RdmaDevice:
    return RdmaDevice(0, name, "roce", "CA", "", "mlx5", "", "/dev/infiniband/uverbs0", "", ())


def an_image(
    ssh: str = "/usr/bin/ssh", daemon: Program | None = ORTED, lacks: tuple[str, ...] = ()
) -> ImagePart:
    listed = (Program("mpirun", MPI.path, lacks), Program("ssh", ssh))
    return ImagePart(MPI, listed, daemon, "3.11.2", (), "/usr/bin")


NO_MPI = ImagePart(None, (Program("ssh", ""),), None, "3.11.2", (), "/opt/bin:/bin")
NO_ORTED = Program("orted", "")
LACKS = ("libhwloc.so.15 => not found",)
BROKEN = Program("orted", "/usr/bin/orted", LACKS)


SAME = {"locked memory": -1, "open files": 1024}
SAME_SAYS = "locked memory unlimited, open files 1024"
LOW_SAYS = (
    "locked memory 64 KiB (the first process: unlimited), processes 10 (the first process: 20)"
)
LOW = {"locked memory": 65536, "open files": 1 << 20, "processes": 10}
HIGH = {"locked memory": -1, "open files": 1024, "processes": 20}
NCCL = (("nccl-A", 32 * MIB), ("nccl-B", 32 * MIB))
LEFT = "warn: 2 files of NCCL in /dev/shm (64 MiB) that no process here holds: nccl-A, nccl-B"

OURS, THEIRS = "SSH-2.0-OpenSSH_9.2p1 mpiboot", "SSH-2.0-OpenSSH_9.2p1 Debian"
GREETS = f"greets with {THEIRS!r}, process 7 (sshd)"

TWO = replace(
    FACTS, links=(plans.link("eth0", "10.244.0.2/24"), plans.link("net1", "192.168.1.2/24"))
)
STRICT = "packets whose answer would leave by another link are dropped without a word"


def routes(*links: str) -> PodFacts:
    return replace(FACTS, fabric=Fabric(routes=tuple(Route("0.0.0.0/0", link) for link in links)))


def with_gpus(gpus: Gpus, *devices: str) -> PodFacts:
    return replace(FACTS, gpus=gpus, fabric=Fabric(devices=tuple(map(device, devices))))


NO_PEER_MEMORY = "warn: RDMA devices reach no GPU memory: neither nvidia_peermem nor DMA-BUF"
PROGRESS = "In Progress on 8 of 8 GPUs"
UUID = "dc6e40c4-d722-4357-9ba6-5291dd461278"
REACHES = f"the GPUs' NVLink reaches other nodes (cluster {UUID})"
NO_CHANNEL = "but no IMEX channel is in this pod: between nodes NCCL uses the network"
BTL = ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude")
GID = ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE")
ERRORS = {"out_of_sequence": 350, "np_cnp_sent": 5, "symbol_error": 0}
PAST = "since the driver's start: mlx5_0:1 out_of_sequence 350, np_cnp_sent 5"


def counted(sums: Mapping[str, int], **grown: int) -> CountersPart:
    return CountersPart({"mlx5_0:1": sums}, {"mlx5_0:1": grown}, 1.0)


@pytest.mark.parametrize(
    ("judge", "parts", "expected"),
    [
        # -- image
        (
            *(pod.programs, [an_image()]),
            ["ok: mpirun is /usr/bin/mpirun, mpirun (Open MPI) 4.1.4", "ok: ssh is /usr/bin/ssh"],
        ),
        (
            *(pod.programs, [NO_MPI]),
            [
                "fail: no mpirun or mpiexec on PATH",
                "ok: no ssh on PATH; only a launcher needs one",
            ],
        ),
        (pod.daemon, [an_image()], ["ok: orted is /usr/bin/orted"]),
        (
            *(pod.daemon, [an_image(daemon=NO_ORTED)]),
            ["fail: /usr/bin/mpirun has no orted beside it or on PATH"],
        ),
        (pod.daemon, [an_image(daemon=None)], []),
        (pod.daemon, [NO_MPI], []),
        (
            *(pod.libraries, [an_image(lacks=LACKS)]),
            ["fail: /usr/bin/mpirun does not find all of its shared libraries"],
        ),
        (
            *(pod.libraries, [an_image(daemon=BROKEN)]),
            ["fail: /usr/bin/orted does not find all of its shared libraries"],
        ),
        (
            *(pod.libraries, [an_image(ssh="")]),
            ["ok: shared libraries: all are found for mpirun, orted"],
        ),
        (pod.python, [an_image()], ["ok: Python 3.11.2 has what mpiboot needs"]),
        (
            *(pod.python, [replace(an_image(), modules=("dns", "pyroute2"))]),
            ["fail: Python 3.11.2 does not find dns, pyroute2"],
        ),
        (pod.passwd, [plans.ROOT], ["ok: uid 0 is root, home /root"]),
        (pod.passwd, [plans.NOBODY], ["warn: uid 1000 has no passwd entry"]),
        (pod.openssh, [SshdPart("/sbin/sshd", ""), plans.ROOT], ["ok: /sbin/sshd can serve"]),
        (
            *(pod.openssh, [SshdPart("", "no sshd"), plans.ROOT]),
            ["ok: mpiboot's own SSH server serves: no sshd"],
        ),
        (
            *(pod.openssh, [SshdPart("/sbin/sshd", "no SYS_CHROOT"), plans.ROOT]),
            ["warn: /sbin/sshd can't serve, so mpiboot's own server does: no SYS_CHROOT"],
        ),
        (  # under a random uid mpiboot's own server is no trouble
            *(pod.openssh, [SshdPart("/sbin/sshd", "no passwd entry"), plans.NOBODY]),
            ["ok: mpiboot's own SSH server serves: no passwd entry"],
        ),
        # -- limits and memory
        (
            *(pod.limits, [LimitsPart(SAME, SAME)]),
            [f"ok: SSH sessions have the limits of the first process: {SAME_SAYS}"],
        ),
        (*(pod.limits, [LimitsPart(LOW, HIGH)]), [f"warn: SSH sessions get less: {LOW_SAYS}"]),
        (pod.limits, [LimitsPart({}, {"open files": 1})], []),
        (pod.processes, [LimitsPart({}, {}, 5, 0)], []),
        (pod.processes, [LimitsPart({}, {}, 90, 100)], ["ok: 90 of 100 processes and threads"]),
        (
            *(pod.processes, [LimitsPart({}, {}, 91, 100)]),
            ["warn: 91 of 100 processes and threads: the next may not start"],
        ),
        (pod.shm, [ShmPart(GIB, 0)], ["ok: 0 bytes of 1 GiB in /dev/shm in use"]),
        (pod.shm, [ShmPart(GIB, GIB)], ["warn: 1 GiB of 1 GiB in /dev/shm in use"]),
        (pod.shm, [ShmPart(GIB, 64 * MIB, NCCL)], [LEFT]),
        (pod.shm, [ShmPart(GIB, GIB, NCCL)], [LEFT, "warn: 1 GiB of 1 GiB in /dev/shm in use"]),
        (  # whoever could not be asked may hold them
            *(pod.shm, [ShmPart(GIB, 64 * MIB, NCCL, all_seen=False)]),
            ["ok: 64 MiB of 1 GiB in /dev/shm in use"],
        ),
        (pod.memory, [MemoryPart(0, GIB, 0)], ["ok: memory: 1 GiB in use (no limit)"]),
        (pod.memory, [MemoryPart(4 * GIB, GIB, 0)], [f"ok: {USED}"]),
        (pod.memory, [MemoryPart(GIB, GIB - MIB, 0)], ["warn: memory: 1023 MiB of 1 GiB in use"]),
        (
            *(pod.memory, [MemoryPart(4 * GIB, GIB, 1)]),
            [f"warn: out of memory: the kernel killed 1 process here; {USED}"],
        ),
        # -- SSH servers
        (
            *(pod.ssh_servers, [ServersPart(22, (SshListener(22, OURS, 7, "sshd", ours=True),))]),
            ["ok: port 22 is mpiboot's, process 7 (sshd)"],
        ),
        (
            *(pod.ssh_servers, [ServersPart(22, (SshListener(22, OURS, ours=True),))]),
            ["ok: port 22 is mpiboot's"],
        ),
        (
            *(pod.ssh_servers, [ServersPart(22, (SshListener(22, THEIRS, 7, "sshd"),))]),
            [f"fail: port 22 {GREETS}: not mpiboot's, whose port it is"],
        ),
        (
            *(pod.ssh_servers, [ServersPart(0, (SshListener(2222, THEIRS, 7, "sshd"),))]),
            [f"warn: port 2222 {GREETS}: an SSH server that mpiboot did not start"],
        ),
        # As a node's own beside a pod with hostNetwork; mpiboot's; whose process can't be seen.
        (pod.ssh_servers, [ServersPart(2222, (SshListener(22, THEIRS),))], []),
        (pod.ssh_servers, [ServersPart(0, (SshListener(22, OURS, ours=True),))], []),
        (pod.ssh_servers, [ServersPart(22, (SshListener(22, "SSH-2.0-AsyncSSH"),))], []),
        # -- network
        (network.rp_filter, [{"eth0": 1}, FACTS], []),
        (network.rp_filter, [{"eth0": 0, "net1": 2}, TWO], ["ok: not strict on eth0, net1"]),
        (
            *(network.rp_filter, [{"eth0": 0, "net1": 1}, TWO]),
            [f"warn: rp_filter is 1 (strict) on net1: {STRICT}"],
        ),
        (network.default_routes, [routes()], []),
        (
            *(network.default_routes, [routes("eth0", "eth0")]),
            ["ok: the default route uses eth0"],
        ),
        (
            *(network.default_routes, [routes("eth0", "net1")]),
            ["warn: 0.0.0.0/0 has routes through eth0 and net1: the kernel decides by metric"],
        ),
        # -- data network and GPUs; rules that compare workers say nothing of one
        (
            network.data_network,
            [replace(FACTS, shm=64 * MIB, gpus=Gpus(2, "NVIDIA 2330")), Settings()],
            [
                "warn: /dev/shm has 64 MiB for 2 ranks",
                "ok: no RDMA device of this pod; data goes over TCP",
            ],
        ),
        (network.gpus, [with_gpus(Gpus())], []),
        (network.gpus, [with_gpus(Gpus(8, "NVIDIA 2330"))], ["ok: 8 GPUs: NVIDIA 2330"]),
        (
            *(network.gpus, [with_gpus(Gpus(7, "NVIDIA 2330", lost=1))]),
            ["warn: 1 of 8 GPUs in /dev, the kernel has no more"],
        ),
        (
            *(network.gpus, [with_gpus(Gpus(8, "NVIDIA 2330", fabric=PROGRESS))]),
            [f"warn: NVLink fabric: {PROGRESS}; CUDA starts when Fabric Manager has set it up"],
        ),
        (
            network.gpus,
            [with_gpus(Gpus(1, "NVIDIA 2330", peer_memory=()), "mlx5_0")],
            [NO_PEER_MEMORY],
        ),
        (
            *(
                network.gpus,
                [with_gpus(Gpus(1, "NVIDIA 2330", peer_memory=("DMA-BUF",)), "mlx5_0")],
            ),
            ["ok: 1 GPU: NVIDIA 2330"],
        ),
        # -- RDMA counters, of which congestion is no error
        (network.counters, [CountersPart({})], []),
        (
            *(network.counters, [counted(ERRORS, out_of_sequence=0, np_cnp_sent=5)]),
            [f"ok: no error is counted now on 1 RDMA port; {PAST}"],
        ),
        (
            *(network.counters, [counted(ERRORS, out_of_sequence=250, np_cnp_sent=5)]),
            ["warn: within 1s grew mlx5_0:1 out_of_sequence 250"],
        ),
        (
            *(network.counters, [counted({"symbol_error": 0}, symbol_error=0)]),
            ["ok: no error is counted now on 1 RDMA port"],
        ),
        # -- NVIDIA's library and NVLink between nodes
        (network.cuda_library, [NvidiaPart("550.54.15"), FACTS], []),
        (network.cuda_library, [NvidiaPart(""), with_gpus(Gpus(8))], []),
        (network.imex, [NvidiaPart("570.1", channels=1)], []),
        (
            *(network.imex, [NvidiaPart("570.1", cluster=UUID, channels=1)]),
            [f"ok: {REACHES}, and this pod has an IMEX channel"],
        ),
        (*(network.imex, [NvidiaPart("570.1", cluster=UUID)]), [f"warn: {REACHES}, {NO_CHANNEL}"]),
        # -- variables
        (
            network.debug,
            [{"NCCL_DEBUG": "WARN", "I_MPI_DEBUG": "0", "OMPI_MCA_plm_base_verbose": "0"}],
            [],
        ),
        (network.debug, [{"NCCL_DEBUG": "info"}], ["warn: NCCL_DEBUG=info"]),
        (network.debug, [{"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}], []),
        (
            network.debug,
            [{"UCX_LOG_LEVEL": "debug", "OMPI_MCA_btl_base_verbose": "100"}],
            ["warn: UCX_LOG_LEVEL=debug, OMPI_MCA_btl_base_verbose=100"],
        ),
        (network.two_settings, [{BTL[0]: "eth0", BTL[1]: ""}], []),
        (
            *(network.two_settings, [dict.fromkeys(BTL, "eth0")]),
            [f"warn: {' and '.join(BTL)} exclude each other: ranks then have no TCP"],
        ),
        (
            *(network.two_settings, [dict.fromkeys(GID, "3")]),
            [f"warn: {' and '.join(GID)} exclude each other: the range then has no effect"],
        ),
        (network.named_links, [{}, FACTS], []),
        (network.named_links, [{"GLOO_SOCKET_IFNAME": "eth0"}, FACTS], []),
        (*(network.named_links, [{"OMPI_MCA_btl_tcp_if_include": "10.0.0.0/8,eth0"}, FACTS]), []),
        (
            *(network.named_links, [{"GLOO_SOCKET_IFNAME": "ens5"}, FACTS]),
            ["warn: GLOO_SOCKET_IFNAME=ens5: no link ens5 here (there are lo, eth0)"],
        ),
        (
            *(network.named_links, [{"HYDRA_IFACE": "eth0, ib0"}, FACTS]),
            ["warn: HYDRA_IFACE=eth0, ib0: no link ib0 here (there are lo, eth0)"],
        ),
    ],
)
def test_every_outcome(judge: DoctorCheck, parts: list[object], expected: list[str]) -> None:
    assert told(judge(*parts)) == expected


@pytest.mark.parametrize(
    ("found", "evidence"),
    [
        (pod.programs(NO_MPI), ("PATH=/opt/bin:/bin",)),
        (pod.libraries(an_image(lacks=LACKS)), LACKS),
        (network.counters(counted(ERRORS, out_of_sequence=250)), (PAST,)),
    ],
)
def test_the_evidence_is_beside_it(found: Iterable[Finding], evidence: tuple[str, ...]) -> None:
    assert next(iter(found)).evidence == evidence


@pytest.mark.parametrize(
    ("value", "means"),
    [
        ("mlx5_1", "mlx5_10, mlx5_11"),
        ("^mlx5_1", "mlx5_10, mlx5_11"),
        ("mlx5_1:1,mlx5_10", "mlx5_11"),
        ("=mlx5_1", ""),
        ("mlx5", ""),  # a prefix that is meant as one
        ("mlx5_2", ""),
    ],
)
def test_a_name_that_nccl_takes_for_a_prefix_is_named(value: str, means: str) -> None:
    devices = tuple(device(f"mlx5_{number}") for number in (1, 2, 10, 11))
    fabric = Fabric(devices=devices, settings=(("NCCL_IB_HCA", value),))
    found = list(network.prefixes(replace(FACTS, fabric=fabric)))
    message = f"warn: NCCL_IB_HCA={value}: mlx5_1 is a prefix for NCCL, and means {means} too"
    assert told(found) == ([message] if means else [])
    exact = f"^={value[1:]}" if value.startswith("^") else f'"={value}"'
    assert all(item.hint == f"write NCCL_IB_HCA={exact}" for item in found)


LIB, COMPAT = "/usr/lib/x86_64-linux-gnu", "/usr/local/cuda/compat"


@pytest.mark.parametrize(
    ("library", "folder", "level", "message"),
    [
        (f"{LIB}/libcuda.so.550.54.15", LIB, Level.OK, "fits the driver 550.54.15"),
        (f"{COMPAT}/libcuda.so.560.35.03", COMPAT, Level.OK, "fits the driver 550.54.15"),
        (f"{LIB}/libcuda.so.1", LIB, Level.OK, "the driver is 550.54.15"),
        (f"{LIB}/libcuda.so.535.104.05", LIB, FAIL, "is of driver 535.104.05"),
        (f"{LIB}/libcuda.so.560.35.03", LIB, FAIL, "CUDA does not start (error 803)"),
        (f"{COMPAT}/libcuda.so.535.104.05", COMPAT, FAIL, "is of driver 535.104.05"),
        ("", "", FAIL, "no libcuda.so.1, and the node's driver is 550.54.15"),
    ],
)
def test_a_cuda_library_of_another_driver_fails(
    library: str, folder: str, level: Level, message: str
) -> None:
    (item,) = network.cuda_library(NvidiaPart("550.54.15", library, folder), with_gpus(Gpus(8)))
    assert (item.level, message in item.message) == (level, True)
    assert bool(item.hint) == (level is FAIL)
    assert ("LD_LIBRARY_PATH" in item.hint) == (level is FAIL and folder == COMPAT)


# A switch is two functions of the path: its upstream port and a downstream one.
ROOT, OTHER = "pci0000:15/0000:15:01.0", "pci0000:97/0000:97:01.0"
GPU = f"{ROOT}/0000:16:00.0/0000:17:00.0/0000:18:00.0"
NEAR = f"{ROOT}/0000:16:00.0/0000:17:01.0/0000:1a:00.0"
FAR = f"{OTHER}/0000:98:00.0/0000:99:00.0/0000:9a:00.0"


@pytest.mark.parametrize(
    ("path", "numa", "name"),
    [
        (NEAR, (0, 0), "PIX"),
        (f"{ROOT}/0000:16:00.0/0000:17:02.0/0000:1b:00.0/0000:1c:00.0/1d:00.0", (0, 0), "PXB"),
        (FAR, (0, 0), "PHB"),
        ("pci0000:15/0000:15:03.0/0000:1f:00.0", (0, 0), "PHB"),
        (FAR, (0, 1), "SYS"),
        ("pci0000:00/0000:00:05.0", (-1, -1), "PHB"),  # as in a virtual machine
    ],
)
def test_the_distance_of_two_devices_has_nccls_name(
    path: str, numa: tuple[int, int], name: str
) -> None:
    assert network.distance(GPU, path, numa) == name
    assert network.distance(path, GPU, numa[::-1]) == name


def test_a_gpu_without_a_near_device_is_a_warning_unless_nccl_is_told() -> None:
    numa = {"0000:18:00.0": 0, "mlx5_0": 0, "mlx5_1": 1}
    near = PciPart({"0000:18:00.0": GPU}, {"mlx5_0": NEAR, "mlx5_1": f"{OTHER}/x"}, numa)
    assert told(network.gpu_distance(near, {})) == ["ok: 0000:18:00.0: mlx5_0 PIX"]
    far = replace(near, devices={"mlx5_1": f"{OTHER}/x"})
    (found,) = network.gpu_distance(far, {})
    message = "NCCL takes no RDMA device as near to 1 GPU (0000:18:00.0)"
    assert told([found]) == [f"warn: {message}: GPUDirect RDMA is off there"]
    assert found.evidence == ("0000:18:00.0: mlx5_1 SYS",)
    (found,) = network.gpu_distance(far, {"NCCL_TOPO_FILE": "/t"})
    assert found.level is Level.OK
    assert told(network.gpu_distance(replace(near, gpus={}), {})) == []


# -- the settings of an OpenSSH server that runs ---------------------------------------------------

# Of OpenSSH 9.2 (Debian 12), `sshd -T -C user=root,host=localhost,addr=127.0.0.1`, in part.
SSHD_T = """port 22
addressfamily any
permitrootlogin without-password
pubkeyauthentication yes
strictmodes yes
authorizedkeysfile .ssh/authorized_keys .ssh/authorized_keys2
authenticationmethods any
maxstartups 10:30:100
"""
OTHERS_WRITE = "StrictModes yes, and others may write /root/.ssh (mode 0664)"


@pytest.mark.parametrize(
    ("values", "ssh_folder", "message"),
    [
        ({}, None, ""),
        ({"pubkeyauthentication": "no"}, None, "PubkeyAuthentication no"),
        ({"authenticationmethods": "password"}, None, "AuthenticationMethods password"),
        ({"permitrootlogin": "no"}, None, "PermitRootLogin no"),
        ({"permitrootlogin": "forced-commands-only"}, None, "PermitRootLogin forced-commands-only"),
        ({"allowusers": "mpi ops@10.*"}, None, "AllowUsers mpi ops@10.*"),
        ({"denyusers": "ro*"}, None, "DenyUsers ro*"),
        ({"strictmodes": "yes"}, (0o644, 0), ""),
        ({"strictmodes": "yes"}, (0o664, 0), OTHERS_WRITE),
        ({"strictmodes": "yes"}, (0o700, 7), "StrictModes yes, and /root/.ssh is of uid 7"),
        ({"strictmodes": "no"}, (0o666, 7), ""),
    ],
)
def test_a_setting_of_sshd_that_keeps_this_user_out_fails(
    values: Mapping[str, str], ssh_folder: tuple[int, int] | None, message: str
) -> None:
    seen = looks.parsed(SSHD_T) | {name: (value,) for name, value in values.items()}
    keys = (("/root/.ssh", *ssh_folder),) if ssh_folder else ()
    server = SshdSettings(22, "/usr/sbin/sshd", seen, keys)
    good = "ok: sshd on port 22 takes the keys of root"
    bad = f"fail: sshd on port 22 does not let root in: {message}"
    assert told(pod.sshd_lets_in((server,), plans.ROOT)) == [bad if message else good]
    assert told(pod.sshd_lets_in((), plans.ROOT)) == []


def test_what_sshd_says_of_root_keeps_nobody_else_out() -> None:
    seen = looks.parsed(SSHD_T) | {"permitrootlogin": ("no",), "allowusers": ("uid*",)}
    (found,) = pod.sshd_lets_in((SshdSettings(22, "/sbin/sshd", seen),), plans.NOBODY)
    assert found.level is Level.OK


def test_an_sshd_that_cannot_be_asked_is_unknown_with_its_words() -> None:
    server = SshdSettings(22, "/sbin/sshd", {}, wrong="no hostkeys available -- exiting.")
    (found,) = told(pod.sshd_lets_in((server,), plans.ROOT))
    assert found.startswith("unknown: ")
    assert found.endswith("does not tell its settings: no hostkeys available -- exiting.")
