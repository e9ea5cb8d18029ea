"""Shims: links that lead to mpiboot, and the real programs behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot import shims
from mpiboot.errors import MpibootError


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program mpiboot, as an image has it."""
    path = program(tmp_path / "venv", "mpiboot")
    monkeypatch.setattr("sys.argv", [str(path)])
    return path


def program(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_what_was_installed_is_removed_and_nothing_else(own: Path, tmp_path: Path) -> None:
    folder = tmp_path / "front"
    shims.install(str(folder), {"PATH": "/nowhere"})
    assert {path.name for path in folder.iterdir()} == set(shims.NAMES)
    assert all(path.resolve() == own for path in folder.iterdir())
    shims.install(str(folder), {"PATH": "/nowhere"})
    program(folder, "other")
    shims.remove(str(folder))
    assert [path.name for path in folder.iterdir()] == ["other"]


def test_a_real_program_is_never_replaced(own: Path, tmp_path: Path) -> None:
    real = program(tmp_path / "front", "mpirun")
    with pytest.raises(MpibootError, match="is no shim of mpiboot"):
        shims.install(str(real.parent), {"PATH": ""})
    assert not real.is_symlink()
    assert own.is_file()


def test_the_real_program_is_found_behind_any_number_of_shims(own: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shims.install(str(tmp_path / name), {"PATH": ""})
    real = program(tmp_path / "c", "mpirun")
    path = ":".join(str(tmp_path / name) for name in "abc")
    assert own.is_file()
    found = shims.enter("mpirun", {"PATH": path})
    assert found == {"PATH": str(real.parent), "program": "mpirun"}


def test_only_shims_on_the_path_are_an_error(own: Path, tmp_path: Path) -> None:
    shims.install(str(tmp_path / "a"), {"PATH": ""})
    assert own.is_file()
    with pytest.raises(MpibootError, match="own shim"):
        shims.enter("mpirun", {"PATH": str(tmp_path / "a")})


def test_a_folder_with_other_programs_stays_on_the_path(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shims, "KEPT", tmp_path / "kept")
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


def test_real_programs_make_room_and_come_back(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shims, "KEPT", tmp_path / "kept")
    folder = tmp_path / "bin"
    real = program(folder, "mpirun")
    real.write_text("#!/bin/sh\necho real\n")
    program(folder, "orterun")
    (folder / "mpiexec").symlink_to("orterun")
    environ = {"PATH": str(folder)}
    shims.replace(environ)

    assert (folder / "mpirun").resolve() == (folder / "mpiexec").resolve() == own
    found = shims.enter("mpirun", environ)
    assert found["PATH"].split(":") == [str(tmp_path / "kept"), str(folder)]
    assert (tmp_path / "kept/mpirun").read_text() == "#!/bin/sh\necho real\n"
    assert (tmp_path / "kept/mpiexec").resolve() == folder / "orterun"
    assert "behind a shim already" in shims.replace(environ)[0]

    shims.remove(str(tmp_path / "elsewhere"))
    assert (folder / "mpirun").read_text() == "#!/bin/sh\necho real\n"
    assert (folder / "mpiexec").resolve() == folder / "orterun"


def test_doctor_tells_what_passes_mpiboot_by(own: Path, tmp_path: Path) -> None:
    front, behind = tmp_path / "front", tmp_path / "behind"
    program(behind, "mpirun")
    shims.install(str(front), {"PATH": ""})
    assert own.is_file()
    good, bad = shims.told({"PATH": f"{front}:{behind}"})
    assert f"{behind}/mpirun by absolute path does not" in good
    assert bad == ""
    good, bad = shims.told({"PATH": f"{behind}:{front}"})
    assert f"the shim {front}/mpirun is behind {behind}/mpirun on PATH" in bad


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
    (tmp_path / "cmdline").write_bytes(cmdline)
    (tmp_path / "environ").write_bytes(environ)
    assert bool(shims.passed_by(tmp_path)) == told
