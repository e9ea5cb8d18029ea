"""The plan as the log has it: a few lines at info, everything at debug."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mpiboot.core import log
from mpiboot.core.facts import Gpus, Worker
from mpiboot.core.model import Decision, Mpi, MpiFamily, Source
from mpiboot.core.setting_types import LogFormat, LogLevel
from mpiboot.job import render
from mpiboot.job.plan import Plan
from mpiboot.job.plan_input import Observed
from mpiboot.job.render import LogLine
from tests.fakes import workers as w
from tests.fakes.plans import OPERATOR, POD, observed, planned, with_facts
from tests.fakes.plans import reason as reason_of


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    log.configure()


def seen(family: str = "openmpi5", **environ: str) -> Observed:
    return observed(family, {**POD, **OPERATOR, **environ})


def with_network(one: Observed, *workers: Worker) -> Observed:
    """Give an observation the networks of other workers, host by host."""
    pairs = zip(one.workers, workers, strict=True)
    return replace(
        one,
        workers=tuple(
            replace(mine, facts=other.facts, address=other.address) for mine, other in pairs
        ),
    )


def plan(one: Observed, program: str = "./train", **flags: str) -> Plan:
    return planned(program, one, flags)


def at_info(made: Plan, one: Observed) -> list[LogLine]:
    return [line for line in render.log_lines(made, one) if line[0] is LogLevel.INFO]


def told(one: Observed, program: str = "./train", **flags: str) -> dict[str, str]:
    lines = at_info(plan(one, program, **flags), one)
    assert all("\n" not in message for _, _, message, _ in lines)
    assert len(lines) <= 6
    return {event: message for _, event, message, _ in lines}


def say(made: Plan, one: Observed) -> None:
    """Write the lines, as a launcher does."""
    for level, event, message, fields in render.log_lines(made, one):
        log.say(level, event, message, **fields)


def test_a_plain_job_is_three_lines_of_the_log() -> None:
    job, control, data = told(observed("openmpi4", POD)).values()
    assert job == (
        "Open MPI 4.1.4 (/usr/bin/mpirun): 4 ranks on 2 hosts of /etc/mpi/hostfile "
        "(all slots of 2 hosts)"
    )
    assert control.startswith("control network (SSH, mpirun's daemons): eth0 (the launcher's rout")
    assert data == (
        "data network: none: NCCL's and Gloo's sockets on eth0 (no worker has a usable RDMA port)"
    )


def test_with_rdma_a_line_says_which_device_carries_what_and_how_mpi_is_moved() -> None:
    one = with_network(seen(), *GPUS)
    lines = told(one)
    assert lines["data-network"] == (
        "data network: RoCE: mlx5_3:1 at 100 Gb/s, NCCL's and Gloo's sockets on net1 "
        "(every worker has usable RoCE ports)"
    )
    assert lines["mpi-network"] == (
        "MPI's own messages: control (w-0.job.ns.svc, w-1.job.ns.svc: GPUs, so NCCL carries the "
        "data; a program without NCCL may want MPIBOOT_MPI_NETWORK=data)"
    )
    moved = told(one, mpi_network="data")
    assert moved["mpi-network"] == "MPI's own messages: data (--mpi-network)"


SRIOV, TCP = (w.sriov(0), w.sriov(1)), (w.tcp(0), w.tcp(1, "dra0"))
GPUS = tuple(w.changed(one, gpus=Gpus(8)) for one in SRIOV)
LEFT = "(no worker has a GPU, and all have RDMA: MPI carries the data)"
WANTS = "; a program without NCCL may want MPIBOOT_MPI_NETWORK=data)"
CARRIES, OWN = ", so NCCL carries the data", "your own choice"
DATA, GIVEN = {"mpi_network": "data"}, "data (--mpi-network)"


@pytest.mark.parametrize(
    ("family", "workers", "flags", "environ", "where"),
    [
        (
            "openmpi4",
            GPUS,
            {},
            {},
            f"control (w-0.job.ns.svc, w-1.job.ns.svc: GPUs{CARRIES}{WANTS}",
        ),
        ("openmpi4", SRIOV, {}, {}, f"left to Open MPI 4.1 (ORTE) {LEFT}"),
        (
            "openmpi4",
            (SRIOV[0], w.without_facts("w-1")),
            {},
            {},
            "left to Open MPI 4.1 (ORTE) (GPU",
        ),
        ("openmpi5", TCP, {}, {}, f"control (not every worker has RDMA{WANTS}"),
        ("openmpi5", TCP, DATA, {}, "control (the data links' names differ"),
        ("openmpi4", (w.tcp(0), w.tcp(1)), DATA, {}, GIVEN),
        ("openmpi5", (w.efa(0), w.efa(1)), DATA, {}, GIVEN),
        (
            "openmpi4",
            SRIOV,
            {},
            {"OMPI_MCA_pml": "ucx"},
            f"{OWN} (OMPI_MCA_pml is set in this pod)",
        ),
        ("openmpi4", GPUS, {}, {"UCX_TLS": "rc"}, f"{OWN} (UCX_TLS is set in this pod)"),
        ("openmpi4", GPUS, {}, {"OMPI_MCA_btl_tcp_if_include": "net1"}, f"{OWN} (OMPI_MCA_btl_tcp"),
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
    # The plan has the same.
    shown = render.plan(plan(one, **flags), ())
    value = where.partition(" (")[0]
    assert ("  mpi-network" in shown) == bool(where)
    assert value in shown


def test_devices_that_differ_by_worker_are_listed_and_so_are_links() -> None:
    one = with_network(seen(), w.sriov(0, "mlx5_3"), w.sriov(1, "mlx5_7"))
    assert "RoCE: mlx5_3:1 at 100 Gb/s, mlx5_7:1 at 100 Gb/s, NCCL's" in told(one)["data-network"]
    one = with_network(seen(), w.tcp(0), w.tcp(1, "dra0"))
    assert "TCP: NCCL's and Gloo's sockets on dra0, net1 (" in told(one)["data-network"]


def test_what_the_user_has_set_is_said_to_be_kept_or_not() -> None:
    line = "mpirun -n 3 --mca btl self,tcp ./train"
    one = seen("openmpi4", OMPI_MCA_pml="ucx", OMPI_MCA_rmaps_base_mapping_policy="node")
    message = told(one, line)["user-settings"]
    assert message.startswith("your settings: ")
    assert "OMPI_MCA_pml=ucx" in message
    assert "OMPI_MCA_btl=self,tcp" in message
    assert "hostfile" not in message
    assert "OMPI_MCA_orte_keep_fqdn_hostnames" not in message
    assert "ConnectionAttempts" not in message
    assert "user-settings" not in told(observed("openmpi4", POD))


@pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])
def test_what_the_platform_sets_is_not_told_as_the_users(family: str) -> None:
    assert "user-settings" not in told(seen(family))
    other = seen(family, OMPI_MCA_plm_rsh_args="-o ConnectionAttempts=3")
    assert told(other)["user-settings"] == "your settings: ssh-arguments=-o ConnectionAttempts=3"


def test_variables_that_ranks_do_not_get_are_named() -> None:
    one = seen("openmpi5", LANG="C", HF_TOKEN="hunter2", MY_VAR="1", NCCL_DEBUG="INFO")
    one = with_facts(one, environment=(("LANG", "MY_VAR"), ("LANG",)))
    text = told(one)["not-forwarded"]
    assert text == (
        "not forwarded to ranks: HF_TOKEN MY_VAR "
        "(ranks don't get these; MPIBOOT_FORWARD=NAME,... or `-x NAME` hands them on)"
    )
    assert "not-forwarded" not in told(one, "mpirun -x HF_TOKEN -x MY_VAR ./train")
    assert "not-forwarded" not in told(one, forward="HF_TOKEN,MY_*")


def test_a_secret_of_the_users_is_not_in_the_log() -> None:
    one = seen(
        "openmpi4", OMPI_MCA_btl_secret_token="hunter2", MPIBOOT_FORWARD="A_TOKEN", A_TOKEN="x9y"
    )
    text = " ".join(told(one).values())
    assert "hunter2" not in text
    assert "x9y" not in text


def test_as_json_each_line_has_its_parts_as_fields(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure(level=LogLevel.DEBUG, form=LogFormat.JSON, role="launcher")
    one = with_network(seen(), w.sriov(0), w.sriov(1))
    say(plan(one), one)
    records = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    by_event = {item["event"]: item for item in records}
    assert {item["format"] for item in records} == {log.FORMAT}
    assert (by_event["job"]["ranks"], by_event["job"]["hosts"]) == (4, 2)
    assert by_event["control-network"]["value"] == "eth0"
    assert by_event["data-network"]["value"] == "RoCE"
    decisions = [item["decision"] for item in records if item["event"] == "plan"]
    assert decisions == [item.name for item in plan(one).decisions]
    rows = [item for item in records if item["event"] == "worker"]
    assert [item["hca"] for item in rows] == ["mlx5_3:1"] * 2
    assert all(item["level"] == "debug" for item in rows)


@pytest.mark.parametrize(
    ("workers", "flags", "message"),
    [
        (
            (w.tcp(0), w.tcp(1)),
            {},
            "TCP: NCCL's and Gloo's sockets on net1 (no worker has a usable RDMA port)",
        ),
        (
            (w.macvlan(0), w.macvlan(1)),
            {},
            "RoCE: mlx5_2:1 at 100 Gb/s, NCCL's and Gloo's sockets on net1 (every worker has usabl",
        ),
        ((w.plain(0), w.plain(1)), {}, "none: NCCL's and Gloo's sockets on eth0 (no worker has a"),
        (
            (w.macvlan(0), w.macvlan(1)),
            {"data_network": "off"},
            "off (--data-network=off: nothing is set)",
        ),
        (
            (w.macvlan(0), w.plain(1)),
            {},
            "TCP: NCCL's and Gloo's sockets on eth0 (w-1.job.ns.svc: no usable RDMA port, and all",
        ),
    ],
)
def test_each_kind_of_data_network_is_a_sentence_and_its_decisions_fields(
    workers: tuple[Worker, ...], flags: dict[str, str], message: str
) -> None:
    one = with_network(seen(), *workers)
    made = plan(one, **flags)
    assert told(one, **flags)["data-network"].startswith(f"data network: {message}")
    value, source, reason = reason_of(made, "data-network")
    fields = {"decision": "data-network", "value": value, "source": source, "reason": reason}
    assert [its for _, event, _, its in at_info(made, one) if event == "data-network"] == [fields]


PLAN = Plan((), (), ())


def test_an_unknown_mpi_is_told_without_a_name_and_a_number_of_ranks() -> None:
    one = observed("openmpi4", POD)
    unknown = replace(one, mpi=Mpi(MpiFamily.UNKNOWN, "", "/opt/mpirun", ""))
    ((_, event, message, fields),) = at_info(PLAN, unknown)
    assert event == "job"
    assert message == (
        "unknown MPI (/opt/mpirun): as many ranks as mpirun decides on 2 hosts of "
        f"{one.hostfile.path}"
    )
    assert fields == {
        "mpi": "",
        "mpi_version": "",
        "mpirun": "/opt/mpirun",
        "hosts": 2,
        "ranks": None,
        "hostfile": one.hostfile.path,
    }


def test_what_is_the_users_and_what_mpirun_does_not_get_are_told_apart() -> None:
    one = observed("openmpi4", POD)
    decisions = [
        Decision(name, "v", source, "so")
        for name, source in (
            ("A", Source.FLAG),
            ("B", Source.ENVIRONMENT),
            ("C", Source.DETECTED),
            ("hostfile", Source.FLAG),
            ("GONE", Source.DETECTED),
        )
    ]
    made = replace(PLAN, decisions=tuple(decisions), unset_env=("AGENT", "GONE"))
    _, *lines = at_info(made, one)
    assert lines == [
        (LogLevel.INFO, "user-settings", "your settings: A=v, B=v", {"kept": ["A=v", "B=v"]}),
        (
            LogLevel.INFO,
            "user-settings",
            "removed from mpirun's environment: GONE",
            {"removed": ["GONE"]},
        ),
    ]
    assert len(at_info(PLAN, one)) == 1
