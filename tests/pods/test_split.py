"""Control here, data there: what ranks get of the data network, and where their bytes go."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.pods import images
from tests.pods.network import Link
from tests.pods.operator import mpijob
from tests.pods.volumes import Files
from tests.waiting import until

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster
    from tests.pods.images import Image
    from tests.pods.operator import Job

RING = "/opt/programs/ring"
# A guard against a hang only, many times what a job takes.
PATIENCE = 120
# What each rank has of the data network, beside the name of its host.
SHOW = (
    "import json, os, socket\n"
    "wanted = ('NCCL_', 'GLOO_', 'TP_', 'UCX_', 'NVIDIA_', 'VENDOR_')\n"
    "mine = {name: value for name, value in os.environ.items() if name.startswith(wanted)}\n"
    "print('has', json.dumps([socket.gethostname(), mine]))\n"
)
PROGRAM = ["python3", "-c", SHOW]
NET1 = {
    "NCCL_SOCKET_IFNAME": "=net1",
    "GLOO_SOCKET_IFNAME": "net1",
    "TP_SOCKET_IFNAME": "net1",
    "NCCL_IB_DISABLE": "1",
    "UCX_NET_DEVICES": "net1",
}
DRANET0 = {
    **NET1,
    "NCCL_SOCKET_IFNAME": "=dranet0",
    "GLOO_SOCKET_IFNAME": "dranet0",
    "TP_SOCKET_IFNAME": "dranet0",
    "UCX_NET_DEVICES": "dranet0",
}
# The launcher has no data link, and the second worker's has another name.
MIXED: dict[str, Any] = {
    "workers": 2,
    "data_link": "net1",
    "launcher": {"links": (Link(),)},
    "each_worker": {1: {"links": (Link(), Link("dranet0", "br-data"))}},
}


@pytest.fixture
def one_image(rig: None) -> Image:
    """For what doesn't depend on the MPI."""
    return images.image("openmpi-4.1")


def ended_well(job: Job) -> dict[str, dict[str, str]]:
    """Wait for the job's end; the variables of each host's ranks."""
    assert job.wait(PATIENCE) == 0
    lines = job.launcher.stdout().splitlines()
    message = [json.loads(line.removeprefix("has ")) for line in lines if line.startswith("has ")]
    assert len(message) == len(lines)
    return dict(message)


def settings(**own: str) -> dict[str, dict[str, str]]:
    return {"env": {f"MPIBOOT_{name.upper()}": value for name, value in own.items()}}


def test_a_second_link_carries_the_sockets_of_every_rank(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=2, data_link="net1", launcher_args=PROGRAM).start()
    assert ended_well(job) == {worker.hostname: NET1 for worker in job.workers}
    message = job.launcher.stderr()
    for worker in job.workers:
        address = worker.network.addresses("net1")[0]
        (row,) = [line for line in message.splitlines() if f"net1 {address}" in line]
        assert f"eth0 {worker.address}" in row
        assert worker.hostname in row


def test_each_worker_gets_the_name_of_its_own_link(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, launcher_args=PROGRAM, **MIXED).start()
    assert ended_well(job) == {"pi-worker-0": NET1, "pi-worker-1": DRANET0}


def test_a_value_of_the_mpirun_line_wins(cluster: Cluster, image: Image) -> None:
    """Also where it fits no link, which NCCL itself says only after the start; and its log."""
    own = {"NCCL_SOCKET_IFNAME": "ib7", "NCCL_DEBUG": "INFO"}
    given = [word for pair in own.items() for word in ("-x", "=".join(pair))]
    line = ["mpirun", "-n", "2", *given, *PROGRAM]
    job = mpijob(cluster, image, launcher_args=line, **MIXED).start()
    assert ended_well(job) == {"pi-worker-0": NET1 | own, "pi-worker-1": DRANET0 | own}
    message = job.launcher.stderr()
    assert "NCCL_SOCKET_IFNAME=ib7 fits nothing" in message
    assert "NCCL_DEBUG_FILE" in message


def test_a_value_of_the_launcher_wins(cluster: Cluster, image: Image) -> None:
    own = {"NCCL_SOCKET_IFNAME": "=eth0", "UCX_NET_DEVICES": "eth0"}
    details = {**MIXED, "launcher": {**MIXED["launcher"], "env": own}}
    job = mpijob(cluster, image, launcher_args=PROGRAM, **details).start()
    assert ended_well(job) == {"pi-worker-0": NET1 | own, "pi-worker-1": DRANET0 | own}


