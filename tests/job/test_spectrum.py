"""IBM Spectrum MPI, which can't be had here: what it would get, by what is known of it. Not run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.model import MpiFamily, Source
from mpiboot.job.mpirun_line import read
from mpiboot.job.mpirun_options import ORTE
from mpiboot.job.plan import Plan
from mpiboot.job.plan_input import Observed
from mpiboot.system import programs
from tests.fakes.plans import OPERATOR, POD, failing, hosts, observed, planned, reason, warned

# As https://github.com/cp2k/cp2k/pull/1353 shows it.
SAID = "mpirun (IBM Spectrum MPI) 10.3.1.02rtm0"
MPI = programs.recognise("/opt/ibm/spectrum_mpi/bin/mpirun", SAID)


def seen(**environ: str) -> Observed:
    """Two workers that have it, and a launcher."""
    usual = observed("openmpi4", {**POD, **OPERATOR, **environ}, listed=hosts(2, 2))
    workers = tuple(
        replace(item, facts=item.facts and replace(item.facts, mpi=MPI)) for item in usual.workers
    )
    return replace(usual, mpi=MPI, workers=workers)


def made(program: str = "./train", flags: dict[str, str] | None = None, **environ: str) -> Plan:
    return planned(program, seen(**environ), flags)


def test_it_is_read_and_started_as_open_mpi_4_but_for_what_carries_messages() -> None:
    usual = planned("./train", observed("openmpi4", {**POD, **OPERATOR}, listed=hosts(2, 2)))
    plan = made()
    left = usual.set_env.keys() - plan.set_env.keys()
    assert left == {
        "OMPI_MCA_pml",
        "OMPI_MCA_btl",
        "OMPI_MCA_coll_hcoll_enable",
        "OMPI_MCA_coll_ucc_enable",
    }
    assert plan.set_env.items() <= usual.set_env.items()
    assert (plan.argv, plan.hostfile, plan.remote_hosts) == (
        *(usual.argv, usual.hostfile, usual.remote_hosts),
    )
    assert plan.set_env["OMPI_MCA_routed"] == "direct"
    assert plan.set_env["OMPI_MCA_plm_rsh_agent"]
    assert plan.set_env["OMPI_MCA_oob_tcp_if_include"] == "eth0"


def test_what_is_left_out_is_said() -> None:
    (message,) = warned(made())
    assert message.startswith(f"{SAID}: mpiboot was not tried with it, and leaves out")
    assert "OMPI_MCA_pml" in message
    assert reason(made(), "mpi")[0] == "IBM Spectrum MPI (ORTE): 10.3.1.02rtm0"
    assert reason(made(flags={"mpi": "spectrum"}), "mpi")[1] is Source.FLAG


@pytest.mark.parametrize("word", ["-tcp", "-TCP", "-pami", "-PAMI"])
def test_its_own_options_hide_nothing_of_a_line(word: str) -> None:
    line = f"mpirun {word} -n 4 -x A ./train --epochs 3"
    read_ = read(line.split(), MpiFamily.SPECTRUM)
    assert (read_.unknown, read_.np, read_.program) == ("", 4, "./train")
    plan = made(line)
    assert failing(plan) == []
    words = plan.argv[-(len(line.split()) - 1) :]
    assert list(words) == line.split()[1:]
    assert word.lstrip("-") not in ORTE.options


def test_its_messages_are_not_moved_by_a_setting() -> None:
    plan = made(flags={"mpi_network": "data"})
    assert failing(plan) == []
    assert "OMPI_MCA_pml" not in plan.set_env
