"""The environments of a pod, of a session there and of a rank beside each other; how it is told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from mpiboot.cli import main as cli
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.model import Finding, Level
from mpiboot.core.settings import resolve
from mpiboot.doctor import env
from mpiboot.doctor import job as doctor_job
from mpiboot.doctor.env import Difference, DifferenceKind, Forwarding, HostEnvironments
from mpiboot.hosts import host_shell
from mpiboot.hosts.gate import GateResult
from mpiboot.job import dialects
from mpiboot.job.dialects import Dialect
from mpiboot.launcher import look
from mpiboot.launcher.observation import Observation
from mpiboot.launcher.setup import LauncherPod
from mpiboot.ssh.attempt import Attempt, Outcome, Target
from mpiboot.system.keys import JobKey
from tests import pages
from tests.fakes import plans

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

POD = {"PATH": "/usr/bin"}
SESSION = {**POD, "MPIBOOT_SESSION": "t-1-2"}
ISOLATED = ("unshare", "--fork", "--pid", "--mount-proc")
CAN_ISOLATE = (
    shutil.which("unshare") is not None
    and subprocess.run([*ISOLATED, "true"], capture_output=True, check=False).returncode == 0
)


def host(
    first: dict[str, str] | None = None,
    session: dict[str, str] | None = None,
    rank: dict[str, str] | None = None,
    name: str = "w-0",
) -> HostEnvironments:
    values = {"first": first, "session": session, "rank": rank}
    there = {whose: value for whose, value in values.items() if value is not None}
    return HostEnvironments(name, there, {}, "rank 0 (pid 7)")


def told(one: HostEnvironments) -> list[Difference]:
    return [
        item for item in env.differences(one, Forwarding()) if item.group is not DifferenceKind.OWN
    ]


# -- what a host answers ---------------------------------------------------------------------------


@pytest.mark.skipif(not CAN_ISOLATE, reason="no right to make a PID namespace")
def test_a_shell_reads_the_three() -> None:
    rank = "env PMI_RANK=3 MODE=fast sleep 1000 & while ! grep -q MODE /proc/$!/environ; do :; done"
    ask = f'{rank}; env -i PATH=/usr/bin:/bin WORDS="a\nb " sh -c "$1"; kill $!'
    done = subprocess.run(
        [*ISOLATED, "sh", "-c", ask, "sh", host_shell.environments()],
        env={"PATH": "/usr/bin:/bin", "FIRST": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    found = env.read(host_shell.read(done.stdout).environments, "w-0")
    assert found.missing == {}
    assert found.rank.startswith("rank 3 (pid ")
    assert found.values["first"]["FIRST"] == "1"
    assert found.values["session"]["WORDS"] == "a\nb"
    assert "FIRST" not in found.values["session"]
    assert found.values["rank"]["MODE"] == "fast"


def test_what_can_not_be_seen_has_its_reason() -> None:
    found = env.read(["session A=1", "which 2 71"], "w-0")
    assert found.missing == {
        "first": "/proc/1/environ can't be read by this user",
        "rank": "the environment of rank 2 (pid 71) can't be read",
    }
    found = env.read(["shared pause", "session A=1"], "w-0", session="nobody logs in")
    assert found.missing == {
        "first": "the first process is not the container's (shareProcessNamespace)",
        "session": "nobody logs in",
        "rank": "no rank runs here",
    }


# -- one host --------------------------------------------------------------------------------------

BOTH = {**SESSION, "UCX_TLS": "tcp"}
PLAN = Forwarding({"UCX_TLS": "rc"}, {"UCX_TLS": "UCX reads it", "MODE": "no rule names it"})


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (host({**POD, "A": "1"}, SESSION), "set since the pod began: by its entry point, "),
        (host({**POD, "A": "1"}, POD), "this SSH server is not mpiboot's: the pod's environment "),
        (host({**POD, "a-b": "1"}, SESSION), "no shell can set such a name in a session"),
        (host({**POD, "HOME": "/"}, {**SESSION, "HOME": "/root"}), "an SSH session has its own"),
        (host(BOTH, BOTH, {**BOTH, "UCX_TLS": "rc"}), "the launcher's: UCX reads it"),
        (host({**BOTH, "MODE": "a"}, None, BOTH), "not forwarded: no rule names it"),
        (host(BOTH, BOTH, {**BOTH, "OMPI_MCA_btl": "tcp"}), ""),
        (host(BOTH, BOTH, {**BOTH, "MINE": "tcp"}), ""),
    ],
)
def test_the_reason_is_told(one: HostEnvironments, reason: str) -> None:
    found = [item for item in env.differences(one, PLAN) if item.name != "MPIBOOT_SESSION"]
    (item,) = [item for item in found if item.group is not DifferenceKind.OWN] or found
    if item.group is DifferenceKind.OWN:
        reason = "mpirun or mpiboot sets it in ranks"
    assert item.reason.startswith(reason)
    assert bool(item.reason) == bool(reason)


def test_what_is_the_same_is_left_out_and_what_matters_comes_first() -> None:
    rank = {**POD, "A": "1", "LD_LIBRARY_PATH": "/x", "PMIX_RANK": "0", "OMPI_MCA_btl": "tcp"}
    found = list(env.differences(host(POD, SESSION, rank), Forwarding()))
    assert [(item.name, item.group.value) for item in found] == [
        ("LD_LIBRARY_PATH", "first"),
        ("A", "other"),
        ("MPIBOOT_SESSION", "own"),
        ("OMPI_MCA_btl", "own"),
        ("PMIX_RANK", "own"),
    ]
    assert found[0].values == {"first": None, "session": None, "rank": "/x"}
    # What the pod itself has of MPI's, and a rank lacks, is no matter of mpirun's.
    (lost,) = told(host({**POD, "OMPI_MCA_btl": "tcp"}, None, POD))
    assert (lost.name, lost.group) == ("OMPI_MCA_btl", DifferenceKind.FIRST)


def test_secrets_are_hidden_and_still_told_apart() -> None:
    one = host({"API_TOKEN": "geheim"}, {"API_TOKEN": "geheim"}, {"API_TOKEN": "anders"})
    (item,) = told(one)
    assert item.values == {"first": "(hidden)", "session": "(hidden)", "rank": "(hidden) [2]"}
    proxied = host({"http_proxy": "http://me:geheim@p"}, {"http_proxy": ""})
    (item,) = told(proxied)
    assert (item.values["first"], item.values["session"]) == ("http://(hidden)@p", "(empty)")
    listed = host({"OMPI_MCA_mca_base_env_list": "PATH;API_TOKEN=geheim"}, {})
    (item,) = told(listed)
    assert item.values["first"] == "PATH;API_TOKEN=(hidden)"


# -- hosts beside each other -----------------------------------------------------------------------


def three(name: str, *values: str | None, whose: str = "first") -> list[Finding]:
    given = [{} if value is None else {name: value} for value in values]
    listed = [HostEnvironments(f"w-{number}", {whose: value}) for number, value in enumerate(given)]
    return list(env.outliers(listed))


def test_the_host_that_differs_is_named() -> None:
    (found,) = three("MODE", "a", "a", "b")
    assert (found.check, found.level, found.hosts) == ("hosts-differ", Level.WARN, ("w-2",))
    assert found.message == "MODE of the pod differs from most hosts: w-2: b"
    assert found.evidence == ("on 2 of 3: a",)
    (found,) = three("A_TOKEN", "geheim", "geheim", "anders")
    assert found.message.endswith("w-2: (hidden) [2]")
    (found,) = three("MODE", "a", "a", None)
    assert found.message.endswith("w-2: (not set)")


@pytest.mark.parametrize(
    ("name", "values", "whose"),
    [
        ("MODE", ("a", "a", "a"), "first"),
        ("MODE", ("a", "b", "c"), "first"),
        ("HOSTNAME", ("a", "a", "b"), "first"),
        ("SSH_CONNECTION", ("a", "a", "b"), "session"),
        ("OMPI_COMM_WORLD_RANK", ("0", "0", "1"), "rank"),
        ("OMPI_MCA_ess_base_vpid", ("0", "0", "1"), "rank"),
        ("DB_SERVICE_HOST", ("10.0.0.1", "10.0.0.1", None), "first"),
    ],
)
def test_what_is_one_pods_own_is_no_difference(
    name: str, values: tuple[str, ...], whose: str
) -> None:
    assert not three(name, *values, whose=whose)


def test_what_stands_behind_such_names_is_still_compared() -> None:
    listed = [
        host({"ALIKE": "x", "HOSTNAME": f"w-{number}", "MODE": mode}, name=f"w-{number}")
        for number, mode in enumerate("aab")
    ]
    messages = [item.message for item in env.outliers(listed)]
    assert messages == ["MODE of the pod differs from most hosts: w-2: b"]


def test_what_the_plan_sets_on_single_hosts_is_no_difference() -> None:
    listed = [host({"UCX_NET_DEVICES": device}, None, None, device) for device in ("a", "b")]
    assert list(env.outliers(listed))
    plan = Forwarding(per_host={"a": {"UCX_NET_DEVICES": "a"}})
    assert not list(env.outliers(listed, plan))


def test_a_difference_is_told_once_and_of_two_hosts_only_what_matters() -> None:
    assert len(three("PATH", "/a", "/b")) == 1
    assert not three("MODE", "a", "b")
    listed = [host({"PATH": path}, {"PATH": path}, None, path) for path in ("/a", "/a", "/b")]
    listed[1] = host({"PATH": "/a"}, {"PATH": "/a"}, None, "/c")
    assert len(list(env.outliers(listed))) == 1


# -- what the plan hands on ------------------------------------------------------------------------

ENVIRON = {**plans.POD, "NCCL_DEBUG": "WARN", "MODE": "a", "CUDA_VISIBLE_DEVICES": "0"}


def of(
    family: str, environ: Mapping[str, str] = ENVIRON, **flags: str
) -> tuple[Forwarding, Dialect]:
    seen = plans.observed(family, environ)
    row = dialects.row_of(seen.mpi)
    assert row is not None
    return env.of_plan(plans.planned(seen=seen, flags=flags), environ), row


def test_what_open_mpi_hands_on_and_why_not_the_rest() -> None:
    found, _ = of("openmpi4")
    assert found.values["NCCL_DEBUG"] == "WARN"
    assert found.reason["NCCL_DEBUG"] == "NCCL reads it in every rank"
    assert found.reason["MODE"] == "no rule names it; MPIBOOT_FORWARD=MODE hands it on"
    assert found.reason["HOSTNAME"] == "it is this pod's name"
    assert found.reason["CUDA_VISIBLE_DEVICES"] == "it numbers this pod's GPUs"
    assert "MODE" not in found.values
    asked, _ = of("openmpi4", forward="MODE", no_forward="NCCL_*")
    assert asked.reason["MODE"] == "MPIBOOT_FORWARD has MODE"
    assert asked.reason["NCCL_DEBUG"] == "MPIBOOT_NO_FORWARD has NCCL_*"


def test_what_the_plan_sets_or_takes_itself_has_the_plans_reason() -> None:
    environ = {**ENVIRON, "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10"}
    found, _ = of("openmpi4", environ)
    assert found.values["OMPI_MCA_routed"] == "direct"
    message = "no worker starts another one, and each host's agent runs as long as the job"
    assert found.reason["OMPI_MCA_routed"] == message
    message = "mpiboot takes it out for mpirun; `mpiboot plan` says what for"
    assert found.reason["OMPI_MCA_plm_rsh_args"] == message
    later, _ = of("openmpi5")
    assert later.values["NCCL_DEBUG"] == "WARN"
    assert later.reason["PRTE_MCA_plm_ssh_agent"] == "mpiboot sets it for mpirun itself"


def test_hydra_hands_on_all_but_what_is_taken_out() -> None:
    found, row = of("mpich")
    assert found.reason["MODE"] == f"{row.title} hands on all"
    assert found.reason["NCCL_DEBUG"] == "NCCL reads it in every rank"
    assert found.reason["HOSTNAME"] == "it is this pod's name"


# -- how it is told --------------------------------------------------------------------------------


def test_hosts_that_are_alike_are_shown_once() -> None:
    listed = [host(POD, SESSION, {**POD, "NCCL_DEBUG": "WARN"}, name) for name in ("w-0", "w-1")]
    plan = Forwarding({"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG": "NCCL reads it in every rank"})
    given = [(one, tuple(env.differences(one, plan))) for one in listed]
    shown = env.as_text(given, (), None)
    head, table = shown.split("\n", 1)
    assert head == "w-0, w-1: rank 0 (pid 7)"
    rest = "  and 1 variable specific to a session or a rank: --json\n"
    assert table.endswith(rest)
    assert dedent(table.removesuffix(rest)) == pages.named("env-shown")
    same = [(host(POD, POD), ())]
    assert env.as_text(same, (), None) == "w-0: rank 0 (pid 7)\n  nothing differs\n"
    why = "this host did not answer"
    unseen = HostEnvironments("w-0", missing=dict.fromkeys(("first", "session", "rank"), why))
    assert env.as_text([(unseen, ())], (), None) == (
        f"w-0\n  pod: {why}\n  SSH session: {why}\n  rank: {why}\n  nothing to compare\n"
    )


def test_a_pod_without_a_server_says_so(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error("ssh-key", "no private SSH key")

    monkeypatch.setattr(doctor_job, "log_in_here", refuse)
    assert cli.run(["doctor", "--env", "--json", "--role", "worker"]) == 0
    (found,) = json.loads(capfd.readouterr().out)["hosts"]
    assert found["host"] == os.uname().nodename
    assert found["missing"]["session"] == "no private SSH key"


@pytest.mark.parametrize("words", [("--network",), ("--check", "shm"), ("--bundle", "-")])
def test_env_stands_alone(capfd: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert cli.run(["doctor", "--env", *words]) == 2
    assert "--env can be combined with --host and --json only" in capfd.readouterr().err


def test_a_worker_asks_no_other_host(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--env", "--role", "worker", "--host", "w-3"]) == 2
    assert "--host is for a launcher" in capfd.readouterr().err


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    """Two workers that answer with these lines; what doctor says of them as JSON, and its code."""
    seen = plans.observed(environ=ENVIRON)

    def run(*answers: list[str], wrong: tuple[Finding, ...] = ()) -> tuple[int, Any]:
        given = {
            worker.host.name: Attempt(
                Target(worker.host.name, worker.address, 22, "root"),
                Outcome.OK,
                output="".join(f"mpiboot-environment {row}\n" for row in rows),
            )
            for worker, rows in zip(seen.workers, answers, strict=False)
        }
        passed = GateResult(seen.workers[: len(given)], (), {}, {}, wrong, given)
        pod = LauncherPod(
            resolve({}, {}), {}, plans.ROOT, tmp_path, JobKey(tmp_path, "ssh-ed25519 AAAA"), 0.0, 1
        )

        def looked(*_: object) -> tuple[Observation, LauncherPod]:
            return Observation(seen, passed, ()), pod

        def here(why: str) -> HostEnvironments:
            return HostEnvironments("launcher", {"first": ENVIRON}, {"session": why, "rank": "-"})

        monkeypatch.setattr(look, "look", looked)
        monkeypatch.setattr(env, "_here", here)
        found: list[str] = []
        monkeypatch.setattr("sys.stdout.write", found.append)
        resolved = resolve({"role": "launcher", "runtime_dir": str(tmp_path)}, ENVIRON)
        try:
            env.run(resolved, ENVIRON, (), as_json=True)
        except MpibootError as ended:
            return ended.code, json.loads(found[0])
        return 0, json.loads(found[0])

    return run


def values(found: dict[str, Any], name: str) -> tuple[dict[str, str | None], str]:
    (item,) = [item for item in found["differences"] if item["name"] == name]
    return item["values"], item["reason"]


def test_without_a_rank_the_plan_says_what_one_would_get(job: Any) -> None:  # noqa: ANN401
    answer = ["first PATH=/usr/bin:/bin", "session PATH=/usr/bin:/bin", "session MPIBOOT_SESSION=t"]
    code, found = job(answer, answer)
    assert (code, found["findings"], found["version"]) == (0, [], 1)
    launcher, first, _ = found["hosts"]
    assert first["rank"] == "no rank runs: what the plan would give to one"
    reason = "the launcher's: NCCL reads it in every rank"
    assert values(first, "NCCL_DEBUG") == ({"first": None, "session": None, "rank": "WARN"}, reason)
    # The launcher's own pod beside what a rank has: what stays there, and why.
    assert launcher["rank"].startswith("w-0.job.ns.svc: ")
    reason = "not forwarded: no rule names it; MPIBOOT_FORWARD=MODE hands it on"
    assert values(launcher, "MODE") == ({"first": "a", "rank": None}, reason)
    assert launcher["missing"] == {"session": "nobody logs in to a launcher"}


def test_a_running_rank_is_looked_at_itself(job: Any) -> None:  # noqa: ANN401
    rows = ["session PATH=/bin", "which 3 71", "rank PATH=/bin", "rank NCCL_DEBUG=INFO"]
    wrong = Finding("workers-unreachable", Level.FAIL, "no answer", "w-1.job.ns.svc")
    code, found = job(rows, wrong=(wrong,))
    assert code == 1
    assert [item["check"] for item in found["findings"]] == ["workers-unreachable"]
    assert [one["host"] for one in found["hosts"]] == ["launcher", "w-0.job.ns.svc"]
    assert found["hosts"][1]["rank"] == "rank 3 (pid 71)"
    assert values(found["hosts"][1], "NCCL_DEBUG")[0] == {"session": None, "rank": "INFO"}
