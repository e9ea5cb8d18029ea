from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mpiboot.core.checks import BY_REFERENCE, MpibootError
from mpiboot.core.facts import Host, Hostfile
from mpiboot.core.model import Finding, Level, Mpi, MpiFamily, Source
from mpiboot.job import render
from mpiboot.job.hostfile import union
from mpiboot.job.plan import pair_findings, stop_on_failure
from mpiboot.job.plan_input import Observed
from mpiboot.network.worker_pairs import LAUNCHER, Dial, Reached
from mpiboot.system import programs
from tests.fakes.plans import (
    PATHS,
    POD,
    both,
    failing,
    hosts,
    observed,
    planned,
    reason,
    with_facts,
)


@pytest.mark.parametrize(
    ("line", "flags", "environ", "given_by", "source"),
    [
        ("mpirun --hostfile x ./train", {"hostfile": "y"}, {}, None, Source.FLAG),
        ("./train", {"hostfile": "y"}, {}, None, Source.FLAG),
        ("./train", {}, {"MPI_HOSTFILE": "y"}, None, Source.ENVIRONMENT),
        ("./train", {}, {"OMPI_MCA_orte_default_hostfile": "y"}, None, Source.ENVIRONMENT),
        ("./train", {}, {}, Source.PLATFORM, Source.PLATFORM),
        ("./train", {}, {}, None, Source.DEFAULT),
    ],
)
def test_the_hostfiles_source_is_what_named_it(
    line: str,
    flags: dict[str, str],
    environ: dict[str, str],
    given_by: Source | None,
    source: Source,
) -> None:
    seen = observed("openmpi4", {**POD, **environ})
    named_by = next(iter(environ), "default")
    file = replace(seen.hostfile, named_by=named_by, source=given_by)
    plan = planned(line, replace(seen, hostfile=file), flags)
    assert reason(plan, "hostfile") == ("/etc/mpi/hostfile", source, f"named by {named_by}")


@both
def test_ssh_on_the_line_is_mpiboots_own_with_its_arguments(family: str) -> None:
    flag = "-mca plm_rsh_agent" if family == "openmpi4" else "--prtemca plm_ssh_agent"
    words = ("mpirun", *flag.split(), "/usr/bin/ssh -v -oCompression=yes : rsh", "./train")
    seen = observed(family)
    plan = planned(words, seen)
    assert (failing(plan), plan.user_agent) == ([], "")
    assert "Compression yes" in plan.user_args.lines
    assert reason(plan, "ssh-arguments")[1] is Source.FLAG
    assert words[3] not in plan.argv
    # Of a list the first is called.
    words = (*words[:3], "/opt/agent -x : ssh", "./train")
    assert planned(words, seen).user_agent == "/opt/agent -x"


BARE = tuple(Host(f"w-{number}", line=number + 1) for number in range(2))


OMPI_SLOTS, PRTE_SLOTS = "OMPI_MCA_orte_set_default_slots", "PRTE_MCA_prte_set_default_slots"
BOTH = "openmpi4 openmpi5"
MIXED = (Host("w-0", 1, slots_given=True), Host("w-1", max_slots=2), Host("w-2"))


@pytest.mark.parametrize(
    ("families", "listed", "environ", "flag", "line", "slots", "written"),
    [
        (BOTH, BARE, {OMPI_SLOTS: "2"}, "", "", "2", "w-0 slots=2, w-1 slots=2"),
        (BOTH, BARE, {PRTE_SLOTS: "2"}, "", "", "2", "w-0 slots=2, w-1 slots=2"),
        (BOTH, BARE, {OMPI_SLOTS: "9"}, "8", "", "8", "w-0 slots=8, w-1 slots=8"),
        (
            BOTH,
            BARE,
            {OMPI_SLOTS: "9"},
            "8",
            "--mca orte_set_default_slots 2",
            "2",
            "w-0 slots=2, w-1 slots=2",
        ),
        (
            BOTH,
            MIXED,
            {OMPI_SLOTS: "3"},
            "",
            "",
            "3",
            "w-0 slots=1, w-1 slots=2 max_slots=2, w-2 slots=3",
        ),
        # As the MPI itself has it.
        (BOTH, BARE, {}, "", "", "cores", "w-0, w-1"),
        ("openmpi4", BARE, {OMPI_SLOTS: "hwthreads"}, "", "", "hwthreads", "w-0, w-1"),
        ("mpich", BARE, {}, "", "", "1", "w-0:1, w-1:1"),
    ],
)
def test_the_slots_of_a_host_without_a_number(
    families: str,
    listed: tuple[Host, ...],
    environ: dict[str, str],
    flag: str,
    line: str,
    slots: str,
    written: str,
) -> None:
    for family in families.split():
        seen = observed(family, {**POD, **environ}, listed=listed)
        plan = planned(f"mpirun {line} ./train", seen, {"slots": flag} if flag else {})
        known = slots.isdecimal()
        assert plan.hostfile == written.replace(", ", "\n") + "\n"
        assert reason(plan, "default-slots")[0] == slots
        assert (plan.ranks is not None, "-n" in plan.argv, failing(plan)) == (known, known, [])
        assert ("as many as cores" in reason(plan, "ranks")[2]) != known
        asked = planned(f"mpirun {line} -n 4 ./train", seen)
        assert (asked.ranks, failing(asked)) == (4, [])


