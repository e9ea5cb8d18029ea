"""What a command's environment names for a real mpirun below it, and what a launch is given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpiboot.launcher import shims

AGENT = "/opt/mpiboot/libexec/agent"
OPEN_4 = {"OMPI_MCA_plm_rsh_agent": AGENT, "OMPI_MCA_plm_rsh_no_tree_spawn": "1"}
OPEN_5 = {"PRTE_MCA_plm_ssh_agent": AGENT, "PRTE_MCA_plm_ssh_no_tree_spawn": "1"}
MPICH = {"HYDRA_LAUNCHER_EXEC": AGENT}
INTEL = {"I_MPI_HYDRA_BOOTSTRAP_EXEC": AGENT, "I_MPI_HYDRA_BRANCH_COUNT": "0"}
ALL = OPEN_4 | OPEN_5 | MPICH | INTEL


@pytest.mark.parametrize(
    ("environ", "given"),
    [
        ({}, ALL),
        # The user's own agent, by each name that an MPI reads.
        ({"OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh"}, MPICH | INTEL),
        ({"OMPI_MCA_orte_rsh_agent": "rsh"}, OPEN_5 | MPICH | INTEL),
        ({"PRTE_MCA_plm_ssh_agent": "a"}, OPEN_4 | MPICH | INTEL),
        ({"HYDRA_LAUNCHER_EXEC": "a"}, OPEN_4 | OPEN_5),
        ({"I_MPI_HYDRA_BOOTSTRAP_EXEC": "a"}, OPEN_4 | OPEN_5 | MPICH),
        # Another launcher than ssh.
        ({"HYDRA_LAUNCHER": "slurm"}, OPEN_4 | OPEN_5 | INTEL),
        ({"HYDRA_LAUNCHER": "ssh"}, ALL),
        ({"I_MPI_HYDRA_BOOTSTRAP": "lsf"}, OPEN_4 | OPEN_5 | MPICH),
        ({"OMPI_MCA_plm": "slurm"}, MPICH | INTEL),
        ({"OMPI_MCA_plm": "rsh"}, ALL),
        ({"SLURM_JOB_ID": "7"}, {}),
        # What the user has said of one variable stands.
        ({"I_MPI_HYDRA_BRANCH_COUNT": "8"}, ALL.keys() - {"I_MPI_HYDRA_BRANCH_COUNT"}),
        # A platform's hostfile is for the MPI that it knows: the MPI Operator's.
        (
            {"OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"},
            ALL | {"PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile"},
        ),
        ({"I_MPI_HYDRA_HOST_FILE": "/h"}, ALL | {"HYDRA_HOST_FILE": "/h"}),
    ],
)
def test_each_mpi_is_given_the_agent_unless_it_has_one(
    environ: dict[str, str], given: dict[str, str] | set[str]
) -> None:
    expected = given if isinstance(given, dict) else {name: ALL[name] for name in given}
    assert shims.command_variables(environ, AGENT) == expected


def test_an_agent_that_can_not_be_executed_is_given_to_none() -> None:
    assert shims.command_variables({}, "") == {}


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command's folder; its MPI is in PREFIX."""
    for part in ("bin", "lib", "include"):
        (tmp_path / "prefix" / part).mkdir(parents=True)
    real = tmp_path / "prefix/bin/mpirun"
    real.touch(mode=0o755)
    own = tmp_path / "own/mpiboot"
    monkeypatch.setattr(shims, "own_file", lambda: own)
    folder = tmp_path / "command"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/mpirun").symlink_to(own)
    shims.write_command(folder, OPEN_4, str(real.parent))
    return folder


def test_beside_its_mpirun_a_script_finds_the_mpis_own_folders(command: Path) -> None:
    assert {path.name for path in command.iterdir()} == {"bin", "include", "lib", "variables"}
    assert Path(os.path.normpath(command / "bin/../lib")).resolve().parent.name == "prefix"


def test_a_launch_has_the_real_folders_and_none_of_the_commands_values(command: Path) -> None:
    prefix = command.parent / "prefix"
    own = {"MPIBOOT_COMMAND_DIR": str(command), "PATH": f"{command}/bin:{prefix}/bin"}
    kept = {"A": "b:c", "OMPI_MCA_plm_rsh_no_tree_spawn": "0", "MINE": f"{command}/other"}
    environ, line = shims.without_command(
        own
        | OPEN_4
        | kept
        | {"LD_LIBRARY_PATH": f"/x:{command}/bin/../lib:", "OPAL_PREFIX": str(command)},
        ("mpirun", "--prefix", f"{command}/bin/..", "-x", "A", f"{command}/bin/mpirun"),
    )
    found = {"LD_LIBRARY_PATH": f"/x:{prefix}/lib:", "OPAL_PREFIX": str(prefix)}
    assert environ == own | kept | found
    assert line == ("mpirun", "--prefix", str(prefix), "-x", "A", f"{command}/bin/mpirun")


@pytest.mark.parametrize("environ", [{"A": "b"}, {"MPIBOOT_COMMAND_DIR": "/nowhere", "A": "b"}])
def test_outside_a_command_all_stays_as_it_is(environ: dict[str, str]) -> None:
    given = environ | OPEN_4 | {"PATH": "/nowhere"}
    assert shims.without_command(given, ("mpirun", "a b", "")) == (given, ("mpirun", "a b", ""))
