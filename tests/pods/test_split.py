"""Control and data networks: the variables that ranks get, which link their bytes use, its proof.

No pod here can have an RDMA device. Of RDMA ports the counters are those of soft-RoCE in the
virtual machine (tests/vm/inside/job.py).
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import OLD_IMAGE, ONE_IMAGE, RING, crossed, ended
from tests.pods.network import Link
from tests.pods.operator import Job, mpijob
from tests.pods.volumes import EmptyDir, Files

FULL = pytest.mark.full
# What each rank has of the data network, beside the name of its host.
SHOW = (
    "import json, os, socket\n"
    "wanted = ('NCCL_', 'GLOO_', 'TP_', 'UCX_', 'NVIDIA_', 'VENDOR_')\n"
    "mine = {name: value for name, value in os.environ.items() if name.startswith(wanted)}\n"
    "print('has', json.dumps([socket.gethostname(), mine]))\n"
)
PROGRAM = ("mpirun", "python3", "-c", SHOW)


def on(link: str) -> dict[str, str]:
    """What ranks have where sockets use this link, but for UCX's."""
    sockets = dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), link)
    return {"NCCL_SOCKET_IFNAME": f"={link}", **sockets}


NET1, DRANET0 = ({**on(link), "UCX_NET_DEVICES": link} for link in ("net1", "dranet0"))
NO_ADDRESS = Link("net1", "br-data", ipv4=False)
# The launcher has no data link, and the second worker's has another name.
MIXED: dict[str, Any] = {
    "data_link": "net1",
    "launcher": {"links": (Link(),)},
    "each_worker": {1: {"links": (Link(), Link("dranet0", "br-data"))}},
}


def shown(job: Job) -> dict[str, dict[str, str]]:
    """Wait for the job's good end; the variables of each host's ranks."""
    assert job.wait() == 0
    lines = job.output.splitlines()
    message = [json.loads(line.removeprefix("has ")) for line in lines if line.startswith("has ")]
    assert len(message) == len(lines)
    return dict(message)


def pods(cluster: Cluster, image: Image, **details: Any) -> Job:
    """A job of two workers, of which each rank shows its variables; not yet started."""
    return mpijob(cluster, image, **{"launcher_args": PROGRAM, "data_link": "net1", **details})


def of_both(values: dict[str, str]) -> dict[str, dict[str, str]]:
    return {"pi-worker-0": values, "pi-worker-1": values}


def settings(**own: str) -> dict[str, dict[str, str]]:
    return {"env": {f"MPIBOOT_{name.upper()}": value for name, value in own.items()}}


# Also where it fits no link, which NCCL itself says only after the start; and its log.
OF_THE_LINE = {"NCCL_SOCKET_IFNAME": "ib7", "NCCL_DEBUG": "INFO"}
OF_THE_LAUNCHER = {"NCCL_SOCKET_IFNAME": "=eth0", "UCX_NET_DEVICES": "eth0"}


@crossed("of", ["nobody", "launcher", "line"])
def test_a_users_value_wins_over_a_workers_link(cluster: Cluster, image: Image, of: str) -> None:
    own = {"line": OF_THE_LINE, "launcher": OF_THE_LAUNCHER, "nobody": {}}[of]
    flags = [word for pair in own.items() for word in ("-x", "=".join(pair))]
    line = ["mpirun", "-n", "2", *flags, *PROGRAM[1:]] if of == "line" else PROGRAM
    launcher = {**MIXED["launcher"], "env": own if of == "launcher" else {}}
    job = pods(cluster, image, **{**MIXED, "launcher": launcher, "launcher_args": line}).start()
    assert shown(job) == {"pi-worker-0": NET1 | own, "pi-worker-1": DRANET0 | own}
    assert ("NCCL_SOCKET_IFNAME=ib7 fits nothing" in job.log) == (of == "line")


@ONE_IMAGE
def test_a_value_of_a_worker_wins_there_and_only_there(cluster: Cluster, image: Image) -> None:
    """Of its pod, or of a vendor's profile that it reads."""
    script = "echo noise\nexport NCCL_SOCKET_IFNAME==eth0 VENDOR_HOST=\"on $(hostname) 'x'\"\n"
    profile = {
        "env": {"MPIBOOT_ENV_PROFILE": "/etc/vendor/set_nccl_env.sh"},
        "volumes": [Files("/etc/vendor", {"set_nccl_env.sh": script})],
    }
    own = {"NCCL_SOCKET_IFNAME": "^eth,net", "NCCL_IB_DISABLE": "0"}
    job = pods(cluster, image, each_worker={0: profile, 1: {"env": own}}).start()
    given = {"NCCL_SOCKET_IFNAME": "=eth0", "VENDOR_HOST": "on pi-worker-0 'x'"}
    assert shown(job) == {"pi-worker-0": NET1 | given, "pi-worker-1": NET1 | own}
    # What is left is lo, which NCCL takes for nothing but itself.
    (message,) = [line for line in job.log.splitlines() if "[nccl-value]" in line]
    assert "NCCL_SOCKET_IFNAME=^eth,net fits nothing" in message
    assert "pi-worker-1" in message


@OLD_IMAGE
def test_values_not_forwarded_come_by_the_agent(cluster: Cluster, image: Image) -> None:
    """The launcher's own value stays there, and each worker gets what is right on it."""
    launcher = {"env": {"MPIBOOT_NO_FORWARD": "NCCL_*", "NCCL_SOCKET_IFNAME": "lo"}}
    assert shown(pods(cluster, image, launcher=launcher).start()) == of_both(NET1)


