from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.model import Mesh
from mpiboot.network import service_mesh
from mpiboot.observe import service_mesh as looks

ISTIO = Mesh("istio", ())


@pytest.mark.parametrize(
    ("listening", "name"),
    [
        ({22, 15001, 15006, 15020, 15021, 15090}, "istio"),
        ({15001, 15006, 15008, 15053, 15080}, "istio ambient"),
        # A sidecar has HBONE's port too where it takes part in ambient.
        ({15001, 15006, 15008, 15021}, "istio"),
        ({4140, 4143, 4191}, "linkerd"),
        # A program of one's own on one of these ports is no mesh.
        ({22, 15001}, ""),
        ({15001, 15006}, ""),
        ({4143}, ""),
        (set(), ""),
    ],
)
def test_a_mesh_is_known_by_the_ports_of_its_proxy(listening: set[int], name: str) -> None:
    found = service_mesh.recognise(listening)
    assert (found.name if found else "") == name
    if found:
        assert all(str(port) not in found.evidence[0] for port in (22, 15053, 15080, 4191))


@pytest.mark.parametrize(
    ("annotation", "name"),
    [("sidecar.istio.io/status", "istio"), ("linkerd.io/proxy-version", "linkerd"), ("a/b", "")],
)
def test_an_annotation_of_the_injector_tells_it_too(annotation: str, name: str) -> None:
    found = service_mesh.recognise((), {annotation})
    assert (found.name if found else "") == name


@pytest.mark.parametrize(
    ("name", "port_range", "said"),
    [
        (
            "istio",
            "40000-40002",
            'traffic.sidecar.istio.io/excludeOutboundPorts: "22,40000,40001,40002"',
        ),
        ("istio", "", "set MPIBOOT_PORT_RANGE and annotate both"),
        ("istio", "40000-49999", '"22,<each port of 40000-49999>"'),
        ("linkerd", "40000-40002", 'config.linkerd.io/skip-outbound-ports: "22,40000-40002"'),
        ("istio ambient", "40000-40002", "istio.io/dataplane-mode: none"),
    ],
)
def test_the_annotation_that_excludes_the_jobs_ports_is_told(
    name: str, port_range: str, said: str
) -> None:
    assert said in service_mesh.advice(Mesh(name, ()), {22}, port_range)


def test_an_unknown_mesh_of_a_newer_workers_facts_has_no_advice() -> None:
    assert service_mesh.advice(Mesh("another", ()), {22}) == ""


def test_each_mesh_is_told_once() -> None:
    found = service_mesh.findings({"the launcher": None, "w-0": ISTIO, "w-1": ISTIO}, {22}, "")
    assert [item.hint for item in found] == [service_mesh.advice(ISTIO, {22}, "")]
    assert [item.evidence for item in found] == [ISTIO.evidence]
    assert [(item.check, item.said) for item in found] == [
        (
            "service-mesh",
            "a proxy of istio takes every connection of w-0 and 1 more, MPI's own too",
        )
    ]
    assert service_mesh.findings({"the launcher": None}, {22}, "") == ()


def test_the_pods_own_tables_are_read(tmp_path: Path) -> None:
    line = "   0: 00000000:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 0 0 0 1\n"
    four, six = tmp_path / "tcp", tmp_path / "tcp6"
    four.write_text("  sl  local_address rem_address st\n" + line.format(4143, "0A"))
    six.write_text("  sl\n" + line.replace("00000000:{", "0" * 32 + ":{").format(4140, "0A"))
    found = looks.look((four, six, tmp_path / "none"), ())
    assert found is not None
    assert found.name == "linkerd"
    # Established connections from such a port are no listener.
    six.write_text("  sl\n" + line.format(4140, "01"))
    assert looks.look((four, six), ()) is None
    notes = tmp_path / "annotations"
    notes.write_text('a="b"\nsidecar.istio.io/status="{\\"version\\":\\"1\\"}"\n')
    assert looks.look((), (tmp_path / "none", notes)) == Mesh(
        "istio", ("the pod has the annotation sidecar.istio.io/status",)
    )