def test_a_value_of_a_worker_wins_there_and_only_there(cluster: Cluster, image: Image) -> None:
    own = {"NCCL_SOCKET_IFNAME": "^eth,net", "NCCL_IB_DISABLE": "0"}
    job = mpijob(
        cluster,
        image,
        workers=2,
        data_link="net1",
        launcher_args=PROGRAM,
        each_worker={1: {"env": own}},
    ).start()
    assert ended_well(job) == {"pi-worker-0": NET1, "pi-worker-1": NET1 | own}
    # What is left is lo, which NCCL takes for nothing but itself.
    message = [line for line in job.launcher.stderr().splitlines() if "[nccl-value]" in line]
    assert len(message) == 1
    assert "NCCL_SOCKET_IFNAME=^eth,net fits nothing" in message[0]
    assert "pi-worker-1" in message[0]


def test_what_may_not_be_forwarded_reaches_the_ranks_by_the_agent(
    cluster: Cluster, image: Image
) -> None:
    """The launcher's own value stays there, and each worker gets what is right on it."""
    launcher = {"env": {"MPIBOOT_NO_FORWARD": "NCCL_*", "NCCL_SOCKET_IFNAME": "lo"}}
    job = mpijob(
        cluster, image, workers=2, data_link="net1", launcher_args=PROGRAM, launcher=launcher
    ).start()
    assert ended_well(job) == {worker.hostname: NET1 for worker in job.workers}


def test_a_launcher_that_runs_ranks_gets_its_own_value(cluster: Cluster, image: Image) -> None:
    job = mpijob(
        cluster,
        image,
        workers=1,
        as_worker=True,
        data_link="net1",
        launcher_args=PROGRAM,
        launcher={"links": (Link(), Link("dranet0", "br-data"))},
    ).start()
    assert ended_well(job) == {"pi-launcher": DRANET0, "pi-worker-0": NET1}


def test_without_a_second_link_sockets_stay_and_the_log_is_short(
    cluster: Cluster, one_image: Image
) -> None:
    job = mpijob(cluster, one_image, workers=2, launcher_args=PROGRAM).start()
    expected = {
        "NCCL_SOCKET_IFNAME": "=eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TP_SOCKET_IFNAME": "eth0",
        "NCCL_IB_DISABLE": "1",
    }
    assert ended_well(job) == {worker.hostname: expected for worker in job.workers}
    message = job.launcher.stderr()
    names = ("data-", "NCCL_", "GLOO_", "TP_", "UCX_")
    plan = re.findall("^mpiboot: plan ([^ ]+)", message, re.MULTILINE)
    assert [item for item in plan if item.startswith(names)] == ["data-network=none"]
    assert "mpiboot: warning" not in message  # mpirun has its own


def test_off_sets_nothing(cluster: Cluster, one_image: Image) -> None:
    job = mpijob(
        cluster,
        one_image,
        workers=2,
        data_link="net1",
        launcher_args=PROGRAM,
        launcher=settings(data_network="off"),
    ).start()
    assert ended_well(job) == {worker.hostname: {} for worker in job.workers}


@pytest.mark.parametrize("names", ["the same", "different"])
def test_mpi_moves_to_the_data_link_when_asked_and_its_daemons_stay(
    cluster: Cluster, image: Image, names: str
) -> None:
    other = MIXED["each_worker"] if names == "different" else {}
    job = mpijob(
        cluster,
        image,
        workers=2,
        data_link="net1",
        each_worker=other,
        launcher_args=[RING, "--bytes", "20"],
        launcher={**MIXED["launcher"], **settings(mpi_network="data")},
    ).start()
    assert job.wait(PATIENCE) == 0
    for worker in job.workers:
        data, control = worker.network.links[1].name, "eth0"
        assert worker.counters(data).tx > 15_000_000
        # Logins, daemons, facts.
        assert 5_000 < worker.counters(control).tx < 1_000_000


