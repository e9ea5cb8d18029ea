"""This pod as it sees itself: user, addresses and CPUs; the text of its facts."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mpiboot.core.facts import Cpus, Fabric, PodFacts, facts_from_json, facts_to_json
from mpiboot.core.model import Identity
from mpiboot.core.settings import resolve
from mpiboot.network import pod
from mpiboot.ssh import server
from mpiboot.worker.facts import gather
from tests.fakes import workers as w

KNOWN = Identity(1000, 1000, "mpi", "/home/mpi", "/bin/bash", known=True, capabilities=0)
HOSTS = """\
127.0.0.1 localhost
127.0.1.1 w-0
::1 localhost w-0 # 10.0.0.9 w-0
10.244.0.5\tW-0.job.ns.svc.cluster.local w-0
fd00::5 w-0.job.ns.svc.cluster.local w-0
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    (tmp_path / "hosts").write_text(HOSTS)
    return tmp_path / "hosts"


def facts() -> PodFacts:
    found = w.sriov().facts
    assert found is not None
    return found


def read(**changes: object) -> PodFacts | None:
    """The facts as the launcher reads them, with other values in their text."""
    value = json.loads(facts_to_json(facts())) | changes
    return facts_from_json(json.dumps(value))


def test_facts_survive_the_way_to_the_launcher() -> None:
    for sent in (facts(), dataclasses.replace(facts(), mpi=None, links=())):
        assert facts_from_json(facts_to_json(sent)) == sent


def test_what_a_newer_or_an_older_mpiboot_has_is_overlooked_or_has_its_default() -> None:
    value = json.loads(facts_to_json(facts()))
    value["identity"]["new"] = 1
    value["links"][0]["new"] = []
    value["fabric"]["devices"][0]["ports"][0]["rate"] = 100
    assert read(**value, new={"a": 1}) == facts()
    del value["fabric"]
    del value["links"][0]["carrier"]
    older = facts_from_json(json.dumps(value))
    assert older == dataclasses.replace(facts(), fabric=Fabric())


def test_what_is_not_understood_is_no_facts() -> None:
    wrong = {"version": 1, "hostname": 3, "links": "eth0", "memlock": True, "identity": None}
    for name, value in (*wrong.items(), ("version", None), ("links", [1]), ("mpi", [])):
        assert read(**{name: value}) is None, name
    for text in ("", "{", "[]", "null", "Welcome\n", '{"version": 1}', "[" * 9999):
        assert facts_from_json(text) is None


@pytest.mark.parametrize(
    ("home", "shell", "used"),
    [("/home/mpi", "/bin/bash", ("/home/mpi", "/bin/bash")), ("", "", ("/", "/bin/sh"))],
)
def test_what_a_passwd_entry_leaves_empty_is_what_login_takes(
    home: str, shell: str, used: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The program of an empty last field is /bin/sh: passwd(5).
    entry = pwd.struct_passwd(("mpi", "x", os.getuid(), os.getgid(), "", home, shell))
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: entry)
    who = pod.identity({"HOME": "/elsewhere"})
    assert (who.user, who.home, who.shell, who.known) == ("mpi", *used, True)


