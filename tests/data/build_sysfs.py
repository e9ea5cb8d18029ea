"""Small trees of sysfs and /dev for RDMA hardware that tests can't have, from descriptions.

``python -m tests.data.build_sysfs NAME FOLDER`` writes one to look at. Where the kernel answers
EINVAL (the type of an empty GID slot) a tree has no file: the reader takes both alike.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from mpiboot.network.rdma import KernelRdma
from tests.data.rdma_nodes import TREES, Hca, Tree

NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def kernel(tree: Tree) -> KernelRdma:
    """What NETLINK_RDMA says of the same node inside the pod."""
    return KernelRdma({hca.name: {1: hca.netdev} for hca in tree.devices})


def build(tree: Tree, folder: Path) -> tuple[Path, Path]:
    """Write a tree; give its roots of sysfs and of /dev."""
    sys_root, dev_root = folder / "sys", folder / "dev"
    for hca in tree.devices:
        _device(sys_root, dev_root, hca, tree.slots)
    return sys_root, dev_root


def _device(sys_root: Path, dev_root: Path, hca: Hca, slots: int) -> None:
    where = "/".join(filter(None, (hca.pci, hca.function)))
    function = _function(sys_root, where)
    folder = function / "infiniband" / hca.name
    port = folder / "ports" / "1"
    _files(
        port,
        {"state": f"{hca.state[0]}: {hca.state[1]}", "link_layer": hca.layer, "rate": hca.rate},
    )
    table = {index: (gid, kind, netdev) for index, gid, kind, netdev in hca.gids}
    for index in range(max(slots, *table, 0) if table else slots):
        _write(port / "gids" / str(index), table.get(index, (NO_GID,))[0])
    for index, (_, kind, netdev) in table.items():
        _write(port / "gids" / str(index), table[index][0])
        _write(port / "gid_attrs" / "types" / str(index), kind)
        if netdev:
            _write(port / "gid_attrs" / "ndevs" / str(index), netdev)
    for index, pkey in enumerate(hca.pkeys):
        _write(port / "pkeys" / str(index), pkey)
    _point(folder / "device", function)
    driver = sys_root / "bus" / "pci" / "drivers" / hca.driver[0]
    driver.mkdir(parents=True, exist_ok=True)
    if not (function / "driver").is_symlink():
        _point(function / "driver", driver)
    _point(sys_root / "class" / "infiniband" / hca.name, folder)
    if hca.uverbs is not None:
        node = function / "infiniband_verbs" / f"uverbs{hca.uverbs}"
        _files(node, {"ibdev": hca.name})
        _point(sys_root / "class" / "infiniband_verbs" / node.name, node)
    if hca.uverbs is not None and hca.node:
        # It opens for anybody.
        _point(dev_root / "infiniband" / f"uverbs{hca.uverbs}", Path("/dev/null"))


def _function(sys_root: Path, where: str) -> Path:
    pci, _, part = where.partition("/")
    folder = sys_root / "devices" / "pci0000:00" / pci
    _write(folder / "class", "0x020000")
    _point(sys_root / "bus" / "pci" / "devices" / pci, folder)
    (folder / part).mkdir(parents=True, exist_ok=True)
    return folder / part


def _files(folder: Path, contents: Mapping[str, object]) -> None:
    for name, content in contents.items():
        _write(folder / name, str(content))


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{content}\n", encoding="utf-8")


def _point(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(target)


def main(arguments: Iterable[str]) -> None:
    """Write the tree of one description."""
    name, folder = arguments
    build(TREES[name], Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
