"""Shims: links that lead to mpiboot, and the real programs behind them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.launcher import shims
from mpiboot.system.spawn import DEFAULT_PATH
from tests.fakes.programs import program


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = program(tmp_path / "venv", "mpiboot")
    monkeypatch.setattr("sys.argv", [str(path)])
    # The machine's own sshd is no concern of these tests.
    monkeypatch.setattr(shims, "SSHD_FOLDERS", (str(tmp_path / "sbin"),))
    monkeypatch.setattr(shims, "REAL", tmp_path / "kept")
    return path


# A rank's mpirun is the real one, whatever the pod's role is.
@pytest.mark.parametrize("role", [{"MPIBOOT_ROLE": "none"}, {"MPIBOOT_LAUNCH_ID": "x"}])
@pytest.mark.parametrize("front", ["linked", "mixed", "copied"])
def test_two_installations_do_not_take_each_other_for_the_real_program(
    tmp_path: Path, role: dict[str, str], front: str
) -> None:
    """Each shim would find the other one for ever."""
    real = program(tmp_path / "real", "mpirun", "echo real")
    path = str(real.parent)
    for name in ("one", "two"):
        own = program(tmp_path / name, "mpiboot")
        own.write_text(f"#!{sys.executable}\nfrom mpiboot.__main__ import main\nmain()\n")
        folder = tmp_path / f"shims-{name}"
        subprocess.run([own, "shims", "install", "--folder", folder], check=True)
        if front == "mixed":
            program(folder, "python")
        elif front == "copied":
            (folder / "mpirun").unlink()
            shutil.copy(own, folder / "mpirun")
        path = f"{folder}:{path}"
    environ = {"PATH": f"{path}:/bin", "MPIBOOT_RUNTIME_DIR": str(tmp_path / "run")}
    environ |= {"MPIBOOT_ROLE": "launcher", **role}
    for words in (["mpirun"], [tmp_path / "one" / "mpiboot", "mpirun"]):
        line = ["/usr/bin/env", *words, "-n", "1", "true"]
        done = subprocess.run(line, env=environ, capture_output=True, check=False, timeout=30)
        assert (done.returncode, done.stdout) == (0, b"real\n"), done.stderr


def test_a_folder_with_other_programs_stays_on_the_path(own: Path, tmp_path: Path) -> None:
    front, behind = tmp_path / "front", tmp_path / "behind"
    real = program(behind, "mpirun")
    path = f"{front}:{behind}"
    shims.install(str(front), {"PATH": path})
    assert own.is_file()
    program(front, "python")

    found = shims.enter("mpirun", {"PATH": path, "MPIBOOT_RUNTIME_DIR": str(tmp_path / "run")})

    first, rest = found["PATH"].split(":", 1)
    assert rest == path
    assert Path(first, "mpirun").resolve() == real
    assert not (Path(first) / "python").exists()
    again = shims.enter("mpirun", {**found, "MPIBOOT_RUNTIME_DIR": str(tmp_path / "run")})
    assert Path(again["PATH"].split(":")[0], "mpirun").resolve() == real
    assert shims.cleared(found) == found["PATH"]
    environ = {"PATH": path, "MPIBOOT_RUNTIME_DIR": str(tmp_path / "run")}
    assert shims.cleared(environ) == f"{first}:{path}"


def test_real_programs_that_an_image_moved_aside_are_found(own: Path, tmp_path: Path) -> None:
    """A call by absolute path then starts mpiboot, and goes on with the one that was moved."""
    folder = tmp_path / "bin"
    program(tmp_path / "kept", "mpirun")
    (tmp_path / "kept" / "mpiexec").symlink_to(program(folder, "orterun"))
    for name in ("mpirun", "mpiexec"):
        (folder / name).symlink_to(own)
    found = shims.enter("mpirun", {"PATH": str(folder)})
    assert found["PATH"].split(":") == [str(tmp_path / "kept"), str(folder)]
    # By its path alone; what PATH has is another MPI.
    program(tmp_path / "other", "mpirun")
    found = shims.enter(f"{folder}/mpirun", {"PATH": f"{tmp_path}/other"})
    assert found["PATH"].split(":") == [str(tmp_path / "kept"), str(tmp_path / "other")]


def test_hydra_is_called_by_its_own_path_where_a_link_leads_to_it(tmp_path: Path) -> None:
    """It calls its proxies beside itself."""
    real, front = program(tmp_path / "bin", "mpiexec.hydra"), tmp_path / "front"
    front.mkdir()
    (front / "mpirun").symlink_to(real)
    line = ("mpirun", "-n", "2")
    assert shims.hydra_by_path(line, str(front)) == line
    program(real.parent, "hydra_pmi_proxy")
    assert shims.hydra_by_path(line, str(front)) == (str(real), "-n", "2")
    (real.parent / "mpirun").symlink_to(real)
    assert shims.hydra_by_path(line, str(real.parent)) == line


@pytest.mark.skipif(os.geteuid() != 0, reason="closes a folder to another user")
def test_a_folder_of_path_that_is_closed_to_this_user_is_passed_over() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        closed = program(Path(name, "closed"), "mpirun").parent
        closed.chmod(0o700)
        script = (
            "import os, sys\n"
            "from mpiboot.cli import main as cli; from mpiboot.launcher import shims\n"
            "shims.own_file = lambda: shims.Path('/bin/mpiboot')\n"
            "os.setuid(65534)\n"
            "os.environ['PATH'] = path = f'{sys.argv[1]}:/bin'\n"
            "assert shims.real('sh', path) == '/bin/sh'\n"
            "assert cli._behind_shim(['launcher']) == ['launcher']\n"
        )
        root = str(Path(__file__).parent.parent)
        done = subprocess.run(
            ["/usr/bin/env", "-i", f"PYTHONPATH={root}", sys.executable, "-c", script, str(closed)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("cmdline", "environ", "told"),
    [
        (b"/usr/bin/mpirun\0-n\0002\0", b"A=b\0", True),
        (b"prterun\0a\0", b"", True),
        (b"mpirun\0a\0", b"A=b\0MPIBOOT_LAUNCH_DIR=/x\0", False),
        (b"/usr/bin/python3\0mpirun\0", b"", False),
    ],
)
def test_an_mpirun_that_is_the_first_process_is_told(
    cmdline: bytes, environ: bytes, *, told: bool, tmp_path: Path
) -> None:
    assert shims.passed_by(tmp_path) == ""
    (tmp_path / "cmdline").write_bytes(cmdline)
    assert shims.passed_by(tmp_path) == ""  # it can't be read
    (tmp_path / "environ").write_bytes(environ)
    assert bool(shims.passed_by(tmp_path)) == told


def test_sshd_is_gone_on_with_by_its_absolute_path_from_folders_that_path_lacks(
    own: Path, tmp_path: Path
) -> None:
    """OpenSSH's sshd starts itself again by that path."""
    shims.install(str(tmp_path / "front"), {"PATH": ""})
    real = program(tmp_path / "sbin", "sshd")
    assert own.is_file()
    found = shims.enter("sshd", {"PATH": f"{tmp_path}/front:/nowhere"})
    assert found == {"PATH": "/nowhere", "program": str(real)}


