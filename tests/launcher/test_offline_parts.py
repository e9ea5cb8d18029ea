"""Which facts an offline plan takes for which pod, and what it says of those that are missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpiboot.core import records_json
from mpiboot.core.errors import MpibootError
from mpiboot.core.model import Finding, Hostfile, Level, Mpi, MpiFamily, PodFacts
from mpiboot.core.setting_types import AUTO, Auto
from mpiboot.core.settings import resolve
from mpiboot.hosts import hostfiles
from mpiboot.hosts.hostfiles import JobHostfile
from mpiboot.job import plan as plan_of
from mpiboot.launcher import look
from mpiboot.network import pod
from mpiboot.system import programs
from tests.fakes import plans
from tests.fakes import workers as w

OPENMPI, MPICH = plans.MPIS["openmpi4"], Mpi(MpiFamily.MPICH, "4.0", "/m", "")
WARN = Finding("hostfile-invalid", Level.WARN, "two differ")


def facts(hostname: str, mpi: Mpi | None = None) -> PodFacts:
    found = w.sriov(0).facts
    assert found is not None
    return replace(found, hostname=hostname, mpi=mpi, control_address=f"10.0.0.{len(hostname)}")


@pytest.mark.parametrize(
    ("wanted", "here", "saved", "found"),
    [
        (AUTO, OPENMPI, (), OPENMPI),
        (AUTO, OPENMPI, (None, MPICH), MPICH),  # the image's, not this machine's
        (AUTO, None, (MPICH,), MPICH),
        (MpiFamily.MPICH, OPENMPI, (MPICH,), MPICH),
        (MpiFamily.OPENMPI4, OPENMPI, (), OPENMPI),
        (
            MpiFamily.INTEL,
            OPENMPI,
            (),
            Mpi(MpiFamily.INTEL, "(not known)", "mpirun", "--mpi"),
        ),
        (MpiFamily.INTEL, None, (), Mpi(MpiFamily.INTEL, "(not known)", "mpirun", "--mpi")),
        (AUTO, None, (None,), None),
    ],
)
def test_the_mpi_is_that_of_the_facts_before_this_machines(
    monkeypatch: pytest.MonkeyPatch,
    wanted: MpiFamily | Auto,
    here: Mpi | None,
    saved: tuple[Mpi | None, ...],
    found: Mpi | None,
) -> None:
    def detect(*given: object) -> Mpi | None:
        assert given == ({"A": "b"}, "/called")
        return here

    monkeypatch.setattr(programs, "detect_mpi", detect)
    kept = tuple(facts(f"w-{number}", mpi) for number, mpi in enumerate(saved))
    resolved = resolve({} if wanted is AUTO else {"mpi": wanted.value}, {})
    if found is None:
        with pytest.raises(MpibootError, match="no mpirun or mpiexec in a folder of PATH"):
            look._offline_mpi(resolved, {"A": "b"}, kept, "/called")
        return
    assert look._offline_mpi(resolved, {"A": "b"}, kept, "/called") == found


@pytest.mark.parametrize("own", [True, False])
def test_facts_are_those_of_the_pod_with_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, own: bool
) -> None:
    """Whoever's facts are left over is the launcher."""
    (tmp_path / "notes.txt").write_text("no facts")
    saved = [facts("w-0"), facts("w-1.job.ns.svc", OPENMPI), *([facts("launcher")] if own else [])]
    for number, one in enumerate(saved):
        (tmp_path / f"{number}.json").write_text(records_json.facts_to_json(one))
    hosts = plans.hosts(1, 1, 1)
    named = replace(hosts[0], user="alice")
    listed = Hostfile(str(tmp_path / "hostfile"), "--hostfile", (named, *hosts[1:]))
    given: list[Any] = []
    resolved, environ = resolve({"ssh_port": "2206", "mpi": "openmpi4"}, {}), {"A": "b"}

    async def find(*message: object, **named: object) -> JobHostfile:
        given.append((message, named))
        return JobHostfile(listed, (WARN,))

    made = plan_of.Plan((), (), ())

    def make(*message: object) -> plan_of.Plan:
        given.append(message)
        return made

    def by_platform(*message: object) -> None:
        assert message == (environ, "")

    monkeypatch.setattr(hostfiles, "find", find)
    monkeypatch.setattr(hostfiles, "hosts_by_setting", lambda *message: message)
    monkeypatch.setattr(hostfiles, "hosts_by_platform", by_platform)
    monkeypatch.setattr(plan_of, "make", make)
    monkeypatch.setattr(pod, "identity", lambda _: plans.NOBODY)
    line = ("mpirun", "--hostfile", "/h", "./train")
    found = look.offline_plan(resolved, line, environ, str(tmp_path))
    assert found[0] is made
    (asked, named_by), (observed, its, where) = given
    assert asked == ("", str(resolved.given["hostfile"]), environ)
    named_by.pop("platform")()
    assert named_by == {"patience": 0.0, "line": ("/h",), "listed": (resolved, environ)}
    one, other = observed.workers
    assert (one.host, one.user, one.port, one.mpi) == (named, "alice", 2206, None)
    assert (one.address, one.facts, one.local_address) == (saved[0].control_address, saved[0], "")
    assert (other.user, other.mpi) == (saved[1].identity.user, OPENMPI)
    launcher = saved[2] if own else None
    assert observed.own == launcher
    assert observed.links == (launcher.links if launcher else ())
    assert observed.identity == (launcher.identity if launcher else plans.NOBODY)
    assert (observed.hostfile, observed.mpi, observed.environ) == (listed, OPENMPI, environ)
    assert (observed.line.argv, its) == (line, resolved)
    assert where.launch_dir == "/run/mpiboot/launcher/launch"
    first, *rest = found[1]
    assert first == WARN
    message = [
        (item.check, item.level, item.message.partition(":")[0], bool(item.hint)) for item in rest
    ]
    unknown = Level.UNKNOWN
    missing = f"no facts of 1 host ({hosts[2].name})"
    pods = [("offline", unknown, "no facts of the launcher's pod", True)]
    assert message == [
        ("offline", unknown, "offline", False),
        ("offline", unknown, missing, True),
        *([] if own else pods),
    ]


def test_where_all_is_known_little_is_said() -> None:
    (only,) = look._unknown([], facts("launcher"))
    assert only.message == "offline: no name was resolved, no host was asked, no key was read"


def test_each_file_that_is_no_record_of_facts_is_named(tmp_path: Path) -> None:
    texts: Mapping[str, str] = {
        "b.json": "{}",
        "a.json": "[",
        "c.json": records_json.facts_to_json(facts("c")),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(MpibootError) as caught:
        look._saved(str(tmp_path))
    assert caught.value.finding.message == (
        f"{tmp_path}/a.json, {tmp_path}/b.json: "
        "not what `mpiboot facts --json` of this version prints"
    )
    assert look._saved("") == ()
