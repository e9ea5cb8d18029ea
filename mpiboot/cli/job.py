"""The commands that go a launcher's or a worker's way: launcher, worker, wait, plan.

A role's own modules are loaded when that role runs: a worker's start is everybody's wait.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import click

from mpiboot.cli import run
from mpiboot.cli.options import PASS_ON, Command, settings_of
from mpiboot.cli.run import ErrorSettings, Words, looking, resolved
from mpiboot.core.errors import error
from mpiboot.core.model import Role
from mpiboot.core.settings import ROWS, Section

# Seconds that a look at every host takes at most, unless a flag says otherwise: the variable is
# the deadline of a launcher that waits.
_PLAN_LOOK: Final = 5.0
_NAMED: Final = ("role", "start_sshd")  # the command itself says the role
_LOOKS_BY: Final = ("control_ifname", "port_range", "pair_check")
# What only a launcher that starts mpirun reads.
_NOT_FOR_WAITING: Final = (
    *_NAMED,
    "ssh_client",
    "ssh_keepalive",
    *(row.name for row in ROWS if row.section in {Section.MPI, Section.END}),
    *(row.name for row in ROWS if row.section is Section.NETWORK and row.name not in _LOOKS_BY),
)
# Who waits for one name, and looks at this pod alone.
_FOR_EXEC: Final = (
    *("timeout", "dns_wait", "dns_interval", "control_ifname", "nccl_socket"),
    *("data_network", "data_ifname", "rdma_device", "nccl_version"),
)
_NOT_FOR_EXEC: Final = tuple(
    row.name for row in ROWS if row.section is not Section.LOG and row.name not in _FOR_EXEC
)


@settings_of(Role.LAUNCHER, without=_NAMED)
@click.command(cls=Command, context_settings=PASS_ON)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def launcher(program: Words, **flags: str | None) -> None:
    """Wait for every host, decide, and start mpirun.

    PROGRAM is the MPI program, or a whole line that starts with mpirun.

    \b
    Examples:
      mpiboot launcher -- ./train --epochs 3
      mpiboot launcher --timeout 20m -- mpirun -n 16 ./train
    """  # noqa: D301 - click's mark for lines that are kept as they are
    sys.exit(run.launcher(program, flags))


@settings_of(Role.WORKER, without=_NAMED)
@click.command(cls=Command, context_settings=PASS_ON)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def worker(program: Words, **flags: str | None) -> None:
    """Serve the job over SSH, in the foreground.

    With a PROGRAM the SSH server runs beside it, and the program's exit status is the
    container's.

    \b
    Examples:
      mpiboot worker
      mpiboot worker --sshd embedded --ssh-port 2222
    """  # noqa: D301 - click's mark for lines that are kept as they are
    sys.exit(run.worker(program, flags))


@click.command(cls=Command, context_settings=PASS_ON)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def rank(program: Words) -> None:
    """Give one rank the variables that torchrun would, and become PROGRAM.

    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, told from what
    Open MPI, MPICH, Intel MPI or Slurm set for this rank.

    \b
    Examples:
      mpiboot launcher -- mpirun -n 8 mpiboot rank -- python train.py
      mpiboot launcher --rank-env -- python train.py
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.cli import rank as ranks
    from mpiboot.system import process

    # The pod's reason to end is its worker's to write, not a rank's.
    ErrorSettings.termination_log = ""
    try:
        found = ranks.variables(os.environ)
    except ValueError as wrong:
        raise error("usage", f"mpiboot rank: {wrong}", hint="") from None
    process.replace(program, {**os.environ, **found})


@settings_of(Role.LAUNCHER, without=_NOT_FOR_EXEC)
@click.command("exec", cls=Command, context_settings=PASS_ON)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def execute(program: Words, **flags: str | None) -> None:
    """Wait for the name where PROGRAM's processes meet, set this pod's network, become PROGRAM.

    For programs that every pod starts by itself, such as torchrun in an indexed Job. The name is
    that of --rdzv-endpoint or --master-addr on PROGRAM's line, or of PET_RDZV_ENDPOINT,
    PET_MASTER_ADDR or MASTER_ADDR. Exit 68 when it does not resolve in time.

    \b
    Examples:
      mpiboot exec -- torchrun --nnodes 2 --rdzv-endpoint trainer-0.trainer:29500 train.py
      mpiboot exec --timeout 20m --data-network require -- python train.py
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.launcher import look

    look.execute(resolved(flags, "exec"), program, os.environ)


@settings_of(Role.LAUNCHER, without=_NOT_FOR_WAITING)
@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print the hosts, or why not, as JSON.")
def wait(*, as_json: bool, **flags: str | None) -> None:
    """Wait until every host of the hostfile resolves and answers over SSH; nothing more.

    For init containers and scripts. Exit 0 when all are ready, 68 or 69 when the deadline
    passes, 77 when a worker refuses the key.

    \b
    Examples:
      mpiboot wait
      mpiboot wait --hostfile /etc/mpi/hostfile --timeout 5m
      mpiboot wait --json --timeout 10s
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.launcher import look

    look.wait(resolved(flags, "wait"), os.environ, as_json=as_json)


@settings_of(Role.LAUNCHER, without=_NAMED, looks=_PLAN_LOOK)
@click.command(cls=Command, context_settings=PASS_ON)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--offline", is_flag=True, help="Look at no host and no key: on a laptop, in CI.")
@click.option(
    "--facts",
    "facts_from",
    type=click.Path(),
    metavar="PATH",
    default="",
    help="With --offline: a folder of pods' saved facts, each from `mpiboot facts --json`.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def plan(
    program: Words, *, as_json: bool, offline: bool, facts_from: str, **flags: str | None
) -> None:
    """Print what `launcher` would do with PROGRAM, each value with its source and reason.

    It takes the options of `launcher`. Hosts are looked at once (5 s at most, unless --timeout
    says otherwise); nothing is started.

    \b
    Examples:
      mpiboot plan -- ./train --epochs 3
      mpiboot plan --json -- mpirun -n 16 ./train
      mpiboot plan --offline --mpi openmpi5 --hostfile hostfile -- ./train
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.launcher import look

    found = looking(resolved(flags, "plan"), _PLAN_LOOK)
    if facts_from and not offline:
        raise click.UsageError("--facts is for --offline", click.get_current_context())
    if offline:
        look.show_offline(found, program, os.environ, as_json=as_json, folder=facts_from)
    else:
        look.show_plan(found, program, os.environ, as_json=as_json)