def test_a_user_namespace_of_the_pods_own_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod, "USERS", tmp_path / "uid_map")
    seen = {"0 0 4294967295": False, "0 100000 65536": True, "0 0 1000": True, "": False}
    for text, expected in seen.items():
        (tmp_path / "uid_map").write_text(f"  {text}\n")
        assert pod.identity({}).own_users is expected


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another uid")
def test_a_uid_without_passwd_entry_gets_a_name_and_a_home() -> None:
    code = (
        "import os\nfrom mpiboot.network import pod\n"
        "os.setresgid(54321, 54321, 54321); os.setresuid(54321, 54321, 54321)\n"
        "who = pod.identity({'HOME': '/data'})\n"
        "print(who.user, who.home, who.known, who.shell, who.capabilities)\n"
        "print(pod.identity({}).home)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "uid54321 /data False /bin/sh 0\n/\n"


def test_user_and_home_are_completed_and_one_that_can_be_used_is_never_changed(
    tmp_path: Path,
) -> None:
    home = str(tmp_path)
    who = dataclasses.replace(KNOWN, home=home)
    assert pod.user_environment(who, {}) == {"USER": "mpi", "LOGNAME": "mpi", "HOME": home}
    given = {"USER": "a", "LOGNAME": "b", "HOME": home}
    assert pod.user_environment(who, given) == {}
    nobody = dataclasses.replace(KNOWN, home="/", known=False)
    for unusable in ("", "/", "//", "/nothing/such", "relative"):
        patch = pod.user_environment(nobody, {**given, "HOME": unusable}, tmp_path)
        assert patch == {"HOME": home}


def test_the_control_address_is_the_own_names_in_the_hosts_file_else_the_default_routes(
    hosts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pod.control_address("", "w-0", hosts) == ("10.244.0.5", f"w-0 in {hosts}")
    # What is far is on loopback here, so that the source address is known.
    monkeypatch.setattr(pod, "_OUTSIDE", ("255.255.255.255", "127.0.0.9"))
    route = ("127.0.0.1", "the default route's source address")
    assert pod.control_address("", "w-1", hosts) == route


# A node: its uplink, and a bridge whose pods are there.
NODE = """
ip link set lo up
ip link add cni0 type bridge
ip link add veth0 type veth peer name veth1
ip link set veth1 master cni0
ip link add ens3 type veth peer name ens4
ip addr add 10.244.1.1/24 dev cni0
ip addr add 10.0.0.5/24 dev ens3
for link in cni0 veth0 veth1 ens4 ens3; do ip link set $link up; done
%s
exec "$@"
"""
ADDRESS = """
from pathlib import Path
from mpiboot.network import pod
print("\\n".join(pod.control_address("", "node-1", Path("/nothing"), api="10.96.0.1")))
"""
NO_DEFAULT = "there is no default route"
ANY = f"{NO_DEFAULT} and none to the API, 10.96.0.1"


@pytest.mark.parametrize(
    ("routes", "address", "reason"),
    [
        ("ip route add default via 10.0.0.1", "10.0.0.5", "the default route's source address"),
        (
            "ip route add 10.96.0.0/12 dev cni0",
            "10.244.1.1",
            f"{NO_DEFAULT}; the source address of the route to the API, 10.96.0.1",
        ),
        ("", "10.0.0.5", f"{ANY}; an address of ens3"),
        ("ip link del ens3", "10.244.1.1", f"{ANY}; an address of cni0"),
        ("ip link del ens3; ip link del cni0", "", f"{ANY}, and no link has an address"),
    ],
)
def test_on_a_node_without_a_default_route_a_link_has_the_address(
    routes: str, address: str, reason: str
) -> None:
    if os.getuid() or not shutil.which("ip"):
        pytest.skip("needs root and ip")
    argv = ("unshare", "--net", "sh", "-ec", NODE % routes, "sh", sys.executable, "-c", ADDRESS)
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == f"{address}\n{reason}\n"


def test_a_wanted_link_or_address_is_taken(hosts: Path) -> None:
    for wanted, address in {
        "lo": "127.0.0.1",
        "127.0.0.2": "127.0.0.2",
        "10.0.0.5/24": "10.0.0.5",
        "127.0.0.0/8": "127.0.0.1",
        "127.0.0.2/32": "127.0.0.2",
        "nothing0": "",
        "198.51.100.0/24": "",  # no link of this pod is in it (RFC 5737)
    }.items():
        assert pod.control_address(wanted, "w-0", hosts)[0] == address


def test_own_names_are_those_on_the_lines_of_the_host_name(hosts: Path) -> None:
    assert set(pod.own_names("w-0", hosts)) == {"w-0", "w-0.job.ns.svc.cluster.local", "localhost"}
    assert pod.own_names("w-0", hosts / "none") == ()


def test_facts_of_this_pod_are_whole() -> None:
    """A process that has begun with variables of its own stands for the first one."""
    environ = {b"B": b"1=2", b"A": b"", b"\xff": b"x"}
    with subprocess.Popen(
        ("/bin/sh", "-c", "echo; read _"), env=environ, stdin=-1, stdout=-1
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = gather(resolve({}, {}), {}, pid=child.pid, mpi=None)
        child.communicate()
    assert (found.hostname, found.environment) == (socket.gethostname(), ("A", "B", "\udcff"))
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    assert found.memlock == (-1 if soft == resource.RLIM_INFINITY else soft)
    assert pod.spec_names(2**22 + 1) == ()


def test_a_worker_without_a_state_has_none(tmp_path: Path) -> None:
    assert server.worker_state(tmp_path) is None
    (tmp_path / server.WORKER_STATE).write_text("{}")
    assert server.worker_state(tmp_path) is None


def test_cpus_are_counted_with_their_cores_and_the_nodes(tmp_path: Path) -> None:
    (tmp_path / "online").write_text("0-3,6,8-9\n")
    for number, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert pod.cpus({0, 1, 2}, tmp_path, tmp_path) == Cpus(3, 2, 7)
    assert pod.cpus({0, 5}, tmp_path, tmp_path) is None
    assert pod.cpus({0}, tmp_path / "hidden", tmp_path) is None