@both
def test_every_variable_that_names_a_hostfile_follows(family: str) -> None:
    named = dict.fromkeys(
        (
            *["MPI_HOSTFILE", "MPIBOOT_HOSTFILE", "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"],
            *["OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"],
        ),
        "/etc/mpi/hostfile",
    )
    environ = {**POD, **named}
    env = planned("./train", observed(family, environ)).environment(environ)
    assert {env[name] for name in named} == {PATHS.hostfile}


def test_pods_whose_own_names_have_dots_keep_them_whole() -> None:
    def named(*hostnames: str) -> Observed:
        return with_facts(observed("openmpi5"), hostname=hostnames)

    name = "PRTE_MCA_prte_keep_fqdn_hostnames"
    assert planned("./train", named("pi.v2-w-0", "pi.v2-w-1")).set_env[name] == "1"
    assert name not in planned("./train", named("pi-w-0", "pi-w-1")).set_env
    assert name not in planned("./train", named("a.ec2.internal", "b.ec2.internal")).set_env


@pytest.mark.parametrize(
    ("theirs", "level"),
    [
        (Mpi(MpiFamily.OPENMPI4, "4.1.4", "/x", "mpirun (Open MPI) 4.1.4"), None),
        (Mpi(MpiFamily.OPENMPI4, "4.1.5", "/x", "mpirun (Open MPI) 4.1.5"), Level.WARN),
        (Mpi(MpiFamily.OPENMPI4, "4.0.7", "/x", "mpirun (Open MPI) 4.0.7"), Level.WARN),
        (Mpi(MpiFamily.OPENMPI5, "5.0.7", "/x", "mpirun (Open MPI) 5.0.7"), Level.WARN),
        (Mpi(MpiFamily.MPICH, "4.1.4", "/x", "HYDRA build details:"), Level.WARN),
        (Mpi(MpiFamily.UNKNOWN, "", "/x", "it gave no answer within 60 s"), Level.WARN),
    ],
)
def test_another_mpi_on_a_worker_is_said_before_the_start(theirs: Mpi, level: Level | None) -> None:
    plan = planned("./train", observed("openmpi4", worker_mpi=theirs))
    found = [item for item in plan.findings if item.check == "mpi-versions"]
    assert [item.level for item in found] == ([level] * 2 if level else [])
    for item in found:
        assert item.message.endswith(f": {theirs.banner}; the launcher: mpirun (Open MPI) 4.1.4")
        assert item.host.startswith("w-")


@pytest.mark.parametrize("version", ["4.1.4", ""])
def test_the_family_that_is_set_is_the_workers_too(version: str) -> None:
    # A worker tells what its mpirun says; the setting is the launcher's, where that is not known.
    theirs = Mpi(MpiFamily.UNKNOWN, version, "/x", "a wrapper of ours")
    seen = observed("openmpi4", worker_mpi=theirs)
    ours = replace(seen.mpi, version=version, banner=theirs.banner)
    plan = planned("./train", replace(seen, mpi=ours))
    assert [item for item in plan.findings if item.check == "mpi-versions"] == []
    later = replace(ours, version="5.0.7")
    told = planned("./train", replace(seen, mpi=later)).findings
    assert {item.level for item in told if item.check == "mpi-versions"} == {Level.WARN}


