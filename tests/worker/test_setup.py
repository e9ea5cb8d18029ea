"""What a worker prepares before it serves: folder, key, address, and what a profile leaves."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.model import Level, LogLevel
from mpiboot.core.settings import resolve
from mpiboot.network import pod
from mpiboot.ssh.openssh import WorkerSetup
from mpiboot.ssh.server import WORKER_STATE
from mpiboot.system import process
from mpiboot.worker import role
from tests.fakes.worker import HAVE_SSH, make_key
from tests.supervisor.answering import gone
from tests.waiting import until

pytestmark = pytest.mark.skipif(not HAVE_SSH, reason="no ssh-keygen")


@pytest.fixture
def loop() -> Iterator[process.SignalLoop]:
    made = process.SignalLoop((signal.SIGTERM, signal.SIGUSR1))
    yield made
    made.close()


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_key(tmp_path_factory.mktemp("key") / "id_rsa", "-t", "ecdsa")


@pytest.fixture
def prepared(tmp_path: Path, key: Path, loop: process.SignalLoop) -> Callable[..., WorkerSetup]:
    """What a worker prepares, by these settings."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "A": "b"}
    given = {"runtime_dir": f"{tmp_path}/run", "ssh_key": str(key), "control_ifname": "127.0.0.1"}

    def prepare(**flags: str) -> WorkerSetup:
        return role.prepare(resolve({**given, **flags}, environ), environ, loop, ())

    return prepare


def test_a_worker_has_a_folder_a_key_an_address_and_a_port(
    tmp_path: Path,
    key: Path,
    prepared: Callable[..., WorkerSetup],
    capfd: pytest.CaptureFixture[str],
) -> None:
    log.configure(level=LogLevel.DEBUG)
    found = prepared(ssh_port="4022", ssh_keepalive="33")
    err = capfd.readouterr().err
    assert "mpiboot: control address 127.0.0.1 (" in err
    assert "mpiboot: port 4022 (--ssh-port)\n" in err
    assert (found.address, found.port, found.keepalive) == ("127.0.0.1", 4022, 33.0)
    assert found.folder.is_relative_to(tmp_path / "run")
    assert found.folder.name == "worker"
    assert found.key.path == found.folder / "key"
    assert found.key.path.read_bytes() == key.read_bytes()
    assert stat.S_IMODE(found.key.path.stat().st_mode) == 0o600
    assert (found.folder / "home").is_dir()
    assert (found.environ["A"], found.environ["HOME"]) == ("b", str(tmp_path))
    # Of an earlier start of the container a launcher would read facts and a server's state.
    for name in (role.FACTS_FILE, WORKER_STATE):
        (found.folder / name).touch()
    other = prepared(ssh_port="4022")
    assert other.token != found.token
    assert other.folder == found.folder
    assert not {role.FACTS_FILE, WORKER_STATE} & {path.name for path in other.folder.iterdir()}


def test_a_worker_without_an_address_is_an_error(
    prepared: Callable[..., WorkerSetup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod, "control_address", lambda *_, **__: ("", "no route"))
    with pytest.raises(MpibootError, match="no address to serve SSH on: no route") as caught:
        prepared()
    assert (caught.value.finding.check, caught.value.code) == ("interface-missing", 72)


def test_launchers_find_a_doctor(tmp_path: Path) -> None:
    role.write_scripts(tmp_path)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    for words, key in (("--json", "findings"), ("ranks --json --seconds 1", "hosts")):
        script = ["/bin/sh", str(tmp_path / "doctor"), *words.split()]
        done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=120)
        assert key in json.loads(done.stdout)


# -- the environment that a vendor's profile leaves ------------------------------------------------

POD = {"PATH": os.environ["PATH"], "KEPT": "old value", "GONE": "1", "with.dot": "2"}


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "profile with blank.sh"
    path.write_text(text)
    return str(path)


def test_what_a_script_sets_changes_and_unsets_is_taken(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """What it prints goes nowhere, and what it leaves running is not waited for."""
    text = """
        export NEW='a b;"c"
        é$x' KEPT="$KEPT and more" BYTES="$(printf '\\377')"
        NOT_EXPORTED=1
        unset GONE
        head -c 300000 /dev/urandom; head -c 9000000 /dev/urandom >&2
        sleep 1000 &
        export SLEEP=$!
        cd /
    """
    tracemalloc.start()
    found, wrong = role.evaluate_profile(script(tmp_path, text), POD, limit=60)
    assert tracemalloc.get_traced_memory()[1] < 8_000_000
    tracemalloc.stop()
    assert wrong is None
    os.kill(int(found.pop("SLEEP")), 9)
    assert found["NEW"] == 'a b;"c"\n        é$x'
    assert found["KEPT"] == "old value and more"
    assert found["BYTES"] == "\udcff"
    assert found.keys() == {"PATH", "KEPT", "NEW", "BYTES", "with.dot"}
    assert capfdbinary.readouterr() == (b"", b"")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("export NEW=1\necho no such card >&2\nreturn 3\n", ": no such card"),
        ("export NEW=1\nprintf 'bad\\377\\001' >&2\nfalse\n", ": bad??"),
        ("export NEW=1\nexit 0\n", "ended with 0, before its environment could be read"),
        ("kill -9 $$\n", "ended with 137"),
        ("if\n", "ended with "),
    ],
)
def test_a_script_that_fails_is_one_warning_and_changes_nothing(
    tmp_path: Path, text: str, message: str
) -> None:
    found, wrong = role.evaluate_profile(script(tmp_path, text), POD)
    assert found == POD
    assert wrong is not None
    assert (wrong.check, wrong.level) == ("env-profile", Level.WARN)
    assert message in wrong.message
    assert "\n" not in wrong.message


def test_a_folder_is_a_script_that_fails_also_without_bash(tmp_path: Path) -> None:
    assert role.evaluate_profile(str(tmp_path), {"PATH": "/no"})[1]


def test_a_script_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = f"sleep 1000 &\necho $! > {pids}\nexport NEW=1\nwait\n"
    for limit in (2, 20, 200):  # a busy machine may not have come to it within the limit
        found, wrong = role.evaluate_profile(script(tmp_path, text), POD, limit=limit)
        assert found == POD
        assert wrong is not None
        assert f"took longer than {limit} s" in wrong.message
        if pids.exists():
            break
    until(lambda: gone(pids.read_text().strip()))