def test_what_is_installed_is_told_with_the_real_one_and_what_is_to_be_done(
    own: Path, tmp_path: Path
) -> None:
    front, behind = tmp_path / "front", program(tmp_path / "behind", "mpirun")
    lines = shims.install(str(front), {"PATH": f"{behind.parent}:relative:{front}"})
    assert lines == (
        f"{front}/mpirun -> {own} (the real one: {behind})",
        f"{front}/mpiexec -> {own} (the real one: none)",
        f"{front}/sshd -> {own} (the real one: none)",
        f"put {front} first on PATH: ENV PATH={front}:$PATH",
    )
    assert len(shims.install(str(front), {"PATH": f"/x:{front}"})) == 3  # once more
    with pytest.raises(MpibootError, match="is not one of mpiboot's shims"):
        shims.install(str(behind.parent), {"PATH": ""})
    with pytest.raises(MpibootError, match="every mpirun on PATH is mpiboot's own shim"):
        shims.enter("mpirun", {"PATH": str(front)})


def test_a_path_without_shims_is_left_as_it_is(own: Path, tmp_path: Path) -> None:
    real = program(tmp_path / "bin", "mpirun")
    assert own.is_file()
    for path in (str(real.parent), f"{real.parent}:", "", "relative:/nowhere"):
        assert shims.cleared({"PATH": path}) == path
    assert shims.cleared({}) == DEFAULT_PATH
    behind = tmp_path / "front"
    shims.install(str(behind), {"PATH": ""})
    path = f"{real.parent}:{behind}"
    # The sshd of that folder leads to mpiboot too, but there is no other one to be found.
    assert shims.cleared({"PATH": path}) == path
    assert shims.cleared({"PATH": f"{behind}:{real.parent}"}) == str(real.parent)


