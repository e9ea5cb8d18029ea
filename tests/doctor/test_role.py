"""`mpiboot doctor` as it is called: its role, what is selected, how it is shown and ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mpiboot.core.checks import BY_REFERENCE, ShownError, error
from mpiboot.core.facts import HostAnswer, Link, NoFacts, Worker
from mpiboot.core.model import Finding, Level, Role
from mpiboot.core.settings import Resolved, resolve
from mpiboot.doctor import checks, role
from mpiboot.doctor.role import HostReport
from mpiboot.hosts.gate import GateResult
from mpiboot.launcher import look
from mpiboot.launcher.prepare import Observation
from mpiboot.launcher.setup import LauncherPod
from mpiboot.network.worker_pairs import Dial, Reached
from mpiboot.system.keys import JobKey
from tests.fakes import plans
from tests.fakes.cli import GUARD, environment, mpiboot
from tests.fakes.programs import program
from tests.fakes.worker import HAVE_SSH, make_key

FOUND = (
    Finding("ssh-key", Level.FAIL, "no key", hint="mount it"),
    Finding("slots", Level.FAIL, "too few", "w-1.job.ns.svc"),
    Finding("shm", Level.WARN, "small", hosts=("w-1.job.ns.svc", "w-2.job.ns.svc"), hint="more"),
    Finding("gpus", Level.OK, "8", "w-2.job.ns.svc"),
    Finding("memory-limit", Level.UNKNOWN, "not known"),
)


@pytest.fixture
def settled(tmp_path: Path) -> Resolved:
    return resolve({"runtime_dir": str(tmp_path / "run"), "ssh_key": str(tmp_path / "none")}, {})


@pytest.fixture
def doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settled: Resolved
) -> Callable[..., tuple[str, BaseException | None]]:
    """Runs it with these findings: what it prints, and how it ends."""

    def run(*found: Finding, **given: Any) -> tuple[str, BaseException | None]:  # noqa: ANN401
        def look(*_: object, **__: object) -> Iterator[Finding]:
            yield from found

        monkeypatch.setattr(role, "_findings", look)
        end: BaseException | None = None
        try:
            role.run(settled, {}, **given)
        except ShownError as wrong:
            end = wrong
        return capsys.readouterr().out, end

    return run


@pytest.mark.parametrize(
    ("flags", "mounted", "name", "which"),
    [
        ({"role": "worker"}, False, "pod", Role.WORKER),
        ({"role": "launcher"}, False, "pod", Role.LAUNCHER),
        ({}, True, "pod", Role.LAUNCHER),
        ({}, False, "pod", Role.NONE),
        ({"role": "by-index"}, False, "train-0", Role.LAUNCHER),
        ({"role": "by-index"}, False, "train-1", Role.WORKER),
    ],
)
def test_the_role_is_that_of_its_settings_hostfile_or_number(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: dict[str, str],
    name: str,
    which: Role,
    *,
    mounted: bool,
) -> None:
    uname = os.uname_result(("Linux", name, "", "", ""))
    monkeypatch.setattr(os, "uname", lambda: uname)
    hostfile = tmp_path / "hostfile"
    if mounted:
        hostfile.touch()
    assert role.role_of(resolve({**flags, "hostfile": str(hostfile)}, {}), {}) is which


def test_a_worker_has_a_server_and_a_launcher_queries_its_hosts(
    monkeypatch: pytest.MonkeyPatch, settled: Resolved
) -> None:
    monkeypatch.setattr(checks, "chosen", lambda *_, **__: ())
    monkeypatch.setattr(role, "of_job", lambda *_, **__: iter([Finding("slots", Level.OK, "")]))

    def listed(which: Role, *, image: bool = False) -> list[str]:
        return [item.check for item in role._findings(settled, {}, which, (), image=image)]

    found = {which: listed(which) for which in Role}
    assert found == {Role.LAUNCHER: ["slots"], Role.WORKER: ["workers-unreachable"], Role.NONE: []}
    assert [listed(which, image=True) for which in Role] == [[], [], []]


def test_something_that_fails_is_its_end_and_all_are_counted(doctor: Any) -> None:  # noqa: ANN401
    out, end = doctor(*FOUND)
    assert (end.finding, end.code) == (FOUND[0], 1)
    assert out.endswith("\n\n5 checks: 2 failed, 1 warning, 1 not known\n")


def test_json_has_a_version_and_the_findings_that_are_wanted_once(doctor: Any) -> None:  # noqa: ANN401
    only = ("shm", "gpus", "memory-limit")
    out, end = doctor(*FOUND, FOUND[3], only=only, as_json=True)
    report = json.loads(out)
    here = os.uname().nodename
    assert end is None
    assert (report["version"], report["host"]) == (3, here)
    assert [item["check"] for item in report["findings"]] == [*only]
    assert [item["host"] for item in report["findings"]] == ["", "w-2.job.ns.svc", here]
    assert report["findings"][0] == {
        "group": "limits",
        "check": "shm",
        "level": "warn",
        "message": "small",
        "host": "",
        "hosts": ["w-1.job.ns.svc", "w-2.job.ns.svc"],
        "evidence": [],
        "hint": "more",
    }


@pytest.mark.skipif(not HAVE_SSH, reason="no ssh-keygen")
def test_ctrl_c_while_hosts_are_queried_ends_it(tmp_path: Path) -> None:
    """A host that takes connections and never greets."""
    key = tmp_path / "id_ed25519"
    program(tmp_path, "mpirun", "echo 'mpirun (Open MPI) 4.1.6'")
    make_key(key, "-t", "ed25519")
    with socket.create_server(("127.0.0.7", 0)) as silent:
        (tmp_path / "hosts").write_text("127.0.0.7 slots=1\n")
        env = {
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "MPIBOOT_ROLE": "launcher",
            "MPIBOOT_SSH_KEY": str(key),
            "MPIBOOT_SSH_PORT": str(silent.getsockname()[1]),
            "MPIBOOT_HOSTFILE": str(tmp_path / "hosts"),
        }
        silent.settimeout(GUARD)
        words = [sys.executable, "-m", "mpiboot", "doctor", "--timeout", str(GUARD)]
        with subprocess.Popen(
            words, env=environment(tmp_path, env), cwd=tmp_path, stdout=-1, stderr=-1, text=True
        ) as child:
            connection, _ = silent.accept()
            with connection:
                child.send_signal(signal.SIGINT)
                out, err = child.communicate(timeout=GUARD)
    assert child.returncode == 130, out + err
    assert "Traceback" not in err


def test_a_cell_has_the_worst_level_of_its_checks() -> None:
    ok, warn, fail, unknown = Level.OK, Level.WARN, Level.FAIL, Level.UNKNOWN
    rows: tuple[tuple[Level, ...], ...] = (
        (),
        (ok, ok),
        (ok, warn),
        (warn, fail, fail),
        (unknown, ok),
    )
    assert [role.cell(levels) for levels in rows] == ["", "ok", "warn", "FAIL 2", "?"]


def test_on_a_terminal_hosts_are_rows_and_groups_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    alike = [Finding("slots", Level.OK, "", f"w-{number}.job.ns.svc") for number in range(3, 9)]
    role.write([*FOUND, *alike])
    drawn, _, below = capsys.readouterr().out.partition("\n\n")
    assert [" ".join(line.split()) for line in drawn.splitlines()] == [
        *("job ssh limits gpus", "this pod FAIL ?", "w-1 FAIL warn", "w-2 warn ok"),
        "w-3, w-4, w-5 and 3 more ok",
    ]
    assert all(len(line) <= 72 for line in drawn.splitlines())
    assert "FAIL  this pod        ssh-key" in below
    assert "ok  " not in below


def test_two_that_run_at_once_leave_each_other_their_folder(tmp_path: Path) -> None:
    env = {"MPIBOOT_ROLE": "worker", "MPIBOOT_RUNTIME_DIR": str(tmp_path / "run")}
    given = resolve({"runtime_dir": env["MPIBOOT_RUNTIME_DIR"]}, {})
    list(checks.folder(checks.Pod(given, {})))
    (made,) = tmp_path.rglob(checks.role_name())
    done = mpiboot(tmp_path, "doctor", "--json", env=env)
    assert "Traceback" not in done.stderr
    assert made.is_dir(), "another run has removed it"
    checks.remove_folder(given.settings, {})
    assert not list((tmp_path / "run").iterdir())


# What it finds at a launcher's hosts: each, and beside each other


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What a look at the hosts returns; a test changes it."""
    observed = plans.observed(listed=plans.hosts(2, 2, 1), local=plans.hosts(2, 2, 1)[:1])
    made = SimpleNamespace(observed=observed, findings=(), dialled=(), raises=None)

    def looked(*_: object) -> tuple[Observation, LauncherPod]:
        if made.raises:
            raise made.raises
        seen = made.observed
        passed = GateResult(seen.workers, seen.local, {}, made.findings)
        pod = LauncherPod(
            *(resolve({}, {}), {}, plans.ROOT, tmp_path, 0.0),
            key=JobKey(tmp_path, "ssh-ed25519 AAAA"),
        )
        return Observation(seen, passed, cast("Any", None), made.dialled), pod

    monkeypatch.setattr(look, "look", looked)
    return made