# As NCCL does: the link by its name, the peers' addresses by another way.
SENDER = r"""
import fcntl, os, socket, struct
name = os.environ["NCCL_SOCKET_IFNAME"]
assert name.startswith("=") and "," not in name
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name[1:].encode()))
own = socket.inet_ntoa(asked[20:24])
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    data = socket.create_server((own, 5001))
    bootstrap = socket.create_server(("", 5000))
    bootstrap.accept()[0].sendall(own.encode())
    peer, got = data.accept()[0], 0
    while part := peer.recv(1 << 20):
        got += len(part)
    print("got", got)
else:
    while True:
        try:
            bootstrap = socket.create_connection(("pi-worker-0.pi", 5000))
            break
        except ConnectionRefusedError:
            pass
    to = bootstrap.recv(100).decode()
    socket.create_connection((to, 5001), source_address=(own, 0)).sendall(bytes(20 << 20))
"""


def test_a_tcp_program_that_follows_its_variable_uses_the_data_link(
    cluster: Cluster, one_image: Image
) -> None:
    job = mpijob(cluster, one_image, launcher_args=["python3", "-c", SENDER], **MIXED).start()
    assert job.wait(PATIENCE) == 0
    assert job.launcher.stdout() == f"got {20 << 20}\n"
    assert job.workers[1].counters("dranet0").tx > 20_000_000
    assert job.workers[1].counters("eth0").tx < 1_000_000


@pytest.mark.full
def test_macvlan_links_carry_the_data_of_a_tcp_program(cluster: Cluster, one_image: Image) -> None:
    links = {"links": (Link(), Link("net1", "br-data", kind="macvlan"))}
    job = mpijob(
        cluster,
        one_image,
        workers=2,
        worker=links,
        launcher=MIXED["launcher"],
        launcher_args=["python3", "-c", SENDER],
    ).start()
    assert job.wait(PATIENCE) == 0
    assert job.launcher.stdout() == f"got {20 << 20}\n"
    assert job.workers[1].counters("net1").tx > 20_000_000
    assert job.workers[1].counters("eth0").tx < 1_000_000


@pytest.mark.full
@pytest.mark.parametrize("subnet", ["192.168.101", "192.168.100"])
def test_several_data_links_are_all_taken_and_what_is_odd_about_them_is_said(
    cluster: Cluster, one_image: Image, subnet: str
) -> None:
    def links(mtu: int) -> dict[str, object]:
        return {
            "links": (Link(), Link("net1", "br-data", mtu), Link("net2", "br-data", ipv4=False))
        }

    job = mpijob(
        cluster,
        one_image,
        workers=2,
        each_worker={0: links(1500), 1: links(1400)},
        launcher_args=PROGRAM,
    )
    for number, worker in enumerate(job.workers):
        address = f"{subnet}.{number + 200}/24"
        worker.network.run("ip", "address", "add", address, "dev", "net2")
    job.start()
    both = {
        **NET1,
        "NCCL_SOCKET_IFNAME": "=net1,net2",
        "UCX_NET_DEVICES": "net1,net2",
    }
    assert ended_well(job) == {worker.hostname: both for worker in job.workers}
    message = job.launcher.stderr()
    assert "net1, net2: nothing tells which of these links is the data network" in message
    assert "pi-worker-1.pi.default.svc: 1400, 1500; the others (1): 1500" in message
    assert ("are in one subnet" in message) == (subnet == "192.168.100")


@pytest.mark.full
def test_data_links_that_lead_to_different_networks_are_not_used(
    cluster: Cluster, one_image: Image
) -> None:
    job = mpijob(cluster, one_image, workers=2, data_link="net1", launcher_args=PROGRAM)
    job.workers[1].network.run("ip", "address", "flush", "dev", "net1")
    job.workers[1].network.run("ip", "address", "add", "172.30.1.5/24", "dev", "net1")
    job.start()
    for mine in ended_well(job).values():
        assert mine["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert "has no route over net1 to" in job.launcher.stderr()


def test_odd_values_arrive_byte_for_byte_and_a_secret_is_never_shown(
    cluster: Cluster, image: Image
) -> None:
    odd = "a  b,c;d=\"e\" 'f'\n\t$HOME `g` \\ ü é %s #!*"
    secret = "a=secret-of-the-job; b"
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=PROGRAM,
        launcher={
            "env": {
                "NCCL_ODD": odd,
                "VENDOR_ODD": odd,
                "VENDOR_API_TOKEN": secret,
                "PRTE_MCA_plm_base_verbose": "0",
                "MPIBOOT_FORWARD": "VENDOR_*",
            }
        },
    ).start()
    for mine in ended_well(job).values():
        assert (mine["NCCL_ODD"], mine["VENDOR_ODD"]) == (odd, odd)
        assert mine["VENDOR_API_TOKEN"] == secret
    assert "secret-of" not in "".join(pod.stderr() for pod in job.pods)


