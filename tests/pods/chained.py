"""Stand-ins for images with an ENTRYPOINT of their own: their folders, variables and scripts.

The real ones can't be had here. Theirs are the paths, what the scripts set, and how they start the
command that they are given; the MPI is Debian's Open MPI 4.1 or PyPI's Intel MPI, moved to their
prefix. No GPU is looked for: NODE_DRIVER says that a node's driver is older than the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.pods import images
from tests.pods.images import Image

_USUAL = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LIBRARIES = "lib/x86_64-linux-gnu"
# Where this Open MPI looks for its parts below a prefix.
_MOVE = f"""
mkdir -p "$1/bin" "$1/{_LIBRARIES}" "$1/share" "$1/etc"
cd /usr/bin && mv orterun orted "$1/bin" && rm mpirun mpiexec
ln -s orterun "$1/bin/mpirun"
ln -s orterun "$1/bin/mpirun.real"
cd /usr/{_LIBRARIES} && mv libmpi.so* libmpi_* libopen-* libmca_* openmpi "$1/{_LIBRARIES}"
mv /usr/share/openmpi "$1/share"
rm -r /etc/openmpi
"""
PROGRAM = "/opt/train"
_PROGRAM = '#!/bin/sh\necho "has $(hostname) {}"\nexec /opt/programs/ring\n'
_MOVE_INTEL = 'mkdir -p "${1%/*}"; mv /opt/mpi "$1"; rm /etc/ld.so.conf.d/mpi.conf; ldconfig'


@dataclass(frozen=True)
class Chained:
    """An image that has an ENTRYPOINT, by what matters of it to mpiboot."""

    prefix: str  # of its MPI
    files: Mapping[str, str]
    entrypoint: tuple[str, ...] = ("mpiboot",)
    env: Mapping[str, str] = field(default_factory=dict)
    # What a rank prints, and what that is where the node's driver is recent; and, where that
    # differs, where it is not.
    shows: str = "$LD_LIBRARY_PATH"
    recent: str = ""
    old: str = ""
    mpi: str = "OpenMPI"

    def image(self) -> Image:
        """The image, with the ENTRYPOINT that the page has for it."""
        intel = self.mpi == "Intel"
        plain = images.image("intel-mpi" if intel else "openmpi-4.1")
        move = _MOVE_INTEL if intel else _MOVE
        moved = plain.after("sh", "-ec", move, "sh", self.prefix)
        files = {**self.files, PROGRAM: _PROGRAM.format(self.shows)}
        own = {
            "OPAL_PREFIX": self.prefix,  # for those that were not built for this prefix
            "PATH": f"{self.prefix}/bin:{_USUAL}",
            "LD_LIBRARY_PATH": f"{self.prefix}/{_LIBRARIES}",
        }
        env = {"PATH": _USUAL} if intel else own
        return replace(
            moved.with_files(files, 0o755), env={**env, **self.env}, entrypoint=self.entrypoint
        )


def _after(script: str) -> tuple[str, ...]:
    return ("bash", "-c", f'. {script}; exec mpiboot "$@"', "mpiboot")


# The parts are read in their order. One looks for the node's driver, and puts the libraries of a
# newer one in front where the node's is older than the image. Each bash reads /etc/shinit_v2, too.
NVIDIA = Chained(
    prefix="/opt/hpcx/ompi",
    entrypoint=("/opt/nvidia/nvidia_entrypoint.sh", "mpiboot"),
    env={"BASH_ENV": "/etc/shinit_v2", "ENV": "/etc/shinit_v2"},
    files={
        "/opt/nvidia/nvidia_entrypoint.sh": """#!/bin/bash
for part in /opt/nvidia/entrypoint.d/*; do
  case $part in
  *.txt) cat "$part" ;;
  *.sh) . "$part" ;;
  esac
done
[ $# != 0 ] || exec /bin/bash
exec "$@"
""",
        "/opt/nvidia/entrypoint.d/10-banner.txt": "\n== PyTorch ==\n\n",
        "/opt/nvidia/entrypoint.d/50-gpu-driver-check.sh": """. /etc/shinit_v2
[ -z "$_CUDA_COMPAT_STATUS" ] || echo "NOTE: CUDA Forward Compatibility mode ENABLED."
""",
        "/etc/shinit_v2": """if [ "$NODE_DRIVER" = old ] && [ -z "$_CUDA_COMPAT_STATUS" ]; then
  export _CUDA_COMPAT_STATUS="CUDA Driver OK"
  export LD_LIBRARY_PATH=/usr/local/cuda/compat/lib.real:$LD_LIBRARY_PATH
fi
""",
    },
    shows="$_CUDA_COMPAT_STATUS $LD_LIBRARY_PATH",
    recent=f" /opt/hpcx/ompi/{_LIBRARIES}",
    old=f"CUDA Driver OK /usr/local/cuda/compat/lib.real:/opt/hpcx/ompi/{_LIBRARIES}",
)
# mpirun is behind a script that doesn't exec it.
AMAZON = Chained(
    prefix="/opt/amazon/openmpi",
    entrypoint=_after("/usr/local/bin/start_cuda_compat.sh"),
    files={
        "/usr/local/bin/start_with_right_hostname.sh": """#!/usr/bin/env bash
. /usr/local/bin/start_cuda_compat.sh
eval "$@"
""",
        "/usr/local/bin/start_cuda_compat.sh": """#!/usr/bin/env bash
[ "$NODE_DRIVER" != old ] || export LD_LIBRARY_PATH=/usr/local/cuda/compat:$LD_LIBRARY_PATH
""",
        "/opt/amazon/openmpi/bin/mpirun": """#!/bin/bash
/opt/amazon/openmpi/bin/mpirun.real --allow-run-as-root "$@"
""",
        "/opt/amazon/openmpi/etc/openmpi-mca-params.conf": """hwloc_base_binding_policy = none
rmaps_base_mapping_policy = slot
""",
    },
    # By a script that names it by its path, Open MPI puts folders of its own in front.
    shows="$(echo $LD_LIBRARY_PATH | grep -o cuda/compat)",
    old="cuda/compat",
)
# Its own script doesn't exec what it starts either: a shell stays in front of mpiboot.
AMAZONS_OWN = replace(
    AMAZON, entrypoint=("bash", "-m", "/usr/local/bin/start_with_right_hostname.sh", "mpiboot")
)
# MPI is on no path before the script has run; a second time it does nothing, and says 3.
ONEAPI = Chained(
    prefix="/opt/intel/oneapi/mpi/2021.18",
    entrypoint=_after("/opt/intel/oneapi/setvars.sh"),
    files={
        "/opt/intel/oneapi/setvars.sh": """if [ "$SETVARS_COMPLETED" = 1 ]; then
  echo ":: WARNING: setvars.sh has already been run. Skipping re-execution." >&2
  return 3
fi
export SETVARS_COMPLETED=1 ONEAPI_ROOT=/opt/intel/oneapi
export I_MPI_ROOT=$ONEAPI_ROOT/mpi/2021.18
export PATH=$I_MPI_ROOT/bin:$PATH LD_LIBRARY_PATH=$I_MPI_ROOT/lib
echo ":: oneAPI environment initialized ::"
"""
    },
    shows="$ONEAPI_ROOT $I_MPI_ROOT",
    recent="/opt/intel/oneapi /opt/intel/oneapi/mpi/2021.18",
    mpi="Intel",
)
STAND_INS = {
    "NVIDIA NGC": NVIDIA,
    "AWS Deep Learning Containers": AMAZON,
    "AWS as it is": AMAZONS_OWN,
    "Intel oneAPI": ONEAPI,
}