def found_of_job() -> list[Finding]:
    return list(role.of_job(resolve({}, plans.POD), plans.POD))


def test_every_host_that_is_well_is_told_with_its_server_and_mpi(seen: SimpleNamespace) -> None:
    first, second = seen.observed.workers
    bare = replace(second, facts=None, mpi=plans.MPIS["openmpi5"])
    facts = replace(first.facts, sshd="embedded", mpi=None)
    workers = (replace(first, facts=facts), bare)
    seen.observed = replace(seen.observed, workers=workers)
    found = {
        (item.check, item.host): item.message
        for item in found_of_job()
        if item.level is Level.OK and item.check != "hosts-differ"
    }
    assert found == {
        ("hostfile-missing", ""): "the hostfile is /etc/mpi/hostfile, named by default",
        ("hostfile-invalid", ""): "3 hosts",
        ("names-unresolved", "w-0.job.ns.svc"): "this pod itself",
        ("workers-unreachable", "w-1.job.ns.svc"): "10.244.0.11 port 22, embedded, no mpirun",
        ("workers-unreachable", "w-2.job.ns.svc"): (
            "10.244.0.12 port 22, sshd, mpirun (Open MPI) 5.0.7"
        ),
    }


def test_what_the_gate_and_the_plan_find_is_told(seen: SimpleNamespace) -> None:
    late = Finding("worker-facts", Level.FAIL, "late", "w-1")
    seen.findings = (late,)
    first, second = seen.observed.workers
    seen.observed = replace(seen.observed, workers=(first, replace(second, address=first.address)))
    found = found_of_job()
    assert late in found
    assert "settings-conflict" in [item.check for item in found if item.level is Level.FAIL]