def test_the_mpi_that_the_line_names_counts_on_workers_too() -> None:
    path = "/opt/other/bin/mpirun"

    def found(message: str) -> list[Finding]:
        other = Mpi(MpiFamily.OPENMPI5, "5.0.7", "/usr/bin/mpirun", "mpirun (Open MPI) 5.0.7")
        seen = observed("openmpi4", worker_mpi=other)
        called = programs.recognise(path, message)
        workers = tuple(replace(worker, called_mpi=called) for worker in seen.workers)
        plan = planned(f"{path} ./train", replace(seen, workers=workers))
        return [item for item in plan.findings if item.check == "mpi-versions"]

    assert found("mpirun (Open MPI) 4.1.4") == []
    for message in ("is not there", "mpirun (Open MPI) 5.0.7", "a wrapper of ours"):
        first, _ = found(message)
        assert first.level is (Level.WARN if "wrapper" in message else Level.FAIL)
        assert f"{path}, which the line names: {message}" in first.message
    # Intel's script, where its folder is not on PATH.
    assert {item.level for item in found("")} == {Level.WARN}


@pytest.mark.parametrize(("line", "level"), [("", Level.WARN), ("--prefix /opt/o", Level.FAIL)])
def test_the_path_of_a_5_0_proves_nothing_of_its_daemons(line: str, level: Level) -> None:
    """Measured with 5.0.7: mpirun calls those beside its prterun."""
    seen = observed("openmpi5")
    called = programs.recognise("/opt/o/bin/mpirun", "is not there")
    workers = tuple(replace(worker, called_mpi=called) for worker in seen.workers)
    plan = planned(f"/opt/o/bin/mpirun {line} ./train", replace(seen, workers=workers))
    assert {item.level for item in plan.findings if item.check == "mpi-versions"} == {level}


@pytest.mark.parametrize(
    ("line", "there", "prefix"),
    [
        ("mpirun ./p", "4.1.4 4.1.4", "/opt/o"),
        ("mpirun ./p", "4.1.4 4.1.6", ""),
        ("mpirun ./p", "4.1.4 -", ""),
        ("mpirun -noprefix ./p", "4.1.4 4.1.4", ""),
        ("/opt/o/bin/mpirun ./p", "4.1.4 4.1.4", ""),
        ("mpirun -1 ./p", "4.1.4 4.1.4", ""),
    ],
)
def test_daemons_of_4_1_that_no_login_finds_are_called_by_their_prefix(
    line: str, there: str, prefix: str
) -> None:
    seen = observed("openmpi4")
    workers = tuple(
        replace(worker, facts=None, called_mpi=programs.recognise("/opt/o/bin/mpirun", message))
        for worker, version in zip(seen.workers, there.split(), strict=True)
        for message in (f"mpirun (Open MPI) {version}",)
    )
    plan = planned(line, replace(seen, workers=workers))
    assert [one.value for one in plan.decisions if one.name == "prefix"] == [prefix] * bool(prefix)
    assert ("--prefix /opt/o ./p" in " ".join(plan.argv)) == bool(prefix)
    # Its PATH has one.
    first = replace(workers[0], facts=seen.workers[0].facts)
    found = planned(line, replace(seen, workers=(first, workers[1])))
    assert "/opt/o ./p" not in " ".join(found.argv)


