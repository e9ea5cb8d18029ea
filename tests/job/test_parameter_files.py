"""Open MPI's own files of parameters; what becomes of them is in ``tests/data/plans/cases``."""

from __future__ import annotations

import pytest

from mpiboot.core.model import MpiFamily
from mpiboot.job import parameter_files
from mpiboot.job.mpirun_line import read

# Each form as mpirun 4.1.4 took it.
FORMS = {
    "pml = ucx\n": {"pml": "ucx"},
    "  pml=ucx  \n#btl = tcp\n # mtl = x\n\nbtl\t=\t^openib , tcp\n": {
        "pml": "ucx",
        "btl": "^openib , tcp",
    },
    "pml = ucx\npml = ob1\n": {"pml": "ob1"},
    "-mca pml ucx\n--mca btl tcp,self\n-x FOO=bar\n--omca a b\n": {
        "pml": "ucx",
        "btl": "tcp,self",
        "a": "b",
    },
    "pml ucx\npml =\n= ucx\n\0\n": {},
}
OPENMPI4, OPENMPI5 = MpiFamily.OPENMPI4, MpiFamily.OPENMPI5
PRTE = "/h/.prte/mca-params.conf /e/prte-mca-params.conf"
PMIX = "/h/.pmix/mca-params.conf /e/pmix-mca-params.conf"
USUAL = "/e/openmpi-mca-params-override.conf /h/.openmpi/mca-params.conf /e/openmpi-mca-params.conf"
NAMED = "mpirun -am one,two --mca mca_base_param_files /a:/b"
OTHERS = {"OMPI_MCA_mca_param_files": "/a,/b", "OMPI_MCA_mca_base_envar_file_prefix": "/t"}


def test_how_a_file_is_read() -> None:
    assert {text: parameter_files.read(text) for text in FORMS} == FORMS


@pytest.mark.parametrize(
    ("family", "line", "environ", "found"),
    [
        (OPENMPI4, "mpirun", {}, USUAL),
        (OPENMPI5, "mpirun", {}, f"{USUAL} {PRTE} {PMIX}"),
        (MpiFamily.MPICH, "mpirun", {}, ""),
        (OPENMPI4, NAMED, {}, "one two /a /b"),
        (OPENMPI4, "mpirun", OTHERS, "/t /a /b"),
        (OPENMPI5, "mpirun", OTHERS, f"/t {PRTE} {PMIX} /a /b"),
    ],
)
def test_which_files_are_read_the_strongest_first(
    family: MpiFamily, line: str, environ: dict[str, str], found: str
) -> None:
    words = read([*line.split(), "./train"], family)
    paths = parameter_files.paths(family, words, environ, etc="/e", home="/h")
    assert [path for path, _ in paths] == found.split()


@pytest.mark.parametrize(
    ("path", "moved", "found"),
    [
        ("/usr/bin/mpirun", "", "/usr/etc /etc/openmpi"),
        ("/bin/mpirun", "", "/etc /etc/openmpi"),
        ("/opt/ompi/bin/mpirun", "", "/opt/ompi/etc"),
        ("/opt/ompi/bin/mpirun", "/moved", "/moved/etc"),
        (
            "/usr/lib64/openmpi/bin/mpirun",
            "",
            "/usr/lib64/openmpi/etc /etc/openmpi-x86_64 /etc/openmpi-aarch64",
        ),
    ],
)
def test_where_an_installation_has_its_files(path: str, moved: str, found: str) -> None:
    environ = {"OPAL_PREFIX": moved} if moved else {}
    assert parameter_files.folders(path, environ) == tuple(found.split())
