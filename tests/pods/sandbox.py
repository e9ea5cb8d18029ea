"""What a pod has before any container runs in it, and keeps when one is started again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.pods import kubelet
from tests.pods.nameserver import Nameserver
from tests.pods.network import Counters, Netns, Node
from tests.pods.oci import PodSpec
from tests.pods.processes import SharedProcesses
from tests.pods.users import UserNamespace
from tests.pods.volumes import READ_ONLY, Mount


@dataclass(frozen=True)
class Place:
    """Where a pod lives: its cluster's namespaces, name server, folder and name."""

    node: Node
    dns: Nameserver
    folder: Path
    cluster: str


class Sandbox:
    """A pod's network, names, volumes, and the files that a kubelet writes for it."""

    def __init__(self, place: Place, spec: PodSpec, network: Netns | None) -> None:
        self.spec = spec
        self._node = place.node
        self._dns = place.dns
        self._key = f"{next(place.node.pods)}-{spec.name}"
        self._folder = place.folder / self._key
        self._folder.mkdir()
        self._scratch = place.folder / "scratch" / self._key
        self._shared_network = network is not None
        self._users = None if spec.host_users else self._own_users(place)
        owner = self._users.pid if self._users else None
        self.network = network or Netns(place.node, self._key, spec.links, owner)
        self._processes = SharedProcesses(place.node) if spec.share_processes else None
        self._mounts = self._make_mounts()
        if self._users:
            self._users.made()
            self._mounts = self._users.mounts(self._mounts)

    @property
    def hostname(self) -> str:
        """The name that the container sees as its own."""
        return self.spec.host_network or (self.spec.hostname or self.spec.name)[:63]

    @property
    def fqdn(self) -> str:
        """The name in the cluster's DNS."""
        return kubelet.fqdn(self.spec, self.spec.hostname or self.spec.name)

    @property
    def address(self) -> str:
        """The first address of the pod (that of its node with hostNetwork)."""
        return self.network.addresses()[0]

    def publish(self, *, after: float = 0.0, when_port: int | None = None) -> None:
        """Makes the pod's name resolvable: now, after seconds, or once its port answers."""
        self._dns.publish(self.fqdn, self.network.addresses(), after=after, when_port=when_port)

    def unpublish(self) -> None:
        """Makes the pod's name vanish."""
        self._dns.unpublish(self.fqdn)

    def link_down(self, link: str = "eth0", *, silent: bool = False) -> None:
        """Cuts a link; with `silent` the pod still sees a carrier, as behind a dead switch."""
        self.network.down(link, silent=silent)

    def link_up(self, link: str = "eth0") -> None:
        """Mends a link."""
        self.network.up(link)

    def counters(self, link: str = "eth0") -> Counters:
        """Bytes that went over a link so far."""
        return self.network.counters(link)

    def end_processes(self) -> None:
        """Ends the process table that the pod's containers share, and with it all in it."""
        if self._processes:
            self._processes.close()

    def delete_network(self) -> None:
        """Takes the pod's network away, unless it is a node's."""
        if not self._shared_network:
            self.network.delete()

    def _own_users(self, place: Place) -> UserNamespace:
        """A user namespace, whose root has to find its way to the container's root."""
        place.folder.chmod(0o711)
        return UserNamespace(place.node, self._scratch)

    def _make_mounts(self) -> list[Mount]:
        files = {
            "/etc/hosts": kubelet.hosts(self.spec, self.hostname, self.network.addresses()),
            "/etc/hostname": f"{self.hostname}\n",
            "/etc/resolv.conf": kubelet.resolv_conf(self.spec, self.network.links),
            "/dev/termination-log": "",
        }
        mounts = []
        for path, content in files.items():
            file = self._folder / Path(path).name
            file.write_text(content)
            file.chmod(0o666 if path.startswith("/dev/") else 0o644)
            options = ("rbind", "rprivate", "rw")
            if self.spec.read_only_root and path in {"/etc/hostname", "/etc/resolv.conf"}:
                options = READ_ONLY
            mounts.append(Mount(path, str(file), options=options))
        shm = self._scratch / "shm"
        size = f"mode=1777,size={64 << 20}"
        self._node.run("mkdir", "-p", str(shm))
        self._node.run("mount", "-t", "tmpfs", "-o", f"nosuid,nodev,noexec,{size}", "shm", str(shm))
        mounts.append(Mount("/dev/shm", str(shm)))
        if self.spec.image.programs is not None:
            programs = str(self.spec.image.programs)
            mounts.append(Mount("/opt/programs", programs, options=READ_ONLY))
        for index, volume in enumerate(self.spec.volumes):
            mounts.append(volume.make(self._folder / "volumes" / str(index)))
        return mounts