def test_workers_that_reach_each_other_are_told_where_it_was_tried(seen: SimpleNamespace) -> None:
    one, other = (worker.host.name for worker in seen.observed.workers)

    def messages(*reached: Reached) -> list[str]:
        here = ("10.244.0.11", "10.244.0.11", 22)
        seen.dialled = tuple(
            Dial(one, other, "10.244.0.12", 4000, 2.0, item, *here, item) for item in reached
        )
        return [item.message for item in found_of_job() if item.check == "worker-pairs"]

    good = "workers reach each other and the launcher: 1 connection tried"
    assert messages() == []
    assert messages(Reached.ANSWERED) == [good]
    bad = messages(Reached.ANSWERED, Reached.SILENT)
    assert bad
    assert not [message for message in bad if "reach each other and" in message]


def test_a_look_that_fails_is_what_is_found(seen: SimpleNamespace) -> None:
    seen.raises = error("hostfile-missing", "there is none")
    assert found_of_job() == [seen.raises.finding]


def test_a_workers_own_checks_are_told_but_for_what_the_plan_says_of_it(
    seen: SimpleNamespace,
) -> None:
    one, other = seen.observed.workers
    first, second = one.host.name, other.host.name
    assert other.facts is not None
    other = replace(other, facts=replace(other.facts, mpi=plans.MPIS["openmpi5"]))
    item = {"level": "warn", "message": "x", "evidence": [], "hint": "mend"}
    found = [{**item, "check": "shm-full"}, {**item, "check": "mpi-versions"}]
    output = json.dumps({"mpiboot": "1", "findings": found})
    workers = tuple(replace(worker, answer=HostAnswer(doctor=output)) for worker in (one, other))
    seen.observed = replace(seen.observed, workers=workers)
    listed = [
        (item.check, " ".join(item.hosts) or item.host, item.message) for item in found_of_job()
    ]
    assert ("shm-full", f"{first} {second}", "x") in listed
    differ = "/usr/bin/mpirun: mpirun (Open MPI) 5.0.7; the launcher: mpirun (Open MPI) 4.1.4"
    assert [item for item in listed if item[0] == "mpi-versions"] == [
        ("mpi-versions", first, "x"),
        ("mpi-versions", second, differ),
    ]


