"""What the platform reports about this pod: links and devices (Multus, DRA, plugins).

Attachments are not verified here: the link or device may not be there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from mpiboot.core.facts import Attachment, AttachmentSource
from mpiboot.network.records import PCI_FUNCTION

_Json: TypeAlias = "bool | int | float | str | list[_Json] | dict[str, _Json] | None"

# The first is where the network resources injector mounts a pod's annotations, the second what
# Kubernetes' own pages use in their examples.
ANNOTATIONS: Final = (Path("/etc/podnetinfo/annotations"), Path("/etc/podinfo/annotations"))
# The device metadata protocol of dynamic resource allocation (KEP 5304).
METADATA: Final = Path("/var/run/kubernetes.io/dra-device-attributes")

# GKE's transport for NCCL is a folder of the node; its script is sourced in each rank.
GIB: Final = Path("/usr/local/gib")

_STATUS: Final = ("k8s.v1.cni.cncf.io/network-status", "k8s.v1.cni.cncf.io/networks-status")
_PCI_ATTRIBUTES: Final = ("resource.kubernetes.io/pciBusID", "dra.net/pciAddress")
_RDMA_ATTRIBUTES: Final = ("dra.net/rdmaDevice",)
_MAX_BYTES: Final = 1 << 20  # a pod's annotations are limited to 256 KiB


def attachments(
    environment: Mapping[str, str],
    annotations: tuple[Path, ...] = ANNOTATIONS,
    metadata: Path = METADATA,
    sys_root: Path = Path("/sys"),
    gib: Path = GIB,
) -> tuple[tuple[Attachment, ...], tuple[str, ...]]:
    """List the attachments in the platform's order, and what could not be read.

    ``environment`` is the container's own; the files are read where they are mounted.
    """
    unreadable: list[str] = []
    found = (
        *_multus(annotations, unreadable),
        *_device_plugin(environment, unreadable),
        *_dra(metadata, sys_root, unreadable),
        *((Attachment(AttachmentSource.GIB, resource=str(gib)),) if gib.is_dir() else ()),
    )
    return found, tuple(unreadable)


def _device_plugin(environment: Mapping[str, str], unreadable: list[str]) -> Iterator[Attachment]:
    # PCIDEVICE_<PREFIX>_<RESOURCE>=0000:08:00.2,0000:08:00.3 of the SR-IOV device plugin. The
    # same name with _INFO holds the same functions once more, as JSON.
    for name, value in environment.items():
        if not name.startswith("PCIDEVICE_") or value.startswith("{"):
            continue
        resource = name.removeprefix("PCIDEVICE_")
        for item in filter(None, (part.strip() for part in value.split(","))):
            if PCI_FUNCTION.fullmatch(item.lower()):
                yield Attachment(
                    AttachmentSource.DEVICE_PLUGIN, pci=item.lower(), resource=resource
                )
            else:
                unreadable.append(f"{name} names {item[:60]!r}, which is no PCI function")


def _multus(paths: tuple[Path, ...], unreadable: list[str]) -> Iterator[Attachment]:
    for path in paths:
        text = _annotation(path, unreadable)
        if not text:
            continue
        try:
            networks: _Json = json.loads(text)
        except (ValueError, RecursionError):
            unreadable.append(f"{path}: the annotation {_STATUS[0]} is not JSON")
            continue
        for network in networks if isinstance(networks, list) else []:
            attachment = _network(network)
            if attachment is not None:
                yield attachment
        return


def _network(network: _Json) -> Attachment | None:
    link = _text(network, "interface")
    if not link:
        return None
    return Attachment(
        AttachmentSource.MULTUS,
        link=link,
        pci=_text(network, "device-info", "pci", "pci-address").lower(),
        rdma=_text(network, "device-info", "pci", "rdma-device"),
        resource=_text(network, "name"),
        default=_member(network, "default") is True,
    )


def _annotation(path: Path, unreadable: list[str]) -> str:
    """Find the annotation in a file of the downward API: lines KEY="VALUE", quoted as Go does."""
    for line in _read(path, unreadable).splitlines():
        key, separator, quoted = line.partition("=")
        if key not in _STATUS or not separator:
            continue
        try:
            value: _Json = json.loads(quoted)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, str):
            return value
        unreadable.append(f"{path}: the value of {key} can't be read")
    return ""


def _dra(metadata: Path, sys_root: Path, unreadable: list[str]) -> Iterator[Attachment]:
    # resourceclaims/CLAIM/REQUEST/DRIVER-metadata.json, or resourceclaimtemplates/…
    try:
        paths = sorted(metadata.glob("*/*/*/*-metadata.json"))
    except OSError as error:  # no descriptor left
        unreadable.append(f"{metadata}: {error.strerror}")
        return
    for path in paths:
        text = _read(path, unreadable)
        if not text.strip():
            continue  # a network driver fills it when the pod's links are made
        try:
            # The same object once for each version of its form, the newest first.
            document: _Json = json.JSONDecoder().raw_decode(text.lstrip())[0]
        except (ValueError, RecursionError):
            unreadable.append(f"{path}: is not JSON")
            continue
        for request in _items(document, "requests"):
            for device in _items(request, "devices"):
                attachment = _allocated(device, sys_root)
                if attachment is not None:
                    yield attachment


def _allocated(device: _Json, sys_root: Path) -> Attachment | None:
    pci = _attribute(device, _PCI_ATTRIBUTES).lower()
    rdma = _attribute(device, _RDMA_ATTRIBUTES)
    # The interface name among the attributes is the host's, from before the link was moved.
    link = _text(device, "networkData", "interfaceName")
    # A claim may be for a GPU: without a word on a network, the PCI class decides.
    folder = sys_root / "bus/pci/devices" / pci
    network = PCI_FUNCTION.fullmatch(pci) and _read(folder / "class", []).startswith("0x02")
    if not link and not rdma and not network:
        return None
    return Attachment(
        AttachmentSource.DRA, link=link, pci=pci, rdma=rdma, resource=_text(device, "driver")
    )


def _attribute(device: _Json, names: tuple[str, ...]) -> str:
    values = (_text(device, "attributes", name, "string") for name in names)
    return next(filter(None, values), "")


def _read(path: Path, unreadable: list[str]) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        unreadable.append(f"{path}: {error.strerror}")
        return ""


def _member(value: _Json, *names: str) -> _Json:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _text(value: _Json, *names: str) -> str:
    found = _member(value, *names)
    return found if isinstance(found, str) else ""


def _items(value: _Json, name: str) -> list[_Json]:
    found = _member(value, name)
    return found if isinstance(found, list) else []
