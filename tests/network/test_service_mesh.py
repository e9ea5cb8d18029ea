from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mpiboot.core.facts import Mesh
from mpiboot.core.model import Level
from mpiboot.network import platform_hints, service_mesh

ISTIO = Mesh("istio", ())


@pytest.mark.parametrize(
    ("listening", "name", "seen"),
    [
        (
            {22, 15001, 15006, 15020, 15021, 15090},
            "istio",
            "15001, 15006, 15020, 15021, 15090",
        ),
        ({15001, 15006, 15008, 15053, 15080}, "istio ambient", "15001, 15006, 15008"),
        # A sidecar has HBONE's port too where it takes part in ambient.
        ({15001, 15006, 15008, 15021}, "istio", "15001, 15006, 15021"),
        ({4140, 4143, 4191}, "linkerd", "4140, 4143"),
        # A program of one's own on one of these ports is no mesh.
        ({22, 15001}, "", ""),
        ({15001, 15006}, "", ""),
        ({4143}, "", ""),
        (set(), "", ""),
    ],
)
def test_a_mesh_is_known_by_the_ports_of_its_proxy(
    listening: set[int], name: str, seen: str
) -> None:
    found = service_mesh.recognise(listening)
    assert found == (Mesh(name, (f"ports {seen} listen in this pod",)) if name else None)


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        ("sidecar.istio.io/status", "istio"),
        ("ambient.istio.io/redirection", "istio ambient"),
        ("linkerd.io/proxy-version", "linkerd"),
        ("a/b", ""),
    ],
)
def test_an_annotation_of_the_injector_tells_it_too(annotation: str, name: str) -> None:
    found = service_mesh.recognise((), {"other", annotation})
    message = f"the pod has the annotation {annotation}"
    assert found == (Mesh(name, (message,)) if name else None)


INJECT = 'label and annotate launcher and worker templates with sidecar.istio.io/inject: "false"'
EXCLUDE = (
    "annotate both with traffic.sidecar.istio.io/excludeInboundPorts and "
    "traffic.sidecar.istio.io/excludeOutboundPorts: "
)
LINKERD = "annotate launcher and worker templates with linkerd.io/inject: disabled"
SKIP = (
    "annotate both with config.linkerd.io/skip-inbound-ports and "
    "config.linkerd.io/skip-outbound-ports: "
)
LISTED = ",".join(map(str, range(40000, 40032)))


@pytest.mark.parametrize(
    ("name", "port_range", "message"),
    [
        ("istio", "40000-40002", f'{INJECT}; or {EXCLUDE}"22,2222,40000,40001,40002"'),
        ("istio", "40000-40031", f'{INJECT}; or {EXCLUDE}"22,2222,{LISTED}"'),
        (
            "istio",
            "40000-40032",
            f'{INJECT}; or {EXCLUDE}"22,2222,<each port of 40000-40032>"',
        ),
        ("istio", "", f'{INJECT}; or set MPIBOOT_PORT_RANGE and {EXCLUDE}"22,2222,<its ports>"'),
        ("linkerd", "40000-49999", f'{LINKERD}; or {SKIP}"22,2222,40000-49999"'),
        (
            "istio ambient",
            "40000-40002",
            "label launcher and worker templates with istio.io/dataplane-mode: none",
        ),
        ("another", "", ""),
    ],
)
def test_the_whole_advice(name: str, port_range: str, message: str) -> None:
    assert service_mesh.advice(Mesh(name, ()), {2222, 22}, port_range) == message


def test_each_mesh_is_told_once() -> None:
    found = service_mesh.findings({"the launcher": None, "w-0": ISTIO, "w-1": ISTIO}, {22}, "")
    assert [item.hint for item in found] == [service_mesh.advice(ISTIO, {22}, "")]
    assert [item.evidence for item in found] == [ISTIO.evidence]
    assert [(item.level, item.host, item.hosts) for item in found] == [(Level.WARN, "", ())]
    assert [(item.check, item.message) for item in found] == [
        (
            "service-mesh",
            "a proxy of istio takes every connection of w-0 and 1 more, MPI's own too",
        )
    ]
    assert service_mesh.findings({"the launcher": None}, {22}, "") == ()


def test_what_listens_in_the_pod_shows_a_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = {4143, 4140}
    monkeypatch.setattr(platform_hints, "listening_ports", lambda: listening)
    found = platform_hints.service_mesh(())
    assert found is not None
    assert found.name == "linkerd"
    listening.remove(4140)
    assert platform_hints.service_mesh(()) is None


def test_an_annotation_shows_a_mesh(tmp_path: Path) -> None:
    notes = tmp_path / "annotations"
    notes.write_text('a="b"\nsidecar.istio.io/status="{\\"version\\":\\"1\\"}"\n')
    assert platform_hints.service_mesh((tmp_path / "none", notes)) == Mesh(
        "istio", ("the pod has the annotation sidecar.istio.io/status",)
    )


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_that_listens_is_seen_and_one_that_is_connected_is_not(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        place = server.getsockname()[:2]
        with socket.create_connection(place) as client:
            found = platform_hints.listening_ports()
            assert place[1] in found
            assert client.getsockname()[1] not in found


def test_tables_that_can_not_be_read_show_no_port(tmp_path: Path) -> None:
    assert platform_hints.listening_ports(str(tmp_path)) == set()
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text("sl\nof another form\n")
    assert platform_hints.listening_ports(str(tmp_path)) == set()