def test_a_command_has_each_mpirun_that_is_there_and_ssh(own: Path, tmp_path: Path) -> None:
    real = program(tmp_path / "bin", "orterun")
    folder = tmp_path / "command" / "bin"
    shims.write_command(folder.parent, {}, str(real.parent))
    assert sorted(path.name for path in folder.iterdir()) == ["mpiexec", "mpirun", "orterun", "ssh"]
    assert {(folder / name).resolve() for name in ("mpirun", "mpiexec", "orterun")} == {own}
    assert (folder / "ssh").resolve().is_file()
    assert folder.stat().st_mode & 0o777 == 0o700
    # Below a launch neither is there.
    assert shims.cleared({"PATH": f"{folder}:{real.parent}"}) == str(real.parent)
    assert shims.enter("orterun", {"PATH": f"{folder}:{real.parent}"}) == {
        "PATH": str(real.parent),
        "program": "orterun",
    }


def test_mpiboots_own_program_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["mpiboot"])
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(MpibootError, match="own program is not installed") as caught:
        shims.own_file()
    assert caught.value.finding.check == "program-missing"
    assert shims.cleared({"PATH": "/a:/b"}) == "/a:/b"
    beside = program(tmp_path, "mpiboot")
    assert shims.own_file() == beside


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
    assert not shims.command_variables({}, "")  # it can't be executed


SETTINGS = {"MPIBOOT_ROLE": "launcher", "MPIBOOT_TIMEOUT": "5"}


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command's folder; its MPI is in PREFIX."""
    for part in ("bin", "lib", "include"):
        (tmp_path / "prefix" / part).mkdir(parents=True)
    real = tmp_path / "prefix/bin/mpirun"
    real.touch(mode=0o755)
    own = tmp_path / "own/mpiboot"
    monkeypatch.setattr(shims, "own_file", lambda: own)
    folder = tmp_path / "command/7"
    shims.write_command(folder, OPEN_4 | SETTINGS, str(real.parent))
    return folder


def test_beside_its_mpirun_a_script_finds_the_mpis_own_folders(command: Path) -> None:
    links = {path.name for path in command.iterdir() if path.is_symlink()}
    assert links == {"include", "lib", "ssh_words"}
    assert Path(os.path.normpath(command / "bin/../lib")).resolve().parent.name == "prefix"


def test_a_launch_has_the_real_folders_and_none_of_the_commands_values(command: Path) -> None:
    prefix = command.parent.parent / "prefix"
    own = SETTINGS | {"MPIBOOT_COMMAND_DIR": str(command), "PATH": f"{command}/bin:{prefix}/bin"}
    kept = {"A": "b:c", "OMPI_MCA_plm_rsh_no_tree_spawn": "0", "MINE": f"{command}/other"}
    environ, line = shims.without_command(
        own
        | OPEN_4
        | kept
        | {"LD_LIBRARY_PATH": f"/x:{command}/bin/../lib:", "OPAL_PREFIX": str(command)},
        (
            "mpirun",
            "--prefix",
            f"{command}/bin/..",
            "-x",
            f"A={command}/lib",
            f"{command}/bin/mpirun",
        ),
    )
    found = {"LD_LIBRARY_PATH": f"/x:{prefix}/lib:", "OPAL_PREFIX": str(prefix)}
    assert environ == own | kept | found
    assert line == (
        "mpirun",
        "--prefix",
        str(prefix),
        "-x",
        f"A={prefix}/lib",
        f"{command}/bin/mpirun",
    )


def test_an_emptied_environment_gets_the_settings(command: Path) -> None:
    shim = str(command / "bin/mpirun")
    assert shims.emptied(shim, {"PATH": "/bin"}) == SETTINGS
    # The script's changes of a whole environment stand, as does an image's shim.
    assert shims.emptied(shim, {"MPIBOOT_COMMAND_DIR": str(command)}) == {}
    assert shims.emptied("/usr/bin/mpirun", {"PATH": "/bin"}) == {}


@pytest.mark.parametrize("environ", [{"A": "b"}, {"MPIBOOT_COMMAND_DIR": "/nowhere", "A": "b"}])
def test_outside_a_command_all_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "variables").write_text("[]")  # a file of the user's
    given = environ | OPEN_4 | {"PATH": "/nowhere"}
    assert shims.without_command(given, ("mpirun", "a b", "")) == (given, ("mpirun", "a b", ""))