OK, WARN = Level.OK, Level.WARN
SESSION = {
    "uid": "0",
    "locked memory": "unlimited",
    "open files": "1048576",
    "processes": "unlimited",
}
WORKERS = plans.observed(listed=plans.hosts(1, 1, 1, 1, domain="")).workers
BARE = replace(WORKERS[0], facts=None)
ALIKE = HostReport(WORKERS[0], session=SESSION)
ALL_ALIKE = "ok -: 4 hosts have the same limits and links"


def reports(count: int = 4, **each: HostReport) -> tuple[HostReport, ...]:
    """Hosts that are alike, and those given by name (``w_1``) in place of theirs."""
    given = [each.get(f"w_{n}", ALIKE._replace(worker=WORKERS[n])) for n in range(count)]
    return tuple(
        one._replace(worker=replace(one.worker, host=WORKERS[n].host))
        for n, one in enumerate(given)
    )


def with_session(changed: dict[str, str]) -> HostReport:
    return ALIKE._replace(session={**SESSION, **changed})


def with_links(worker: Worker, *links: Link) -> HostReport:
    assert worker.facts is not None
    every = (*worker.facts.links, *links)
    return ALIKE._replace(worker=replace(worker, facts=replace(worker.facts, links=every)))


def shown(found: Iterable[Finding]) -> list[str]:
    return [
        f"{item.level.value} {','.join(item.hosts) or item.host or '-'}: {item.message}"
        for item in found
    ]


def differing(**each: HostReport) -> list[str]:
    return shown(role.differ(reports(4, **each)))


def test_hosts_that_are_alike() -> None:
    assert differing() == [ALL_ALIKE]
    assert shown(role.differ(reports(1))) == []


def test_a_host_that_differs_is_named_with_its_value_and_what_mends_it() -> None:
    (found,) = role.differ(reports(4, w_2=with_session({"open files": "1024"})))
    assert shown([found]) == ["warn w-2: open files of a session: 1024; the others (3): 1048576"]
    assert "LimitNOFILE" in found.hint
    small, none = (with_session({"locked memory": value}) for value in ("65536", "0"))
    assert differing(w_1=small, w_2=none, w_3=small) == [
        "warn w-0: locked memory of a session: unlimited; the others (2): 65536",
        "warn w-2: locked memory of a session: 0; the others (2): 65536",
    ]


def test_another_mpiboot_or_none_differs() -> None:
    assert WORKERS[0].facts is not None
    newer = replace(WORKERS[0], facts=replace(WORKERS[0].facts, mpiboot="9"))
    workers = (WORKERS[0], newer, replace(BARE, no_facts=NoFacts.UNREADABLE), BARE)
    each = {f"w_{n}": ALIKE._replace(worker=worker) for n, worker in enumerate(workers)}
    assert differing(**each) == [
        f"warn w-{n}: version of mpiboot: {version}; the others (1): 0"
        for n, version in ((1, "9"), (2, "another"), (3, "none"))
    ]