def test_the_emptied_gpu_variables_of_the_launcher_reach_no_worker(
    cluster: Cluster, image: Image
) -> None:
    gpus = {"NVIDIA_VISIBLE_DEVICES": "GPU-1234", "NVIDIA_DRIVER_CAPABILITIES": "compute"}
    asks = {"env": {"MPIBOOT_FORWARD": "NVIDIA_*"}}
    job = mpijob(
        cluster, image, workers=2, launcher_args=PROGRAM, launcher=asks, worker={"env": gpus}
    ).start()
    for mine in ended_well(job).values():
        assert gpus.items() <= mine.items()


def test_a_data_link_that_no_worker_has_ends_the_job(cluster: Cluster, one_image: Image) -> None:
    job = mpijob(
        cluster,
        one_image,
        workers=2,
        data_link="net1",
        launcher_args=PROGRAM,
        launcher=settings(data_ifname="net7"),
    ).start()
    assert job.wait(PATIENCE) == 72
    message = job.launcher.termination_log()
    assert message.startswith("data-link: ")
    assert "MPIBOOT_DATA_IFNAME: no link net7" in message
    assert job.launcher.stdout() == ""


def test_a_data_link_that_some_workers_lack_ends_the_job_and_names_these(
    cluster: Cluster, one_image: Image
) -> None:
    wish = settings(data_ifname="dranet0")
    job = mpijob(cluster, one_image, launcher_args=PROGRAM, **{**MIXED, "launcher": wish}).start()
    assert job.wait(PATIENCE) == 72
    message = job.launcher.termination_log()
    assert message.startswith("data-link: pi-worker-0")
    assert "pi-worker-1" not in message


def test_require_without_rdma_ends_the_job(cluster: Cluster, one_image: Image) -> None:
    job = mpijob(
        cluster,
        one_image,
        workers=2,
        data_link="net1",
        launcher_args=PROGRAM,
        launcher=settings(data_network="require"),
    ).start()
    assert job.wait(PATIENCE) == 72
    message = job.launcher.termination_log()
    assert message.startswith("rdma-missing: ")
    assert "pi-worker-0" in message
    assert "k8s.v1.cni.cncf.io/networks" in message
    assert job.launcher.stdout() == ""


def test_a_data_link_in_the_subnet_of_the_control_link_is_said(
    cluster: Cluster, one_image: Image
) -> None:
    job = mpijob(cluster, one_image, workers=2, data_link="net1", launcher_args=PROGRAM)
    for number, worker in enumerate(job.workers):
        worker.network.run("ip", "address", "flush", "dev", "net1")
        worker.network.run("ip", "address", "add", f"10.244.9.{number + 1}/16", "dev", "net1")
    job.start()
    ended_well(job)
    lines = job.launcher.stderr().splitlines()
    about = [text for text in lines if "are in one subnet" in text]
    assert len(about) == 2
    for number, (line, worker) in enumerate(zip(about, job.workers, strict=True)):
        assert f"eth0 ({worker.address}/24) and net1 (10.244.9.{number + 1}/16)" in line


def test_an_address_that_comes_late_is_waited_for(cluster: Cluster, one_image: Image) -> None:
    late = (Link(), Link("net1", "br-data", ipv4=False))
    job = mpijob(
        cluster,
        one_image,
        workers=2,
        launcher_args=PROGRAM,
        launcher=settings(data_ifname="net1"),
        worker={"links": late},
    ).start()
    end = time.monotonic() + PATIENCE
    while "link net1 has no address yet" not in job.launcher.stderr():
        assert time.monotonic() < end, "it waits for nothing"
        time.sleep(0.05)
    for number, worker in enumerate(job.workers):
        address = f"192.168.100.{number + 50}/24"
        worker.network.run("ip", "address", "add", address, "dev", "net1")
    assert ended_well(job) == {worker.hostname: NET1 for worker in job.workers}