@pytest.mark.parametrize(
    ("family", "name", "value"),
    [
        ("openmpi4", "OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
        ("openmpi5", "OMPI_MCA_smsc", "^cma"),
        ("mpich", "MPIR_CVAR_CH4_CMA_ENABLE", "0"),
    ],
)
def test_memory_that_may_not_be_read_is_copied_by_dev_shm(
    family: str, name: str, value: str
) -> None:
    seen = observed(family)
    first, second = seen.workers
    assert second.facts is not None
    refused = replace(second, facts=replace(second.facts, memory_refused="Operation not permitted"))
    seen = replace(seen, workers=(replace(first, facts=None), refused))
    plan = planned("./train", seen)
    assert plan.set_env[name] == value
    assert "(Operation not permitted) on w-1.job.ns.svc: " in reason(plan, name)[2]
    theirs = planned("./train", replace(seen, environ={**seen.environ, name: "emulated"}))
    assert name not in theirs.set_env
    assert name not in planned("./train", observed(family)).set_env
    # A launcher that is a host itself has ranks that the same is true for.
    local = observed(family, local=hosts(2, 2)[:1])
    here = planned("./train", replace(local, own=refused.facts))
    assert " on w-0.job.ns.svc: " in reason(here, name)[2]
    assert (
        name not in planned("./train", replace(seen, workers=(first,), own=refused.facts)).set_env
    )


def test_a_job_of_this_pod_alone_has_no_control_link_and_misses_no_worker() -> None:
    alone = replace(observed(listed=hosts(2), local=hosts(2)), workers=())
    plan = planned("./train", alone)
    assert reason(plan, "control-link") == ("", "detected", "not pinned: every host is this pod")


def test_a_worker_without_mpi_is_said_and_one_that_tells_nothing_is_not_blamed() -> None:
    seen = observed()
    first, second = seen.workers
    assert first.facts is not None
    bare = replace(first, facts=replace(first.facts, mpi=None))
    silent = replace(second, facts=None)
    plan = planned("./train", replace(seen, workers=(bare, silent)))
    unknown, finding = plan.findings
    assert (finding.check, finding.host) == ("mpi-versions", "w-0.job.ns.svc")
    assert finding.level is Level.WARN
    assert (unknown.check, unknown.host) == ("data-facts", "w-1.job.ns.svc")
    assert "no mpirun" in finding.message


SECRET = "hunter2hunter2"


@both
def test_no_secret_is_shown_by_a_plan(family: str) -> None:
    environ = {
        **POD,
        "NCCL_AUTH_TOKEN": SECRET,
        "OMPI_MCA_some_password": SECRET,
        "WANDB_API_KEY": SECRET,
    }
    line = f"mpirun -x MY_TOKEN={SECRET} ./train --api-key={SECRET}"
    plan = planned(line, observed(family, environ), {"forward": "WANDB_API_KEY"})
    assert SECRET not in render.plan(plan, plan.findings)
    assert SECRET not in render.plan_json(plan, plan.findings)
    assert SECRET not in render.command(plan.argv)
    assert f"MY_TOKEN={SECRET}" in plan.argv
    assert json.loads(render.plan_json(plan, plan.findings))["argv"][0] == "mpirun"


def test_the_first_failure_ends_the_launcher_and_the_others_come_along() -> None:
    seen = observed("openmpi5", {**POD, "PRTE_MCA_x": "$"})
    plan = planned("./train", seen, {"port_range": "7000-7001", "control_ifname": "ens9"})
    assert failing(plan) == ["interface-missing", "settings-conflict"]
    with pytest.raises(MpibootError) as stopped:
        stop_on_failure(plan.findings)
    assert stopped.value.finding.check == "interface-missing"
    assert [item.check for item in stopped.value.others] == ["settings-conflict"]
    assert all(item.check in BY_REFERENCE for item in plan.findings)


@both
def test_programs_of_one_line_may_have_a_hostfile_each(family: str) -> None:
    """A copy of each is for mpirun; which host gets which ranks is its own affair."""
    files = union(
        [
            Hostfile("a", "the mpirun line", (Host("w-0", 2, slots_given=True),)),
            Hostfile("b", "the mpirun line", (Host("w-1"), Host("w-0", 1, slots_given=True))),
        ]
    )
    line = "mpirun --hostfile a -n 2 ./one : --hostfile b -n 2 ./two"
    seen = observed(family, listed=files.hosts, renamed={"w-1": "w-1.job"})
    seen = replace(seen, hostfile=files)
    plan = planned(line, seen, {"slots": "3"})
    assert not [item for item in plan.findings if item.level is Level.FAIL]
    assert plan.hostfile == "w-0 slots=2\nw-1.job slots=3\n"
    first, second = plan.more_hostfiles
    assert list(plan.more_hostfiles.values()) == ["w-0 slots=2\n", "w-1.job slots=3\nw-0 slots=1\n"]
    words = " ".join(plan.argv)
    assert f"--hostfile {first} -n 2 ./one : " in words
    assert words.endswith(f"--hostfile {second} -n 2 ./two")
    assert plan.remote_hosts == ("w-0", "w-1.job")


@pytest.mark.parametrize(
    ("family", "line", "environ", "told"),
    [
        ("openmpi4", "./train", {}, True),
        ("openmpi4", "mpirun -n 2 ./train", {}, True),
        ("openmpi4", "./train", {"OMPI_MCA_mca_base_env_list": "A"}, False),
        ("openmpi4", "./train", {"OPAL_OUTPUT_STDERR_FD": "9"}, False),
        ("openmpi4", "mpirun -n 1 ./a : -n 1 ./b", {}, False),
        ("openmpi4", "mpirun --no-such-option ./train", {}, False),
        ("openmpi5", "./train", {}, False),
    ],
)
def test_ranks_beside_mpirun_keep_their_own_handle(
    family: str, line: str, environ: dict[str, str], *, told: bool
) -> None:
    seen = observed(family, {**POD, **environ})
    first, *others = seen.workers
    here = replace(seen, workers=tuple(others), local=(first.host,))
    assert ("OPAL_OUTPUT_STDERR_FD=2" in planned(line, here).argv) is told
    # Where mpirun's host runs no rank there is none that would inherit it.
    assert "OPAL_OUTPUT_STDERR_FD=2" not in planned(line, seen).argv


NOT_READ = "not read from --no-such-option on"
DAEMONS_PORTS = "--mca oob_tcp_dynamic_ipv4_ports 5000-5009"


@pytest.mark.parametrize(
    ("environ", "program", "optional", "elsewhere"),
    [
        ({}, "./train", "", ""),
        ({"OMPI_MCA_btl_tcp_if_include": "eth0"}, "./train", "", ""),
        ({}, "mpirun --mca btl_tcp_if_include eth0 ./train", "", ""),
        ({"OMPI_MCA_btl_tcp_if_include": "net1"}, "./train", "btl_tcp_if_include=net1", ""),
        ({}, "mpirun --mca btl_tcp_if_include net1 ./train", "btl_tcp_if_include=net1", ""),
        ({"OMPI_MCA_btl_tcp_if_exclude": "lo"}, "./train", "btl_tcp_if_exclude=lo", ""),
        ({"OMPI_MCA_btl_tcp_port_min_v4": "5000"}, "./train", "btl_tcp_port_min_v4=5000", ""),
        ({"MPIBOOT_MPI_NETWORK": "data"}, "./train", "the data network", ""),
        ({}, "mpirun --no-such-option ./train", NOT_READ, NOT_READ),
        ({}, f"mpirun {DAEMONS_PORTS} ./train", "", "oob_tcp_dynamic_ipv4_ports=5000-5009"),
        ({}, "mpirun --mca oob_tcp_if_include net1 ./train", "", "oob_tcp_if_include=net1"),
        (
            *({"MPIBOOT_PORT_RANGE": "6000-6009"}, f"mpirun {DAEMONS_PORTS} ./train"),
            *("", "oob_tcp_dynamic_ipv4_ports=5000-5009"),  # at which nobody has dialled
        ),
    ],
)
@both
def test_workers_that_do_not_reach_each_other_or_the_launcher_end_a_job_that_needs_it(
    family: str, environ: dict[str, str], program: str, optional: str, elsewhere: str
) -> None:
    seen = observed(family, {**POD, **environ})
    plan = planned(program, seen)
    first, second = (host.name for host in seen.hostfile.hosts)
    for target, why, found in (
        (second, optional, plan.tcp_optional),
        (LAUNCHER, elsewhere, plan.daemons_elsewhere),
    ):
        assert why in found
        assert bool(why) == bool(found)
        dropped = Dial(first, target, "10.244.0.11", 4000, 2.0, Reached.SILENT)
        (wrong,) = pair_findings(plan, seen, [dropped])
        assert wrong.level is (Level.WARN if why else Level.FAIL)


def test_nat_ends_a_job_of_open_mpi_alone() -> None:
    for family, level in (
        ("openmpi4", Level.FAIL),
        ("openmpi5", Level.FAIL),
        ("mpich", Level.WARN),
    ):
        seen = observed(family)
        first, second = (host.name for host in seen.hostfile.hosts)
        good = Dial(first, second, "10.0.0.2", 4000, 2.0, Reached.ANSWERED)
        seen_at = replace(good, own="10.0.0.1", seen="10.1.0.1")
        (found,) = pair_findings(planned("./train", seen), seen, [seen_at])
        assert found.level is level
