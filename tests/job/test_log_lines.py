"""The plan as the log has it: a few lines at info, everything at debug."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mpiboot.core import log
from mpiboot.core.facts import Gpus, Worker
from mpiboot.core.model import Decision, LogFormat, LogLevel, Mpi, MpiFamily, Source
from mpiboot.job import render
from mpiboot.job.plan import Plan
from mpiboot.job.plan_input import Observed
from mpiboot.job.render import LogLine
from tests.fakes import workers as w
from tests.fakes.plans import OPERATOR, POD, observed, planned, reason, with_facts


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    log.configure()


def seen(family: str = "openmpi5", **environ: str) -> Observed:
    return observed(family, {**POD, **OPERATOR, **environ})


def with_network(one: Observed, *workers: Worker) -> Observed:
    """Give an observation the networks of other workers, host by host."""
    pairs = zip(one.workers, workers, strict=True)
    found = (replace(mine, facts=other.facts, address=other.address) for mine, other in pairs)
    return replace(one, workers=tuple(found))


def plan(one: Observed, program: str = "./train", **flags: str) -> Plan:
    return planned(program, one, flags)


def at_info(made: Plan, one: Observed) -> list[LogLine]:
    return [line for line in render.log_lines(made, one) if line[0] is LogLevel.INFO]


def told(one: Observed, program: str = "./train", **flags: str) -> dict[str, str]:
    lines = at_info(plan(one, program, **flags), one)
    assert all("\n" not in message for _, _, message, _ in lines)
    assert len(lines) <= 6
    return {event: message for _, event, message, _ in lines}


def test_a_plain_job_is_three_lines_of_the_log() -> None:
    job, control, data = told(observed("openmpi4", POD)).values()
    ranks = "(all slots of 2 hosts)"
    assert job == (
        f"Open MPI 4.1.4 (/usr/bin/mpirun): 4 ranks on 2 hosts of /etc/mpi/hostfile {ranks}"
    )
    assert control.startswith("control network (SSH, mpirun's daemons): eth0 (the launcher's rout")
    assert data == (
        "data network: none: NCCL's and Gloo's sockets on eth0 (no worker has a usable RDMA port)"
    )


SRIOV, TCP = (w.sriov(0), w.sriov(1)), (w.tcp(0), w.tcp(1, "dra0"))
GPUS = tuple(w.changed(one, gpus=Gpus(8)) for one in SRIOV)
LEFT = "(no worker has a GPU, and all have RDMA: MPI carries the data)"
WANTS = "; a program without NCCL may want MPIBOOT_MPI_NETWORK=data)"
BY_GPUS = "control (w-0.job.ns.svc, w-1.job.ns.svc: GPUs, so NCCL carries the data"
OWN, DATA = "your own choice", {"mpi_network": "data"}


@pytest.mark.parametrize(
    ("family", "workers", "flags", "environ", "where"),
    [
        ("openmpi4", GPUS, {}, {}, f"{BY_GPUS}{WANTS}"),
        ("openmpi5", TCP, DATA, {}, "control (the data links' names differ"),
        ("openmpi4", GPUS, {}, {"UCX_TLS": "rc"}, f"{OWN} (UCX_TLS is set in this pod)"),
        ("mpich", GPUS, {}, {"OMPI_MCA_pml": "ucx"}, ""),
        ("mpich", SRIOV, {}, {}, f"left to MPICH (Hydra) {LEFT}"),
        ("openmpi4", (), {}, {}, ""),
    ],
)
def test_where_mpis_own_messages_go_is_told_where_open_mpi_has_a_choice(
    family: str,
    workers: tuple[Worker, ...],
    flags: dict[str, str],
    environ: dict[str, str],
    where: str,
) -> None:
    one = seen(family, **environ)
    one = with_network(one, *workers) if workers else one
    message = told(one, **flags).get("mpi-network", "")
    assert message.startswith(f"MPI's own messages: {where}" if where else "")
    assert bool(message) == bool(where)


VFS = (w.sriov(0, "mlx5_3"), w.sriov(1, "mlx5_7"))
MACVLAN = (w.macvlan(0), w.macvlan(1))
ON = "NCCL's and Gloo's sockets on"


@pytest.mark.parametrize(
    ("workers", "flags", "message"),
    [
        ((w.tcp(0), w.tcp(1)), {}, f"TCP: {ON} net1 (no worker has a usable RDMA port)"),
        (TCP, {}, f"TCP: {ON} dra0, net1 ("),
        (MACVLAN, {}, f"RoCE: mlx5_2:1 at 100 Gb/s, {ON} net1 (every worker has usable RoCE port"),
        (VFS, {}, f"RoCE: mlx5_3:1 at 100 Gb/s, mlx5_7:1 at 100 Gb/s, {ON} net1 ("),
        (MACVLAN, {"data_network": "off"}, "off (--data-network=off: nothing is set)"),
        ((w.macvlan(0), w.plain(1)), {}, f"TCP: {ON} eth0 (w-1.job.ns.svc: no usable RDMA port, "),
    ],
)
def test_each_kind_of_data_network_is_a_sentence_and_its_decisions_fields(
    workers: tuple[Worker, ...], flags: dict[str, str], message: str
) -> None:
    one = with_network(seen(), *workers)
    made = plan(one, **flags)
    assert told(one, **flags)["data-network"].startswith(f"data network: {message}")
    value, source, why = reason(made, "data-network")
    fields = {"decision": "data-network", "value": value, "source": source, "reason": why}
    assert [its for _, event, _, its in at_info(made, one) if event == "data-network"] == [fields]


def test_what_the_user_has_set_is_told_apart_from_what_the_platform_sets() -> None:
    line = "mpirun -n 3 --mca btl self,tcp ./train"
    one = seen("openmpi4", OMPI_MCA_pml="ucx", OMPI_MCA_rmaps_base_mapping_policy="node")
    message = told(one, line)["user-settings"]
    assert message.startswith("your settings: ")
    assert "OMPI_MCA_pml=ucx" in message
    assert "OMPI_MCA_btl=self,tcp" in message
    for name in ("hostfile", "OMPI_MCA_orte_keep_fqdn_hostnames", "ConnectionAttempts"):
        assert name not in message
    assert "user-settings" not in told(observed("openmpi4", POD))
    for family in ("openmpi4", "openmpi5"):
        assert "user-settings" not in told(seen(family))
        other = seen(family, OMPI_MCA_plm_rsh_args="-o ConnectionAttempts=3")
        shown = "your settings: ssh-arguments=-o ConnectionAttempts=3"
        assert told(other)["user-settings"] == shown


def test_variables_that_ranks_do_not_get_are_named() -> None:
    one = seen("openmpi5", LANG="C", HF_TOKEN="hunter2", MY_VAR="1", NCCL_DEBUG="INFO")
    one = with_facts(one, environment=(("LANG", "MY_VAR"), ("LANG",)))
    assert told(one)["not-forwarded"] == (
        "not forwarded to ranks: HF_TOKEN MY_VAR "
        "(ranks don't get these; MPIBOOT_FORWARD=NAME,... or `-x NAME` hands them on)"
    )
    assert "not-forwarded" not in told(one, "mpirun -x HF_TOKEN -x MY_VAR ./train")
    assert "not-forwarded" not in told(one, forward="HF_TOKEN,MY_*")


def test_a_secret_of_the_users_is_not_in_the_log() -> None:
    secret = {"OMPI_MCA_btl_secret_token": "hunter2", "A_TOKEN": "x9y"}
    text = " ".join(told(seen("openmpi4", MPIBOOT_FORWARD="A_TOKEN", **secret)).values())
    assert not [value for value in secret.values() if value in text]


def test_as_json_each_line_has_its_parts_as_fields(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure(level=LogLevel.DEBUG, form=LogFormat.JSON, role="launcher")
    one = with_network(seen(), *SRIOV)
    for level, event, message, fields in render.log_lines(plan(one), one):
        log.write(level, event, message, **fields)
    records = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    by_event = {item["event"]: item for item in records}
    assert {item["format"] for item in records} == {log.FORMAT}
    assert (by_event["job"]["ranks"], by_event["job"]["hosts"]) == (4, 2)
    assert by_event["control-network"]["value"] == "eth0"
    decisions = [item["decision"] for item in records if item["event"] == "plan"]
    assert decisions == [item.name for item in plan(one).decisions]
    rows = [item for item in records if item["event"] == "worker"]
    assert [(item["hca"], item["level"]) for item in rows] == [("mlx5_3:1", "debug")] * 2


PLAN = Plan((), (), ())


def test_an_unknown_mpi_is_told_without_a_name_and_a_number_of_ranks() -> None:
    one = replace(observed("openmpi4", POD), mpi=Mpi(MpiFamily.UNKNOWN, "", "/opt/mpirun", ""))
    ((_, event, message, fields),) = at_info(PLAN, one)
    ranks = f"as many ranks as mpirun decides on 2 hosts of {one.hostfile.path}"
    assert (event, message) == ("job", f"unknown MPI (/opt/mpirun): {ranks}")
    mpi = {"mpi": "", "mpi_version": "", "mpirun": "/opt/mpirun"}
    assert fields == {**mpi, "hosts": 2, "ranks": None, "hostfile": one.hostfile.path}


def test_what_is_the_users_and_what_mpirun_does_not_get_are_told_apart() -> None:
    one = observed("openmpi4", POD)
    sources = {"A": Source.FLAG, "B": Source.ENVIRONMENT, "C": Source.DETECTED}
    sources |= {"hostfile": Source.FLAG, "GONE": Source.DETECTED}
    decisions = tuple(Decision(name, "v", source, "so") for name, source in sources.items())
    made = replace(PLAN, decisions=decisions, unset_env=("AGENT", "GONE"))
    _, *lines = at_info(made, one)
    assert [(event, text, fields) for _, event, text, fields in lines] == [
        ("user-settings", "your settings: A=v, B=v", {"kept": ["A=v", "B=v"]}),
    ]
    assert len(at_info(PLAN, one)) == 1
