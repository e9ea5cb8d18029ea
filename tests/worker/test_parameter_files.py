"""The files of an Open MPI, in folders made for it."""

from __future__ import annotations

from pathlib import Path

from mpiboot.core.facts import MpiParameter
from mpiboot.core.model import Mpi, MpiFamily
from mpiboot.worker import facts


def installed(folder: Path, family: MpiFamily = MpiFamily.OPENMPI4) -> Mpi:
    program = folder / "bin/mpirun"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    return Mpi(family, "4.1.4", str(program), "")


def test_the_users_file_comes_before_the_installations(tmp_path: Path) -> None:
    mpi = installed(tmp_path / "ompi")
    own = tmp_path / "home/.openmpi/mca-params.conf"
    etc = tmp_path / "ompi/etc/openmpi-mca-params.conf"
    for path, text in ((own, "pml = ucx\n"), (etc, "pml = ob1\nbtl = tcp\n\xff\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text, "latin-1")
    assert facts.find_parameters(mpi, {"HOME": str(tmp_path / "home")}) == (
        MpiParameter("OMPI_MCA_pml", "ucx", str(own)),
        MpiParameter("OMPI_MCA_pml", "ob1", str(etc)),
        MpiParameter("OMPI_MCA_btl", "tcp", str(etc)),
    )


def test_an_installation_of_another_place_says_where_its_files_are(tmp_path: Path) -> None:
    mpi = installed(tmp_path / "ompi")
    etc = tmp_path / "elsewhere/openmpi-mca-params.conf"
    etc.parent.mkdir()
    etc.write_text("pml = ucx\n")
    assert facts.find_parameters(mpi, {"HOME": "/nowhere", "A": "1"}) == ()
    info = tmp_path / "ompi/bin/ompi_info"
    info.write_text(f"#!/bin/sh\necho path:sysconfdir:{etc.parent}\n")
    info.chmod(0o755)
    found = facts.find_parameters(mpi, {"HOME": "/nowhere"})
    assert found == (MpiParameter("OMPI_MCA_pml", "ucx", str(etc)),)


def test_an_mpi_without_such_files_has_none(tmp_path: Path) -> None:
    assert facts.find_parameters(installed(tmp_path, MpiFamily.MPICH), {}) == ()