@OLD_IMAGE
def test_a_launcher_that_runs_ranks_gets_its_own_value(cluster: Cluster, image: Image) -> None:
    links = {"links": (Link(), Link("dranet0", "br-data"))}
    job = pods(cluster, image, workers=1, as_worker=True, launcher=links).start()
    assert shown(job) == {"pi-launcher": DRANET0, "pi-worker-0": NET1}


@OLD_IMAGE
def test_without_a_second_link_sockets_stay(cluster: Cluster, image: Image) -> None:
    job = pods(cluster, image, data_link=None).start()
    assert shown(job) == of_both(on("eth0"))
    plan = re.findall("^mpiboot: plan ([^ ]+)", job.log, re.MULTILINE)
    assert {"data-network=none", "NCCL_SOCKET_IFNAME==eth0"} <= {*plan}
    assert "mpiboot: warning" not in job.log  # mpirun has its own


@crossed("names", ["the same", "different"])
def test_mpi_moves_to_the_data_link(cluster: Cluster, image: Image, names: str) -> None:
    """All ranks get one list of links: where names differ MPI stays, and is said to."""
    differ = names == "different"
    launcher = {**MIXED["launcher"], **settings(mpi_network="data")}
    details = {"each_worker": MIXED["each_worker"] if differ else {}, "launcher": launcher}
    job = ended(cluster, image, "mpirun", RING, "--bytes", "20", data_link="net1", **details)
    for worker in job.workers:
        sent = [worker.network.sent(name) for name in ("eth0", worker.network.links[1].name)]
        # Of the other network logins, daemons and facts.
        assert sent[not differ] > 15_000_000
        assert sent[differ] < 1_000_000
    stays = "MPI's data stays on the control link: the data links' names differ"
    assert (stays in job.log) == differ


def test_values_arrive_unchanged_and_secrets_hidden(cluster: Cluster, image: Image) -> None:
    """Nor does what the operator empties in its launcher reach a worker."""
    value = "a  b,c;d=\"e\" 'f'\n\t$HOME `g` \\ ü é %s #!*"
    secret = "a=secret-of-the-job; b"
    gpus = {"NVIDIA_VISIBLE_DEVICES": "GPU-1234", "NVIDIA_DRIVER_CAPABILITIES": "compute"}
    env = {
        "NCCL_ODD": value,
        "VENDOR_ODD": value,
        "VENDOR_API_TOKEN": secret,
        "PRTE_MCA_plm_base_verbose": "0",
        "MPIBOOT_FORWARD": "VENDOR_*,NVIDIA_*",
    }
    own = {**gpus, "VENDOR_OWN": value}
    details = {"data_link": None, "launcher": {"env": env}, "worker": {"env": own}}
    job = pods(cluster, image, **details).start()
    for mine in shown(job).values():
        assert (mine["NCCL_ODD"], mine["VENDOR_ODD"]) == (value, value)
        assert mine["VENDOR_API_TOKEN"] == secret
        assert own.items() <= mine.items()
    assert "secret-of" not in "".join(pod.stderr() for pod in job.pods)


@OLD_IMAGE
def test_an_address_that_comes_late_is_waited_for(cluster: Cluster, image: Image) -> None:
    details = {"launcher": settings(data_ifname="net1"), "worker": {"links": (Link(), NO_ADDRESS)}}
    job = pods(cluster, image, data_link=None, **details).start()
    job.launcher.logs("link net1 has no address yet")
    for number, worker in enumerate(job.workers):
        address = f"192.168.100.{number + 50}/24"
        worker.network.run("ip", "address", "add", address, "dev", "net1")
    assert shown(job) == of_both(NET1)


@ONE_IMAGE
@pytest.mark.parametrize("network", ["data", pytest.param("control", marks=FULL)])
def test_the_link_that_carried_the_data(cluster: Cluster, image: Image, network: str) -> None:
    folder = EmptyDir("/record")
    env = {"MPIBOOT_JOB_RECORD": "/record/job.json", "MPIBOOT_MPI_NETWORK": network}
    launcher = {"env": {**env, "MPIBOOT_LOG_LEVEL": "info"}, "volumes": (folder,)}
    line = ("mpirun", RING, "--bytes", "80")
    job = ended(cluster, image, *line, data_link="net1", launcher=launcher)
    assert folder.host
    found = json.loads((folder.host / "job.json").read_text())
    assert (found["exit"], found["ranks"], len(found["hosts"])) == (0, 2, 2)
    assert list(found["phases"]) == ["names", "ssh", "plan", "run", "end"]
    assert min(found["phases"].values()) >= 0
    assert found["phases"]["run"] > 0
    carried = found["transport"]
    used, other = ("net1", "eth0") if network == "data" else ("eth0", "net1")
    verdict = "ok" if network == "data" else "unused"
    assert (carried["planned"], carried["verdict"]) == ("TCP", verdict)
    assert carried["hosts"].keys() == set(found["hosts"])
    for ports in carried["hosts"].values():
        assert ports[used]["sent"] > 64 << 20 > 8 << 20 > ports[other]["sent"]
    assert re.search(r"\nmpiboot: data: net1 sent .* per worker.* \(TCP\); eth0 ", job.log)
