from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.job.program_words import (
    Call,
    Script,
    calls,
    only_stays,
    python_calls,
    script_of,
    starts_by_itself,
)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("./run.sh 3", Script(path="./run.sh")),
        ("/bin/bash -eu -o pipefail run.sh -c x", Script(path="run.sh")),
        ("sh -ec TEXT", Script(text="TEXT")),
        ("bash --norc run.sh", Script(path="run.sh")),
        ("bash", Script()),
        ("./train --epochs 3", Script(path="./train")),
        ("python train.py -c x", Script(path="train.py", python=True)),
        ("/opt/bin/python3.12 -u -X dev train.py", Script(path="train.py", python=True)),
        ("python -m train x.py", Script()),
        ("python3 -cTEXT x.py", Script()),
        ("python", Script()),
    ],
)
def test_the_script_of_a_line_is_found(words: str, found: Script) -> None:
    assert script_of(words.split()) == found


@pytest.mark.parametrize(
    "text",
    [
        "mpirun -n 2 ./a",
        "#!/bin/sh\nset -e\n  mpirun -n 2 ./a\n",
        "cd /data && mpirun ./a",
        "OMP_NUM_THREADS=4 A='b' mpiexec -n 2 ./a",
        "exec mpirun ./a",
        "time mpirun ./a",
        "timeout 60 mpirun ./a",
        "if ! mpirun ./a; then exit 1; fi",
        "for i in 1 2; do mpirun ./a; done",
        "out=$(mpirun ./a)",
        "(mpirun ./a) | tee log",
        "echo \\\n  a; mpirun \\\n -n 2 ./a",
    ],
)
def test_a_call_of_mpirun_is_seen(text: str) -> None:
    [call] = calls(text)
    assert (call.is_mpirun, call.path) == (True, "")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("horovodrun -np 4 python train.py", "horovodrun"),
        ("exec deepspeed --hostfile /etc/mpi/hostfile train.py", "deepspeed"),
        ("for h in $HOSTS; do ssh $h ./a & done", "ssh"),
        ("while read -r h; do ssh -n $h hostname; done < hosts", "ssh"),
        ("cat hosts | timeout 9 ssh w-1 cat", "ssh"),
        ("name=$(ssh w-0 hostname)", "ssh"),
        ("PDSH_RCMD_TYPE=ssh pdsh -w w-0,w-1 hostname", "pdsh"),
    ],
)
def test_a_call_of_what_logs_in_is_seen(text: str, name: str) -> None:
    assert calls(text) == (Call("", name),)
    assert not calls(text)[0].is_mpirun


@pytest.mark.parametrize(
    "text",
    [
        "",
        "./train",
        "# mpirun -n 2 ./a",
        "echo done # then mpirun ./a",
        "echo mpirun ./a",
        "./mpirun_helper",
        "mpirunner ./a",
        "which mpirun",
        "cp /usr/bin/mpirun /tmp",
        "ssh-keygen -t ed25519",
        "service ssh start",
        "scp result store:",
        "which ssh",
        "rsync -e ssh a b",
    ],
)
def test_what_only_speaks_of_mpirun_calls_nothing(text: str) -> None:
    assert calls(text) == ()


def test_a_call_by_its_path_is_told_apart() -> None:
    found = calls("/usr/bin/mpirun ./a\nmpirun ./b\n$MPI_HOME/bin/mpiexec ./c")
    assert [call.path for call in found] == ["/usr/bin/", "", "$MPI_HOME/bin/"]
    assert all(call.is_mpirun for call in found)


@pytest.mark.parametrize("name", ["horovodrun", "deepspeed", "pdsh", "ssh"])
def test_programs_that_log_in_are_known_by_name(name: str) -> None:
    assert starts_by_itself([f"/opt/bin/{name}", "-np", "4"])
    assert not starts_by_itself(["python", name])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('subprocess.run(["ssh", host, "hostname"])', "ssh"),
        ("subprocess.Popen( ['/usr/bin/mpirun', '-n', '2'])", "mpirun"),
        ("check_output((\n    'ssh', host))", "ssh"),
        ('os.system(f"ssh {host} hostname")', "ssh"),
    ],
)
def test_a_python_program_that_starts_one_is_seen(text: str, name: str) -> None:
    assert [call.name for call in python_calls(text)] == [name]


@pytest.mark.parametrize(
    "text",
    [
        'schemes = ("ssh", "https")',
        'run(["sshd", "-De"])',
        '# run(["ssh", host])',
        'print("run ssh by hand")',
        'os.system("scp result store:")',
        "ssh = 3",
    ],
)
def test_a_python_program_that_only_speaks_of_them_starts_none(text: str) -> None:
    assert python_calls(text) == ()


@pytest.mark.parametrize(
    "line",
    ["sleep infinity", "/bin/sleep inf", "tail -f /dev/null", "bash", "/bin/sh -l", "zsh -i"],
)
def test_a_program_for_a_look_around_is_no_job(line: str) -> None:
    assert only_stays(line.split())


@pytest.mark.parametrize(
    "line",
    ["sleep 60", "tail -f log", "bash run.sh", "sh -c true", "bash -s", "busybox", "./sleep.sh"],
)
def test_other_programs_are_jobs(line: str) -> None:
    assert not only_stays(line.split())


@given(st.text(max_size=200))
def test_any_text_can_be_looked_at(text: str) -> None:
    assert all(call.name for call in (*calls(text), *python_calls(text)))


@given(st.lists(st.text(max_size=8), min_size=1, max_size=6))
def test_any_line_can_be_looked_at(words: list[str]) -> None:
    found = script_of(words)
    assert not (found.path and found.text)
