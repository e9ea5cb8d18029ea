"""`mpiboot rank`: what torchrun would set, told from each launcher's own variables."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from mpiboot.cli import rank
from mpiboot.job import mpi_environment
from tests.test_startup import BEFORE, HEAVY, THIRD_PARTY

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
MASTER = {"MASTER_ADDR": "10.0.0.1"}
THIRD_OF_FOUR = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_PORT": "29500",
}


ONE_HOST = {**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({**OPENMPI, **MASTER}, MASTER),
        ({**HYDRA, **MASTER}, MASTER),
        (ONE_HOST, {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}),
        (
            {**OPENMPI, "MASTER_ADDR": "head", "MASTER_PORT": "1234"},
            {"MASTER_ADDR": "head", "MASTER_PORT": "1234"},
        ),
    ],
    ids=["Open MPI", "Hydra", "one host", "the user's"],
)
def test_each_launchers_variables_are_read(environ: dict[str, str], found: dict[str, str]) -> None:
    assert rank.variables(environ) == {**THIRD_OF_FOUR, **found}
    assert mpi_environment.MASTER_PORT == rank.MASTER_PORT


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "this process was not started as a rank, which has all of OMPI_COMM_WORLD_RANK, "),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, " or all of PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MP"),
        (OPENMPI, "MASTER_ADDR is not set, and rank 3 doesn't know rank 0's host"),
        ({**OPENMPI, "OMPI_COMM_WORLD_RANK": "x"}, "OMPI_COMM_WORLD_RANK is 'x', expected a num"),
        ({**OPENMPI, "OMPI_COMM_WORLD_RANK": "4"}, "can't all be true of one rank"),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "can't all be true of one rank"),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "5"}, "can't all be true of one rank"),
    ],
)
def test_what_is_no_rank_says_what_is_missing(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        rank.variables(environ)


SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


def started(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "mpiboot", "rank", *words]
    env = {"PATH": "/usr/bin:/bin", **environ}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("dashes", [("--",), ()])
def test_the_program_gets_them_beside_what_it_has(dashes: tuple[str, ...]) -> None:
    done = started(*dashes, sys.executable, "-c", SHOW, **OPENMPI, **MASTER, RANK="0", KEPT="a b")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {**found, **THIRD_OF_FOUR, **MASTER, "KEPT": "a b"} == found
    assert done.stderr == ""
    words = ["sh", "-c", "grep SigIgn /proc/self/status; exit 7"]
    usual = subprocess.run(words, capture_output=True, text=True, check=False)
    rank_of = started("--", *words, **OPENMPI, **MASTER)
    assert (rank_of.stdout, rank_of.returncode) == (usual.stdout, 7)


@pytest.mark.parametrize(
    ("words", "environ", "code", "message"),
    [
        (("--", "true"), {}, 2, "[usage] mpiboot rank: this process was not started as a rank"),
        (("--", "nowhere"), {**OPENMPI, **MASTER}, 127, "[program-missing] nowhere is not on"),
        (("--", "/etc"), {**OPENMPI, **MASTER}, 127, "[program-missing] /etc"),
        ((), OPENMPI, 2, "write `mpiboot rank -- PROGRAM`"),
        (("--tiemout", "true"), OPENMPI, 2, "--tiemout"),
    ],
)
def test_what_does_not_start_is_one_clear_line(
    words: tuple[str, ...], environ: dict[str, str], code: int, message: str
) -> None:
    done = started(*words, **environ)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_rank_loads_nothing_but_a_little_of_the_standard_library() -> None:
    code = (
        "import json, os, sys\n"
        "from mpiboot.__main__ import main\n"
        "os.execvpe = lambda *_: (print(json.dumps([*sys.modules])), os._exit(0))\n"
        "sys.stdout.reconfigure(line_buffering=True)\n"
        "sys.argv = ['/usr/bin/mpiboot', 'rank', '--', 'true']\n"
        "main()\n"
    )
    argv, env = [sys.executable, "-I", "-c", code], {**OPENMPI, **MASTER}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    found = set(json.loads(done.stdout)) - BEFORE
    assert found & (HEAVY | THIRD_PARTY | {"dataclasses", "inspect"}) == set()
    own = {name for name in found if name.startswith("mpiboot")}
    few = ("__main__", "cli", "cli.rank", "system", "system.spawn")
    assert own == {"mpiboot", *(f"mpiboot.{name}" for name in few)}


def test_by_a_shims_name_all_words_are_mpiruns() -> None:
    code = (
        "import sys\n"
        "from mpiboot.cli import main as cli, rank\n"
        "from mpiboot.__main__ import main\n"
        "rank.variables = lambda *_: print('a rank')\n"
        "cli.main = lambda: print('the command line')\n"
        "sys.argv = ['/usr/local/bin/mpirun', 'rank', '--', 'true']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "the command line\n"
