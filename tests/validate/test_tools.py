"""The shell in which each rank runs nccl-tests: which program, what NCCL reports, and its end.

The tools are scripts: what they measure plays no part here.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from mpiboot.validate.nccl_tests import Run, shell
from tests.fakes.programs import program
from tests.waiting import until

SAYS = """
echo "args $*"; echo "debug $NCCL_DEBUG $NCCL_DEBUG_SUBSYS"
if [ -n "$NCCL_DEBUG_FILE" ]; then printf '%s\\n' \\
  'a:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>' \\
  'a:1:2 [0] NCCL INFO Using network IB' 'a:1:2 [0] NCCL INFO Using network IB' \\
  'a:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2' \\
  'a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA(PXN)' \\
  'a:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/AWS Libfabric/1' \\
  'a:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 8[0] [send] via NET/Socket/0 comm 0x55d0' \\
  'a:1:2 [0] misc.cc:1 NCCL WARN odd | thing' >"$NCCL_DEBUG_FILE"; fi
"""


def run(folder: Path, text: str, **env: str) -> tuple[int, str, Run]:
    """Run the shell with the programs of a folder: status, what is shown, what was read."""
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", text],
        env={"PATH": path, "TMPDIR": str(folder), **env},
        capture_output=True,
        check=False,
        timeout=60,
    )
    output = Run()
    return done.returncode, output.feed(done.stdout), output


def test_two_of_nccls_lines_are_read_and_no_file_is_left(tmp_path: Path) -> None:
    program(tmp_path, "all_reduce_perf", SAYS)
    code, shown, output = run(tmp_path, shell("nccl-tests"))
    assert code == 0
    assert shown == "args -b 1K -e 8G -f 4 -n 20 -w 3 -c 1\ndebug INFO INIT,NET\n"
    assert output.started == {os.uname().nodename: "all_reduce_perf"}
    paths = ("via NET/IB/0/GDRDMA(PXN)", "via NET/AWS Libfabric/1", "via NET/Socket/0")
    assert output.nccl == {os.uname().nodename: {"Using network IB", *paths}}
    assert [path.name for path in tmp_path.iterdir()] == ["all_reduce_perf"]


def test_what_the_user_has_set_for_nccl_stands_and_no_folder_for_files_is_no_end(
    tmp_path: Path,
) -> None:
    program(tmp_path, "all_reduce_perf", SAYS)
    file, text = str(tmp_path / "own"), shell("nccl-tests")
    _, shown, output = run(tmp_path, text, NCCL_DEBUG="WARN", NCCL_DEBUG_FILE=file)
    assert "debug WARN INIT,NET" in shown
    assert output.nccl == {}
    assert "Using network IB" in Path(file).read_text()
    code, shown, output = run(tmp_path, text, TMPDIR="/nowhere")
    assert (code, output.nccl) == (0, {})
    assert shown.split()[-1] == "debug"


@pytest.mark.parametrize(
    ("asked", "there", "runs"),
    [
        ("", ("all_reduce_perf",), "all_reduce_perf"),
        ("nccl-tests", ("all_reduce_perf",), "all_reduce_perf"),
        ("nccl-tests", ("all_reduce_perf", "all_reduce_perf_mpi"), "all_reduce_perf_mpi"),
        ("alltoall_perf", ("all_reduce_perf", "alltoall_perf"), "alltoall_perf"),
        ("alltoall_perf", ("all_reduce_perf",), ""),
    ],
)
def test_the_program_that_can_run(
    tmp_path: Path, asked: str, there: tuple[str, ...], runs: str
) -> None:
    for name in there:
        program(tmp_path, name, SAYS)
    code, _, output = run(tmp_path, shell(asked))
    assert list(output.started.values()) == [runs] * bool(runs)
    assert code == (0 if runs else 127)
    if not runs:
        (looked,) = output.missing.values()
        assert f"{tmp_path}:" in looked
        assert "/opt/nccl-tests/build" in looked


def test_the_users_words_stand_and_no_shell_expands_them(tmp_path: Path) -> None:
    program(tmp_path, "all_reduce_perf", SAYS)
    shown = run(tmp_path, shell("nccl-tests", ("-g", "8", "-b", "a b")))[1]
    assert shown.startswith("args -g 8 -b a b\n")
    text = shell(f"$(touch {tmp_path}/expanded)/all_reduce_perf")
    assert run(tmp_path, text)[0] == 127
    assert not (tmp_path / "expanded").exists()


def test_a_signal_ends_the_tool_and_its_lines_are_reported(tmp_path: Path) -> None:
    """Mpiboot signals what runs below a rank's shell."""
    program(tmp_path, "all_reduce_perf", f"{SAYS}echo $$ >{tmp_path}/pid; exec sleep 1000\n")
    child = subprocess.Popen(
        ["sh", "-c", shell("nccl-tests")],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
    output = Run()
    output.feed(child.communicate(timeout=60)[0])  # none has the pipe any more
    assert child.returncode == 128 + signal.SIGTERM
    assert "via NET/Socket/0" in output.nccl[os.uname().nodename]