def test_an_address_that_never_comes_is_waited_for_until_the_deadline(
    cluster: Cluster, one_image: Image
) -> None:
    job = mpijob(
        cluster,
        one_image,
        workers=2,
        launcher_args=PROGRAM,
        launcher=settings(data_ifname="net1", timeout="10"),
        worker={"links": (Link(), Link("net1", "br-data", ipv4=False))},
    )
    # The deadline is the address's alone: all else is there before.
    for worker in job.workers:
        worker.start()
    until(lambda: all("listens" in worker.stderr() for worker in job.workers))
    job.launcher.start()
    job.publish()
    for mine in ended_well(job).values():
        assert mine["NCCL_SOCKET_IFNAME"] == "=eth0"
    message = " ".join(job.launcher.stderr().split())
    assert "warning: the data network of 2 hosts is not ready after" in message
    assert f"{job.workers[0].hostname}.pi.default.svc (link net1 has no address yet)" in message


# A fabric that passes RDMA alone.
NO_TCP = """
table inet fabric {
    chain input {
        type filter hook input priority 0;
        iifname "net1" meta l4proto tcp %s
    }
}
"""


@pytest.mark.parametrize("verdict", ["drop", "reject with tcp reset"])
def test_sockets_stay_where_tcp_passes(cluster: Cluster, one_image: Image, verdict: str) -> None:
    job = mpijob(cluster, one_image, workers=2, data_link="net1", launcher_args=PROGRAM)
    first, second = job.workers
    for worker in job.workers:
        worker.network.run("nft", "-f", "-", stdin=NO_TCP % verdict)
    job.start()
    on_control = {**NET1, "NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    on_control |= {"TP_SOCKET_IFNAME": "eth0", "UCX_NET_DEVICES": "eth0"}
    assert ended_well(job) == {worker.hostname: on_control for worker in job.workers}
    message = " ".join(job.launcher.stderr().split())
    assert "[data-sockets] TCP does not pass on the data network: pi-worker-" in message
    there = [worker.network.addresses("net1")[0] for worker in (first, second)]
    assert any(
        f"can't reach {worker.hostname}.pi.default.svc ({address} port" in message
        for worker, address in zip((first, second), there, strict=True)
    )
    assert "(and 1 more); the control addresses answer, so mpiboot puts no sockets on it" in message


def profile(script: str) -> dict[str, object]:
    return {
        "env": {"MPIBOOT_ENV_PROFILE": "/etc/vendor/set_nccl_env.sh"},
        "volumes": [Files("/etc/vendor", {"set_nccl_env.sh": script})],
    }


def test_a_vendors_profile_is_evaluated_on_each_worker_and_wins(
    cluster: Cluster, image: Image
) -> None:
    script = "echo noise\nexport NCCL_SOCKET_IFNAME==eth0 VENDOR_HOST=\"on $(hostname) 'x'\"\n"
    job = mpijob(
        cluster,
        image,
        workers=2,
        data_link="net1",
        launcher_args=PROGRAM,
        worker=profile(script),
    ).start()
    assert ended_well(job) == {
        host: {**NET1, "NCCL_SOCKET_IFNAME": "=eth0", "VENDOR_HOST": f"on {host} 'x'"}
        for host in ("pi-worker-0", "pi-worker-1")
    }


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("export VENDOR_X=1\necho no such card >&2\nreturn 3\n", "ended with 3: no such card"),
        pytest.param("export VENDOR_X=1\nsleep 1000\n", "longer than 10 s", marks=pytest.mark.full),
        pytest.param(
            "export VENDOR_X=1\nhead -c 99999 /dev/urandom >&2; printf '\\377\\1 x' >&2\nfalse\n",
            "ended with 1: ",
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_profile_that_fails_is_one_line_and_the_job_runs(
    cluster: Cluster, one_image: Image, script: str, message: str
) -> None:
    job = mpijob(
        cluster, one_image, workers=1, launcher_args=PROGRAM, worker=profile(script)
    ).start()
    (mine,) = ended_well(job).values()
    assert "VENDOR_X" not in mine
    lines = job.workers[0].stderr().splitlines()
    assert len([line for line in lines if message in line]) == 1
