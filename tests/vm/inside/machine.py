"""What the tests in the virtual machine share: commands, pods as network namespaces, waiting."""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from mpiboot.core.facts import Fabric, Host, PodFacts, RdmaDevice, Worker, facts_from_json
from mpiboot.core.settings import resolve
from mpiboot.network import rdma
from mpiboot.worker import facts

Result = TypeVar("Result")

_NEWNS, _NEWNET = 0x20000, 0x40000000
_REC, _SLAVE = 0x4000, 0x80000
_libc = ctypes.CDLL(None, use_errno=True)


def run(command: str) -> str:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until the kernel's own work, which sends no event, is done."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come to that within a minute"
        time.sleep(0.02)


def in_pod(name: str, ask: Callable[[], Result], *, host_sys: bool = False, uid: int = 0) -> Result:
    """Call a function in a network namespace, with a sysfs of its own unless told otherwise."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            handle = os.open(f"/run/netns/{name}", os.O_RDONLY)
            assert _libc.setns(handle, _NEWNET) == 0
            if not host_sys:
                assert _libc.unshare(_NEWNS) == 0
                assert _libc.mount(b"none", b"/", None, _REC | _SLAVE, None) == 0
                assert _libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None) == 0
            if uid:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(ask(), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    assert data, "the function failed in the pod; its traceback is above"
    return cast("Result", pickle.loads(data))


@dataclass(frozen=True)
class Info:
    state: str
    mtu: int
    layer: str
    gids: tuple[tuple[int, str, str], ...]


def devinfo(name: str) -> Info:
    """Ask the RDMA library, which goes by the device node."""
    message = run(f"ibv_devinfo -v -d {name}")

    def value(key: str) -> str:
        found = re.search(rf"^\s*{key}:\s*(\S+)", message, re.MULTILINE)
        assert found, message
        return found.group(1)

    gids = re.findall(r"GID\[\s*(\d+)\]:\s*(\S+?)(?:, (.*))?$", message, re.MULTILINE)
    return Info(
        state=value("state").removeprefix("PORT_"),
        mtu=int(value("active_mtu")),
        layer=value("link_layer"),
        gids=tuple((int(index), gid, kind) for index, gid, kind in gids),
    )


def rdma_links() -> dict[str, dict[str, object]]:
    message = json.loads(run("rdma -j link show") or "[]")
    return {item["ifname"]: item for item in message}


def without_library() -> Fabric:
    """What kernel and sysfs tell where the image has no RDMA library; it takes no child."""
    return rdma.assemble(rdma.query_kernel(), Path("/sys"), Path("/dev"))


def device(name: str, fabric: Fabric | None = None) -> RdmaDevice:
    seen = rdma.observe() if fabric is None else fabric
    return next(item for item in seen.devices if item.name == name)


def rail(number: int, *addresses: str, mtu: int = 1500) -> None:
    """Make a link ``railN`` with a device ``rxeN`` on it, and the other end of its cable."""
    run(f"ip link add rail{number} type veth peer name far{number}")
    for end in (f"rail{number}", f"far{number}"):
        run(f"ip link set {end} mtu {mtu} up")
    run(f"rdma link add rxe{number} type rxe netdev rail{number}")
    for address in addresses:
        run(f"ip address add {address} dev rail{number} nodad")
    active(f"rxe{number}")
    for address in addresses:
        plain = address.partition("/")[0]
        has_gid(f"rxe{number}", f"::ffff:{plain}" if "." in plain else plain)


def active(name: str) -> None:
    wait_for(lambda: device(name, without_library()).ports[0].state == "ACTIVE")


def has_gid(name: str, gid: str) -> None:
    wait_for(lambda: gid in {one.value for one in device(name, without_library()).ports[0].gids})


def pod(name: str, number: int) -> str:
    """Make a pod with a control link; its address there."""
    run(f"ip netns add {name}")
    run(f"ip link add control{number} type veth peer name eth0 netns {name}")
    run(f"ip link set control{number} up")
    run(f"ip -n {name} link set eth0 up")
    run(f"ip -n {name} address add 10.99.0.{number}/24 dev eth0")
    return f"10.99.0.{number}"


def others_gid() -> None:
    """Put another pod's entry into the GID table of ``rxe0``, before its own."""
    pod("other", 9)
    run("ip link add net1 link rail0 type macvlan mode bridge")
    run("ip link set net1 netns other")
    run("ip -n other link set net1 up")
    run("ip -n other address add 10.9.0.77/24 dev net1")
    has_gid("rxe0", "::ffff:10.9.0.77")


def refuse_rdma_netlink() -> None:
    """Refuse this process the sockets of NETLINK_RDMA, as a seccomp profile may."""
    family, protocol, socket = 16, 20, 41  # of x86-64, on which the machine is one
    load, equal, give, refused, allowed = 0x20, 0x15, 6, 0x00050001, 0x7FFF0000
    rows = [(load, 0, 0, 0), (equal, 0, 5, socket), (load, 0, 0, 16), (equal, 0, 3, family)]
    rows += [(load, 0, 0, 32), (equal, 0, 1, protocol), (give, 0, 0, refused)]
    rows += [(give, 0, 0, allowed)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    filters = struct.pack("H6xP", len(rows), ctypes.addressof(program))
    assert _libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert _libc.prctl(22, 2, filters, 0, 0) == 0  # PR_SET_SECCOMP


def told(name: str = "") -> PodFacts:
    """Run the command that a person would; what it says is what a launcher reads."""
    enter = f"ip netns exec {name} " if name else ""
    found = facts_from_json(run(f"{enter}{sys.executable} -m mpiboot facts --json"))
    assert found is not None
    return found


def seen(name: str = "", *, refused: bool = False) -> PodFacts:
    """Gather what that command gathers, without a new interpreter, which takes seconds here.

    With ``refused`` the pod has a seccomp profile without NETLINK_RDMA.
    """

    def gather() -> PodFacts:
        if refused:
            refuse_rdma_netlink()
        return facts.gather(resolve({}, {}), dict(os.environ), mpi=None, pid=1)

    return in_pod(name, gather) if name else gather()


def worker(found: PodFacts, control: str = "", name: str = "w-0") -> Worker:
    return Worker(Host(name), control, 22, "root", control, found)


def clean() -> None:
    for name in rdma_links():
        run(f"rdma link delete {name}")
    for pod in run("ip netns list").splitlines():
        run(f"ip netns delete {pod.split()[0]}")
    for link in json.loads(run("ip -j link show") or "[]"):
        name = link["ifname"]
        if (Path("/sys/devices/virtual/net") / name).exists() and name != "lo":
            subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)
    wait_for(lambda: not rdma_links())
