from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mpiboot.core.facts import Attachment, AttachmentSource
from mpiboot.network.platform_hints import attachments

STATUS = "k8s.v1.cni.cncf.io/network-status"
NOTHING: dict[str, str] = {}

# As Multus writes it; the device-info is that of the device information specification, 1.1.0.
NETWORKS = [
    {
        "name": "kindnet",
        "interface": "eth0",
        "ips": ["10.244.1.7"],
        "mac": "0a:58:0a:f4:01:07",
        "default": True,
        "dns": {},
    },
    {
        "name": "default/rdma-a",
        "interface": "net1",
        "ips": ["172.16.5.7"],
        "dns": {},
        "device-info": {
            "type": "pci",
            "version": "1.1.0",
            "pci": {"pci-address": "0000:18:02.5", "rdma-device": "mlx5_5"},
        },
    },
    {"name": "default/macvlan", "interface": "net2", "dns": {}},
]
MULTUS = (
    Attachment(AttachmentSource.MULTUS, link="eth0", resource="kindnet", default=True),
    Attachment(AttachmentSource.MULTUS, "net1", "0000:18:02.5", "mlx5_5", "default/rdma-a"),
    Attachment(AttachmentSource.MULTUS, link="net2", resource="default/macvlan"),
)


def annotated(folder: Path, value: str, key: str = STATUS) -> tuple[Path, ...]:
    """Write a file as the kubelet does: each annotation a line, its value quoted."""
    path = folder / "annotations"
    path.write_text(f'kubernetes.io/config.seen="2026"\n{key}={json.dumps(value)}\n')
    return (folder / "missing", path)


def metadata(folder: Path, text: str, driver: str = "dra.net") -> Path:
    place = folder / "dra" / "resourceclaimtemplates" / "nics" / "rail"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{driver}-metadata.json").write_text(text)
    return folder / "dra"


def document(*devices: object) -> str:
    return json.dumps(
        {
            "kind": "DeviceMetadata",
            "apiVersion": "metadata.resource.k8s.io/v1alpha1",
            "requests": [{"name": "rail", "devices": list(devices)}],
        }
    )


def test_nothing_is_said_where_no_platform_speaks(tmp_path: Path) -> None:
    assert attachments(NOTHING, (tmp_path / "none",), tmp_path / "no") == ((), ())


def test_the_folder_of_gkes_transport_is_seen(tmp_path: Path) -> None:
    found, odd = attachments(NOTHING, (), tmp_path / "no", gib=tmp_path)
    assert (found, odd) == ((Attachment(AttachmentSource.GIB, resource=str(tmp_path)),), ())


def test_the_device_plugin_lists_this_containers_functions(tmp_path: Path) -> None:
    environment = {
        "PCIDEVICE_NVIDIA_COM_RAIL_A": "0000:08:00.2,0000:0A:00.3",
        "PCIDEVICE_NVIDIA_COM_RAIL_A_INFO": '{"0000:08:00.2":{"generic":{}}}',
        "PCIDEVICE_OPENSHIFT_IO_MLX": "",
        "PATH": "/bin",
    }
    found, unreadable = attachments(environment, (), tmp_path)
    assert found == (
        Attachment(
            AttachmentSource.DEVICE_PLUGIN, pci="0000:08:00.2", resource="NVIDIA_COM_RAIL_A"
        ),
        Attachment(
            AttachmentSource.DEVICE_PLUGIN, pci="0000:0a:00.3", resource="NVIDIA_COM_RAIL_A"
        ),
    )
    assert not unreadable


def test_a_resource_that_is_no_pci_function_is_said(tmp_path: Path) -> None:
    found, unreadable = attachments({"PCIDEVICE_SF": "mlx5_core.sf.4"}, (), tmp_path)
    assert not found
    assert unreadable == ("PCIDEVICE_SF names 'mlx5_core.sf.4', which is no PCI function",)