NET1 = Link(7, "net1", "macvlan", up=True, mtu=9000, addresses=())


@pytest.mark.parametrize(
    ("second", "found"),
    [
        (with_links(WORKERS[1], NET1), ALL_ALIKE),
        (
            with_links(WORKERS[1], replace(NET1, mtu=1500)),
            "warn w-1: link net1: MTU 1500; the others (3): MTU 9000",
        ),
        (with_links(WORKERS[1]), "warn w-1: link net1: none; the others (3): MTU 9000"),
        (with_links(WORKERS[1], NET1, replace(NET1, index=8, name="cali7")), ALL_ALIKE),
        (  # a host without facts lacks none
            ALIKE._replace(worker=replace(BARE, no_facts=NoFacts.PENDING)),
            "warn w-1: version of mpiboot: another; the others (3): 0",
        ),
    ],
)
def test_all_links_but_the_control_link_are_compared(second: HostReport, found: str) -> None:
    usual = {f"w_{n}": with_links(WORKERS[n], NET1) for n in range(4)}
    assert differing(**{**usual, "w_1": second}) == [found]


def test_of_whom_the_own_checks_are_not_known() -> None:
    checked = ALIKE._replace(checks=())
    given = reports(4, w_0=checked, w_1=ALIKE._replace(worker=BARE), w_3=checked)
    message = "its limits, files and devices were not checked from within"
    assert shown(role.unchecked(given)) == [
        f"unknown w-1: {message}: it does not run mpiboot",
        f"unknown w-2: {message}: its mpiboot has no checks for a launcher, or they took too long",
    ]


def test_a_workers_own_checks_are_read() -> None:
    item = {"level": "warn", "message": "full", "host": "pod", "hint": "fix", "hosts": []}
    known = {**item, "group": "limits", "evidence": ["a"], "later": 1}
    found = [{**known, "check": check} for check in ("shm-full", "no-such")]  # of a later mpiboot
    text = json.dumps({"version": 1, "findings": found, "session": {"uid": "0", "later": 1}})
    report = role.host_report(replace(WORKERS[0], answer=HostAnswer(doctor=text)))
    assert report.checks == (
        Finding("shm-full", WARN, "full", "w-0", ("a",), "fix"),
        Finding("worker-checks", WARN, "no-such: full", "w-0", ("a",), "fix"),
    )
    assert report.session == {"uid": "0", "later": "1"}
    for broken in ("", "{", "[]", '{"findings": 1}', '{"findings": [{"check": 1}]}'):
        worker = replace(WORKERS[0], answer=HostAnswer(doctor=broken))
        assert role.host_report(worker) == HostReport(worker)


def test_what_several_hosts_find_is_said_once() -> None:
    found = [
        *(Finding("shm-full", OK, "0 of 64 MiB", f"w-{n}") for n in range(3)),
        Finding("memory-limit", OK, "1 MiB", "w-0"),
        Finding("memory-limit", OK, "2 MiB", "w-1"),
        Finding("shm-full", WARN, "full", "w-3", hint="fix"),
    ]
    alike = Finding("shm-full", OK, "0 of 64 MiB", hosts=("w-0", "w-1", "w-2"))
    assert role.merged(found) == [alike, *found[3:]]


def test_of_very_many_hosts_what_is_well_is_told_by_the_checks_title() -> None:
    names = [f"w-{number}" for number in range(17)]
    found = [Finding("memory-limit", OK, f"{name} MiB", name) for name in names]
    bad = [Finding("memory-limit", WARN, f"{name} MiB", name) for name in names[:2]]
    title = BY_REFERENCE["memory-limit"].title
    all_well = Finding("memory-limit", OK, title, hosts=tuple(names))
    assert role.merged([*found, *bad]) == [all_well, *bad]
    assert role.merged(found[:16]) == found[:16]
    same = [Finding("shm-full", OK, "same", name) for name in names]
    assert role.merged(same) == [Finding("shm-full", OK, "same", hosts=tuple(names))]
