"""Each judge of a pod's parts, with a value for every outcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from mpiboot.core.model import Fabric, Finding, Gpus, Level, Mesh, PodFacts, RdmaDevice, Route
from mpiboot.core.settings import Settings
from mpiboot.doctor import network, pod
from mpiboot.doctor.checks import BY_REFERENCE
from mpiboot.doctor.network import PciPart
from mpiboot.doctor.pod import (
    FolderPart,
    ImagePart,
    KeyPart,
    LimitsPart,
    MemoryPart,
    Program,
    ServersPart,
    ShimsPart,
    ShmPart,
    SshdPart,
    SshListener,
)
from tests.fakes import plans

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
MPI = plans.MPIS["openmpi4"]
ORTED = Program("orted", "/usr/bin/orted")
GIB, MIB = 1 << 30, 1 << 20

_FACTS = plans.worker(plans.hosts(2)[0], 0, MPI).facts
assert _FACTS is not None
FACTS: PodFacts = _FACTS


def told(found: Iterable[Finding]) -> list[tuple[Level, str]]:
    """Level and sentence; what is not well says what to do."""
    listed = list(found)
    assert all(item.hint or item.level is OK for item in listed)
    assert all(item.check in BY_REFERENCE for item in listed)
    return [(item.level, item.message) for item in listed]


# -- image -----------------------------------------------------------------------------------------


def an_image(
    ssh: str = "/usr/bin/ssh", daemon: Program | None = ORTED, lacks: tuple[str, ...] = ()
) -> ImagePart:
    listed = (Program("mpirun", MPI.path, lacks), Program("ssh", ssh))
    return ImagePart(MPI, listed, daemon, "3.11.2", (), "/usr/bin")


def test_mpirun_and_ssh_are_told_with_their_place() -> None:
    assert told(pod.programs(an_image())) == [
        (OK, "mpirun is /usr/bin/mpirun, mpirun (Open MPI) 4.1.4"),
        (OK, "ssh is /usr/bin/ssh"),
    ]


def test_no_mpirun_fails_and_no_ssh_does_not() -> None:
    seen = ImagePart(None, (Program("ssh", ""),), None, "3.11.2", (), "/opt/bin:/bin")
    (first, _) = found = list(pod.programs(seen))
    assert told(found) == [
        (FAIL, "no mpirun or mpiexec in a folder of PATH"),
        (OK, "no ssh on PATH; only a launcher needs one"),
    ]
    assert first.evidence == ("PATH=/opt/bin:/bin",)
    assert list(pod.daemon(seen)) == []


@pytest.mark.parametrize(
    ("daemon", "found"),
    [
        (ORTED, [(OK, "orted is /usr/bin/orted")]),
        (
            Program("orted", ""),
            [(FAIL, "/usr/bin/mpirun has no orted beside it or on PATH")],
        ),
        (None, []),
    ],
)
def test_mpirun_needs_its_daemon(daemon: Program | None, found: list[tuple[Level, str]]) -> None:
    assert told(pod.daemon(an_image(daemon=daemon))) == found


def test_a_program_that_lacks_a_library_is_named_with_the_loaders_line() -> None:
    lines = ("libhwloc.so.15 => not found",)
    (found,) = pod.libraries(an_image(lacks=lines))
    message = "/usr/bin/mpirun does not find all of its shared libraries"
    assert (found.level, found.message, found.evidence) == (FAIL, message, lines)
    own = Program("orted", "/usr/bin/orted", ("libevent.so => not found",))
    assert [item.message for item in pod.libraries(an_image(daemon=own))] == [
        "/usr/bin/orted does not find all of its shared libraries"
    ]
    good = "shared libraries: all are found for mpirun, orted"
    assert told(pod.libraries(an_image(ssh=""))) == [(OK, good)]


def test_a_module_that_is_not_installed_is_named() -> None:
    assert told(pod.python(an_image())) == [(OK, "Python 3.11.2 has what mpiboot needs")]
    seen = replace(an_image(), modules=("dns", "pyroute2"))
    assert told(pod.python(seen)) == [(FAIL, "Python 3.11.2 does not find dns, pyroute2")]


def test_a_uid_without_a_passwd_entry_is_a_warning() -> None:
    assert told(pod.passwd(plans.ROOT)) == [(OK, "uid 0 is root, at home in /root")]
    assert told(pod.passwd(plans.NOBODY)) == [(WARN, "uid 1000 has no passwd entry")]


@pytest.mark.parametrize(
    ("sshd", "found"),
    [
        (SshdPart("/usr/sbin/sshd", ""), (OK, "/usr/sbin/sshd can serve")),
        (SshdPart("", "no sshd"), (OK, "mpiboot's own SSH server serves: no sshd")),
        (
            SshdPart("/usr/sbin/sshd", "sshd as root needs the capabilities SYS_CHROOT"),
            (
                WARN,
                (
                    "/usr/sbin/sshd can't serve, so mpiboot's own server does: "
                    "sshd as root needs the capabilities SYS_CHROOT"
                ),
            ),
        ),
    ],
)
def test_an_sshd_that_is_there_and_cannot_serve_is_a_warning(
    sshd: SshdPart, found: tuple[Level, str]
) -> None:
    assert told(pod.openssh(sshd, plans.ROOT)) == [found]


def test_under_a_random_uid_mpiboots_own_server_is_no_trouble() -> None:
    seen = SshdPart("/usr/sbin/sshd", "uid 1000 has no passwd entry")
    assert [level for level, _ in told(pod.openssh(seen, plans.NOBODY))] == [OK]


def test_shims_are_told_where_there_are_any() -> None:
    assert told(pod.shims(ShimsPart("", ()))) == []
    assert told(pod.shims(ShimsPart("mpirun is mpiboot", ("mpiexec is not",)))) == [
        (OK, "mpirun is mpiboot"),
        (WARN, "mpiexec is not"),
    ]


# -- private folder and key ------------------------------------------------------------------------


def test_folder_and_tmpdir_are_judged_apart() -> None:
    wrong = (Finding("tmpdir", FAIL, "closed", hint="mount"),)
    assert told(pod.folder(FolderPart("/run/x", wrong))) == [(OK, "the private folder is /run/x")]
    assert told(pod.tmpdir(FolderPart("/run/x", wrong))) == [(FAIL, "closed")]
    none = Finding("runtime-folder", FAIL, "none", hint="mount")
    assert told(pod.folder(FolderPart("", (none,)))) == [(FAIL, "none")]


def test_a_key_is_told_with_its_type_and_who_may_read_it() -> None:
    seen = KeyPart("/k/id_rsa", "ssh-ed25519", "SHA256:x", 0o640, 0, read_only=True)
    message = "the key is /k/id_rsa, ssh-ed25519 SHA256:x, mode 0640 of uid 0, read-only"
    assert told(pod.key(seen)) == [(OK, message)]
    odd = Finding("ssh-key", WARN, "another key", hint="mount one")
    assert told(pod.key(replace(seen, read_only=False, odd=odd))) == [
        (OK, message.removesuffix(", read-only")),
        (WARN, "another key"),
    ]
    none = Finding("ssh-key", FAIL, "no key", hint="mount it")
    assert told(pod.key(KeyPart(wrong=none))) == [(FAIL, "no key")]


# -- limits and memory -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sessions", "first", "found"),
    [
        (
            {"locked memory": -1, "open files": 1024},
            {"locked memory": -1, "open files": 1024},
            [
                (
                    OK,
                    (
                        "SSH sessions have the limits of the first process: "
                        "locked memory unlimited, open files 1024"
                    ),
                )
            ],
        ),
        (
            {"locked memory": 65536, "open files": 1 << 20, "processes": 10},
            {"locked memory": -1, "open files": 1024, "processes": 20},
            [
                (
                    WARN,
                    (
                        "SSH sessions get less: locked memory 64 KiB "
                        "(the first process: unlimited), "
                        "processes 10 (the first process: 20)"
                    ),
                )
            ],
        ),
        ({}, {"open files": 1}, []),
    ],
)
def test_sessions_with_lower_limits_than_the_pod_are_a_warning(
    sessions: dict[str, int], first: dict[str, int], found: list[tuple[Level, str]]
) -> None:
    assert told(pod.limits(LimitsPart(sessions, first))) == found


@pytest.mark.parametrize(
    ("used", "most", "found"),
    [
        (5, 0, []),
        (90, 100, [(OK, "90 of 100 processes and threads")]),
        (91, 100, [(WARN, "91 of 100 processes and threads: the next may not start")]),
    ],
)
def test_a_pod_that_can_start_no_more_processes_is_a_warning(
    used: int, most: int, found: list[tuple[Level, str]]
) -> None:
    assert told(pod.processes(LimitsPart({}, {}, used, most))) == found


STALE = (("nccl-A", 32 * MIB), ("nccl-B", 32 * MIB))
LEFT = "2 files of NCCL in /dev/shm (64 MiB) that no process here holds: nccl-A, nccl-B"


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (ShmPart(GIB, 0), [(OK, "0 bytes of 1 GiB in /dev/shm in use")]),
        (ShmPart(GIB, GIB), [(WARN, "1 GiB of 1 GiB in /dev/shm in use")]),
        (ShmPart(GIB, 64 * MIB, STALE), [(WARN, LEFT)]),
        (ShmPart(GIB, GIB, STALE), [(WARN, LEFT), (WARN, "1 GiB of 1 GiB in /dev/shm in use")]),
        # Whoever could not be asked may hold them.
        (
            ShmPart(GIB, 64 * MIB, STALE, all_seen=False),
            [(OK, "64 MiB of 1 GiB in /dev/shm in use")],
        ),
    ],
)
def test_what_ended_ranks_left_in_shared_memory_is_named(
    seen: ShmPart, found: list[tuple[Level, str]]
) -> None:
    assert told(pod.shm(seen)) == found


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (MemoryPart(0, GIB, 0), (OK, "memory: 1 GiB (no limit) in use")),
        (MemoryPart(4 * GIB, GIB, 0), (OK, "memory: 1 GiB of 4 GiB in use")),
        (MemoryPart(GIB, GIB - MIB, 0), (WARN, "memory: 1023 MiB of 1 GiB in use")),
        (
            MemoryPart(4 * GIB, GIB, 1),
            (
                WARN,
                "out of memory: the kernel killed 1 time here; memory: 1 GiB of 4 GiB in use",
            ),
        ),
    ],
)
def test_memory_that_is_short_or_was_is_a_warning(
    seen: MemoryPart, found: tuple[Level, str]
) -> None:
    assert told(pod.memory(seen)) == [found]


MINE, THEIRS = "SSH-2.0-OpenSSH_9.2p1 mpiboot", "SSH-2.0-OpenSSH_9.2p1 Debian"
GREETS = f"greets with {THEIRS!r}, process 7 (sshd): "


@pytest.mark.parametrize(
    ("own", "server", "found"),
    [
        (
            22,
            SshListener(22, MINE, 7, "sshd", ours=True),
            [(OK, "port 22 is mpiboot's, process 7 (sshd)")],
        ),
        (22, SshListener(22, MINE, ours=True), [(OK, "port 22 is mpiboot's")]),
        (
            22,
            SshListener(22, THEIRS, 7, "sshd"),
            [(FAIL, f"port 22 {GREETS}not mpiboot's, whose port it is")],
        ),
        (
            0,
            SshListener(2222, THEIRS, 7, "sshd"),
            [(WARN, f"port 2222 {GREETS}an SSH server that mpiboot did not start")],
        ),
        (2222, SshListener(22, THEIRS), []),  # as a node's own beside a pod with hostNetwork
        (0, SshListener(22, MINE, ours=True), []),
        (22, SshListener(22, "SSH-2.0-AsyncSSH"), []),  # whose process can't be seen
    ],
)
def test_whose_ssh_server_has_the_port_is_told(
    own: int, server: SshListener, found: list[tuple[Level, str]]
) -> None:
    assert told(pod.ssh_servers(ServersPart(own, (server,)))) == found


# -- network ---------------------------------------------------------------------------------------

TWO = replace(
    FACTS, links=(plans.link("eth0", "10.244.0.2/24"), plans.link("net1", "192.168.1.2/24"))
)


@pytest.mark.parametrize(
    ("facts", "values", "found"),
    [
        (FACTS, {"eth0": 1}, []),
        (TWO, {"eth0": 0, "net1": 2}, [(OK, "not strict on eth0, net1")]),
        (
            TWO,
            {"eth0": 0, "net1": 1},
            [
                (
                    WARN,
                    (
                        "rp_filter is 1 (strict) on net1: packets whose answer would leave "
                        "by another "
                        "link are dropped without a word"
                    ),
                )
            ],
        ),
    ],
)
def test_a_strict_link_among_several_is_a_warning(
    facts: PodFacts, values: dict[str, int], found: list[tuple[Level, str]]
) -> None:
    assert told(network.rp_filter(values, facts)) == found


@pytest.mark.parametrize(
    ("links", "found"),
    [
        ((), []),
        (("eth0", "eth0"), [(OK, "the default route leaves by eth0")]),
        (
            ("eth0", "net1"),
            [(WARN, "0.0.0.0/0 leaves by eth0 and by net1: the kernel decides by metric")],
        ),
    ],
)
def test_two_links_with_a_default_route_are_a_warning(
    links: tuple[str, ...], found: list[tuple[Level, str]]
) -> None:
    routes = tuple(Route("0.0.0.0/0", link) for link in links)
    assert told(network.default_routes(replace(FACTS, fabric=Fabric(routes=routes)))) == found


def test_a_proxy_in_front_of_the_pod_is_a_warning() -> None:
    seen = Mesh("istio", ("its ports listen",))
    assert [level for level, _ in told(network.mesh(seen, Settings()))] == [WARN]
    assert told(network.mesh(None, Settings())) == []


# -- variables -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"NCCL_DEBUG": "WARN", "I_MPI_DEBUG": "0", "OMPI_MCA_plm_base_verbose": "0"}, []),
        ({"NCCL_DEBUG": "info"}, ["NCCL_DEBUG=info"]),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}, []),
        (
            {"UCX_LOG_LEVEL": "debug", "OMPI_MCA_btl_base_verbose": "100"},
            ["UCX_LOG_LEVEL=debug, OMPI_MCA_btl_base_verbose=100"],
        ),
    ],
)
def test_debug_output_that_was_left_on_is_named(environ: dict[str, str], found: list[str]) -> None:
    assert told(network.debug(environ)) == [(WARN, message) for message in found]


@pytest.mark.parametrize(("other", "count"), [("", 0), ("lo", 1)])
def test_two_variables_that_exclude_each_other_are_named(other: str, count: int) -> None:
    environ = {"OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_MCA_btl_tcp_if_exclude": other}
    message = (
        "OMPI_MCA_btl_tcp_if_include and OMPI_MCA_btl_tcp_if_exclude exclude each other: "
        "ranks then have no TCP"
    )
    assert told(network.two_settings(environ)) == [(WARN, message)] * count


def device(name: str) -> RdmaDevice:
    return RdmaDevice(0, name, "roce", "CA", "", "mlx5", "", "/dev/infiniband/uverbs0", "", ())


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
def test_a_name_that_nccl_takes_for_a_prefix_is_told(value: str, means: str) -> None:
    devices = tuple(device(f"mlx5_{number}") for number in (1, 2, 10, 11))
    fabric = Fabric(devices=devices, settings=(("NCCL_IB_HCA", value),))
    found = list(network.prefixes(replace(FACTS, fabric=fabric)))
    message = f"NCCL_IB_HCA={value}: mlx5_1 is a prefix for NCCL, and means {means} too"
    assert told(found) == ([(WARN, message)] if means else [])
    sign = "^=" if value.startswith("^") else "="
    assert all(item.hint == f"write NCCL_IB_HCA={sign}{value.lstrip('^')}" for item in found)


@pytest.mark.parametrize(
    ("name", "family", "instead"),
    [
        ("OMPI_MCA_orte_keep_fqdn_hostnames", "openmpi4", ""),
        ("OMPI_MCA_rmaps_base_oversubscribe", "openmpi5", "MPIBOOT_OVERSUBSCRIBE=true"),
        ("OMPI_MCA_btl_openib_if_include", "openmpi5", "it has no openib"),
        ("PRTE_MCA_rml_base_radix", "openmpi4", "write OMPI_MCA_routed_radix"),
    ],
)
def test_a_parameter_of_another_version_is_named_with_what_to_write(
    name: str, family: str, instead: str
) -> None:
    seen = replace(an_image(), mpi=plans.MPIS[family])
    found = told(network.unread({name: "1"}, seen))
    message = f"{plans.MPIS[family].banner} ignores {name} ({instead}"
    assert [item[1].startswith(message) for item in found] == [True] * bool(instead)
    assert list(network.unread({name: "1"}, replace(seen, mpi=None))) == []


# -- data network and GPUs -------------------------------------------------------------------------


def test_the_rules_of_a_launcher_are_those_of_one_pod() -> None:
    small = replace(FACTS, shm=64 * MIB, gpus=Gpus(2, "NVIDIA 2330"))
    assert told(network.data_network(small, Settings())) == [
        (WARN, "/dev/shm has 64 MiB for 2 ranks"),
        (OK, "no RDMA device of this pod; data goes over TCP"),
    ]


@pytest.mark.parametrize(
    ("gpus", "found"),
    [
        (Gpus(), []),
        (Gpus(8, "NVIDIA 2330"), [(OK, "8 GPUs: NVIDIA 2330")]),
        (
            Gpus(7, "NVIDIA 2330", lost=1),
            [(WARN, "1 of 8 GPUs in /dev, the kernel has no more")],
        ),
        (
            Gpus(8, "NVIDIA 2330", fabric="In Progress on 8 of 8 GPUs"),
            [
                (
                    WARN,
                    (
                        "NVLink fabric: In Progress on 8 of 8 GPUs; CUDA starts "
                        "when Fabric Manager "
                        "has set it up"
                    ),
                )
            ],
        ),
    ],
)
def test_gpus_are_judged_as_a_launcher_judges_them(
    gpus: Gpus, found: list[tuple[Level, str]]
) -> None:
    assert told(network.gpus(replace(FACTS, gpus=gpus))) == found


@pytest.mark.parametrize("ways", [(), ("DMA-BUF",)])
def test_gpus_whose_memory_no_rdma_device_reaches_are_a_warning(ways: tuple[str, ...]) -> None:
    own = Gpus(1, "NVIDIA 2330", peer_memory=ways)
    facts = replace(FACTS, gpus=own, fabric=Fabric(devices=(device("mlx5_0"),)))
    message = "RDMA devices reach no GPU memory: neither nvidia_peermem nor DMA-BUF"
    good = (OK, "1 GPU: NVIDIA 2330")
    assert told(network.gpus(facts)) == [good if ways else (WARN, message)]


# A switch is two functions of the path: its upstream port and a downstream one.
ROOT, OTHER = "pci0000:15/0000:15:01.0", "pci0000:97/0000:97:01.0"
GPU = f"{ROOT}/0000:16:00.0/0000:17:00.0/0000:18:00.0"


@pytest.mark.parametrize(
    ("device", "numa", "name"),
    [
        (f"{ROOT}/0000:16:00.0/0000:17:01.0/0000:1a:00.0", (0, 0), "PIX"),
        (
            f"{ROOT}/0000:16:00.0/0000:17:02.0/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0",
            (0, 0),
            "PXB",
        ),
        (f"{OTHER}/0000:98:00.0/0000:99:00.0/0000:9a:00.0", (0, 0), "PHB"),
        ("pci0000:15/0000:15:03.0/0000:1f:00.0", (0, 0), "PHB"),
        (f"{OTHER}/0000:98:00.0/0000:99:00.0/0000:9a:00.0", (0, 1), "SYS"),
        ("pci0000:00/0000:00:05.0", (-1, -1), "PHB"),  # as in a virtual machine
    ],
)
def test_the_way_between_two_devices_has_nccls_name(
    device: str, numa: tuple[int, int], name: str
) -> None:
    assert network.distance(GPU, device, numa) == name
    assert network.distance(device, GPU, numa[::-1]) == name


def test_a_gpu_without_a_near_device_is_a_warning_unless_nccl_is_told() -> None:
    near = PciPart(
        {"0000:18:00.0": GPU},
        {"mlx5_0": f"{ROOT}/0000:16:00.0/0000:17:01.0/0000:1a:00.0", "mlx5_1": f"{OTHER}/x"},
        {"0000:18:00.0": 0, "mlx5_0": 0, "mlx5_1": 1},
    )
    assert told(network.gpu_distance(near, {})) == [(OK, "0000:18:00.0: mlx5_0 PIX")]
    far = replace(near, devices={"mlx5_1": f"{OTHER}/x"})
    (found,) = network.gpu_distance(far, {})
    message = (
        "NCCL takes no RDMA device as near to 1 GPU (0000:18:00.0): GPUDirect RDMA is off there"
    )
    assert (found.level, found.message) == (WARN, message)
    assert found.evidence == ("0000:18:00.0: mlx5_1 SYS",)
    assert [level for level, _ in told(network.gpu_distance(far, {"NCCL_TOPO_FILE": "/t"}))] == [OK]
    assert told(network.gpu_distance(replace(near, gpus={}), {})) == []
