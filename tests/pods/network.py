"""The cluster's wires: bridges, network namespaces, and the links between them.

All of it lives in namespaces that the rig made; the host's own network is never touched.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

# What the first address of the pods' bridge and the name server have in most clusters.
DNS_ADDRESSES = ("10.96.0.10", "fd00:10:96::a")


_Address = tuple[IPv4Address | IPv6Address, IPv4Network | IPv6Network]


@dataclass(frozen=True)
class Bridge:
    """One layer-2 network; only one with a gateway leads anywhere, and there only to the node."""

    name: str
    ipv4: IPv4Network
    ipv6: IPv6Network
    gateway: bool


_POD = Bridge("br-pod", IPv4Network("10.244.0.0/24"), IPv6Network("fd00:10:244::/64"), gateway=True)
_DATA = Bridge(
    "br-data", IPv4Network("192.168.100.0/24"), IPv6Network("fd00:192:168:100::/64"), gateway=False
)
BRIDGES = {bridge.name: bridge for bridge in (_POD, _DATA)}


@dataclass(frozen=True)
class Link:
    """An interface of a pod: its name there, the bridge it leads to, and its families.

    With `ipv6_first` a pod of both has its IPv6 address as the first of podIPs.
    """

    name: str = "eth0"
    bridge: str = "br-pod"
    mtu: int = 1500
    ipv4: bool = True
    ipv6: bool = False
    ipv6_first: bool = False


@dataclass
class Node:
    """The namespaces that hold a cluster: bridges, DNS, mounts. Commands run inside them."""

    pid: int
    hosts: Iterator[int] = field(default_factory=lambda: itertools.count(10))
    pods: Iterator[int] = field(default_factory=itertools.count)

    def prefix(self) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--"]

    def run(self, *argv: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*self.prefix(), *argv], input=stdin, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            msg = f"{' '.join(argv)} failed with {done.returncode}: {done.stderr}{stdin}"
            raise RuntimeError(msg)
        return done.stdout

    def set_up(self) -> None:
        lines = ["link set lo up"]
        # Without a look for duplicates, during which nobody can listen on the address.
        lines += [
            f"address add {address} dev lo" + (" nodad" if ":" in address else "")
            for address in DNS_ADDRESSES
        ]
        for number, bridge in enumerate(BRIDGES.values()):
            # A bridge without an address of its own takes its ports' lowest, and so changes it when
            # a pod comes or goes: the others would lose their gateway for half a minute.
            address = f"address 02:00:00:00:00:{number:02x}"
            lines += [f"link add {bridge.name} {address} type bridge", f"link set {bridge.name} up"]
            if bridge.gateway:
                lines += [
                    f"address add {network[1]}/{network.prefixlen} dev {bridge.name}"
                    + (" nodad" if network.version == 6 else "")
                    for network in (bridge.ipv4, bridge.ipv6)
                ]
        self.run("ip", "-batch", "-", stdin="\n".join(lines))


@dataclass
class Netns:
    """A network namespace with its links: a pod's sandbox, or a node for hostNetwork pods."""

    node: Node
    name: str
    links: Sequence[Link]
    number: int = field(init=False)

    def __post_init__(self) -> None:
        self.number = next(self.node.hosts)  # the host part of its addresses
        outer = [f"netns add {self.name}"]
        inner = ["link set lo up"]
        for index, link in enumerate(self.links):
            peer = self._peer(index)
            bridge = BRIDGES[link.bridge]
            inside = f"peer name {link.name} mtu {link.mtu} netns {self.name}"
            outer += [
                f"link add {peer} mtu {link.mtu} type veth {inside}",
                f"link set {peer} master {bridge.name} up",
            ]
            inner += [f"link set {link.name} up"]
            for address, network in self._addresses(link):
                nodad = " nodad" if network.version == 6 else ""
                inner += [f"address add {address}/{network.prefixlen} dev {link.name}{nodad}"]
                if bridge.gateway:
                    inner += [f"route add default via {network[1]}"]
        self.node.run("ip", "-batch", "-", stdin="\n".join(outer))
        self.run("ip", "-batch", "-", stdin="\n".join(inner))

    def _peer(self, index: int) -> str:
        return f"v{self.number}-{index}"

    def _addresses(self, link: Link) -> list[_Address]:
        bridge = BRIDGES[link.bridge]
        found: list[_Address] = []
        if link.ipv4:
            found.append((bridge.ipv4[self.number], bridge.ipv4))
        if link.ipv6:
            found.append((bridge.ipv6[self.number], bridge.ipv6))
        return found[::-1] if link.ipv6_first else found

    @property
    def path(self) -> str:
        return f"/run/netns/{self.name}"

    def addresses(self, link: str | None = None) -> list[str]:
        """The addresses of a link (the first one if none is named), in the order of podIPs."""
        chosen = self.links[0] if link is None else self._link(link)[1]
        return [str(address) for address, _ in self._addresses(chosen)]

    def run(self, *argv: str, stdin: str = "") -> str:
        return self.node.run("nsenter", f"--net={self.path}", "--", *argv, stdin=stdin)

    def sent(self, link: str) -> int:
        answer = json.loads(self.run("ip", "-json", "-statistics", "link", "show", "dev", link))
        return int(answer[0]["stats64"]["tx"]["bytes"])

    def down(self, link: str, *, silent: bool) -> None:
        """Pulls the cable of a link; a silent cut leaves the carrier on, as a dead switch does."""
        how = ("nomaster",) if silent else ("down",)
        self.node.run("ip", "link", "set", self._peer(self._link(link)[0]), *how)

    def delete(self) -> None:
        """Takes the namespace and its links away at once, also where a process still holds it."""
        lines = [f"link delete {self._peer(index)}" for index in range(len(self.links))]
        self.node.run("ip", "-batch", "-", stdin="\n".join([*lines, f"netns delete {self.name}"]))

    def _link(self, name: str) -> tuple[int, Link]:
        for index, link in enumerate(self.links):
            if link.name == name:
                return index, link
        raise KeyError(name)