@pytest.mark.parametrize("key", [STATUS, "k8s.v1.cni.cncf.io/networks-status"])
def test_multus_names_links_functions_and_the_default_network(tmp_path: Path, key: str) -> None:
    # Multus indents the value, so its line breaks are in the quoted text.
    paths = annotated(tmp_path, json.dumps(NETWORKS, indent=4), key)
    assert attachments(NOTHING, paths, tmp_path) == (MULTUS, ())


@pytest.mark.parametrize("value", ["", "[", "{}", "null", "[1, null, {}]", '[{"interface": 5}]'])
def test_an_annotation_without_sense_gives_nothing(tmp_path: Path, value: str) -> None:
    found, unreadable = attachments(NOTHING, annotated(tmp_path, value), tmp_path)
    assert not found
    assert len(unreadable) == (value == "[")


def test_an_annotation_that_is_not_quoted_is_said(tmp_path: Path) -> None:
    (tmp_path / "annotations").write_text(f'{STATUS}="[{{\n')
    found, unreadable = attachments(NOTHING, (tmp_path / "annotations",), tmp_path)
    assert not found
    assert unreadable == (f"{tmp_path}/annotations: the value of {STATUS} can't be read",)


def test_a_file_that_can_not_be_read_is_said(tmp_path: Path) -> None:
    found, unreadable = attachments(NOTHING, (tmp_path,), tmp_path / "none")
    assert not found
    assert unreadable == (f"{tmp_path}: Is a directory",)


def test_dra_names_link_function_and_device(tmp_path: Path) -> None:
    device = {
        "driver": "dra.net",
        "pool": "worker-0",
        "name": "nic-0",
        "attributes": {
            "dra.net/ifName": {"string": "gpu0rdma0"},  # the host's name for it
            "dra.net/rdma": {"bool": True},
            "dra.net/rdmaDevice": {"string": "mlx5_3"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:8E:00.0"},
        },
        "networkData": {"interfaceName": "dranet0", "ips": ["10.1.0.3/24"]},
    }
    # The same document follows in an older form.
    folder = metadata(tmp_path, document(device) + "\n" + document(device))
    found, unreadable = attachments(NOTHING, (), folder)
    assert found == (
        Attachment(AttachmentSource.DRA, "dranet0", "0000:8e:00.0", "mlx5_3", "dra.net"),
    )
    assert not unreadable


def test_of_devices_without_a_word_on_a_network_only_network_functions_count(
    tmp_path: Path,
) -> None:
    classes = {"0000:01:00.0": "0x020700", "0000:02:00.0": "0x030200"}
    for pci, name in classes.items():
        folder = tmp_path / "sys" / "bus" / "pci" / "devices" / pci
        folder.mkdir(parents=True)
        (folder / "class").write_text(f"{name}\n")
    devices = [
        {"driver": "x", "attributes": {"resource.kubernetes.io/pciBusID": {"string": pci}}}
        for pci in (*classes, "0000:03:00.0", "../../etc")
    ]
    found, _ = attachments(
        NOTHING, (), metadata(tmp_path, document(*devices), "x"), tmp_path / "sys"
    )
    assert [item.pci for item in found] == ["0000:01:00.0"]


@pytest.mark.parametrize(
    ("text", "unreadable"),
    [("", 0), ("\n", 0), ("{", 1), ("[]", 0), ('{"requests": [{"devices": 3}, 4]}', 0)],
)
def test_metadata_that_is_empty_or_broken_gives_nothing(
    tmp_path: Path, text: str, unreadable: int
) -> None:
    found, message = attachments(NOTHING, (), metadata(tmp_path, text))
    assert not found
    assert len(message) == unreadable


def test_without_a_descriptor_left_nothing_is_said_and_that_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "claims" / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "x-metadata.json").write_text("{}")
    program = f"""
import json, pathlib, resource
from mpiboot.network import platform_hints
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
print(json.dumps(platform_hints.attachments({{}}, metadata=pathlib.Path({str(tmp_path)!r}))))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found, odd = json.loads(done.stdout)
    assert found == []
    assert odd[-1] == f"{tmp_path}: Too many open files"
