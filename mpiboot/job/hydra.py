"""MPICH and Intel MPI, whose mpirun is Hydra: what a plan sets for each, and why. Pure.

Measured on MPICH 4.0.2 (Debian's) and 5.0.2 (PyPI's) and on Intel MPI 2021.18.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from mpiboot.core.facts import Host, Variable
from mpiboot.core.model import Decision, MpiFamily, Source, Switch
from mpiboot.job import forward
from mpiboot.job.mpi_environment import Chosen
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.plan_input import Implementation, PlanInput, PortVariable
from mpiboot.job.resolve import Drop, ForAgents, Forced, Item, Removal, Words, warning

# With this option mpirun prints every rank's exit code at its end, a line for each host.
EXIT_CODES: Final = "-print-all-exitcodes"
_SSH: Final = "ssh"
# Options beside which no other variable is handed on.
_ONLY: Final = ("genvnone", "envnone", "genvlist", "envlist")
_ANOTHER_KIND: Final = "another kind would start no launch agent"


class Hydra(Implementation):
    """What MPICH and Intel MPI have in common."""

    hostfile_colon = True
    # What chooses the kind of launch agent: another one than ssh calls none, and fork starts every
    # rank on the launcher.
    agent_kind_vars: tuple[str, ...]
    local_link = True
    ipv4_only = True
    auto_exported = ("*",)
    hands_on_all = True

    def agent(self, inp: PlanInput, hosts: int, remote: Collection[str]) -> Iterator[Item]:
        """Set the kind of launch agent that calls one, whatever the user's line or pod names.

        ``fork`` would start every rank in this pod, and none on ``remote``.
        """
        others = [
            f"{name}={inp.environ[name]}"
            for name in self.agent_kind_vars
            if inp.environ.get(name, "") not in ("", _SSH)
        ]
        wanted = inp.line.given.get("launcher", _SSH)
        if remote and wanted != _SSH:
            others.append(f"-launcher {wanted}")
            yield Drop("launcher")
        if others:
            yield warning("settings-conflict", f"{', '.join(others)} is dropped: {_ANOTHER_KIND}")
        yield from map(Removal, (*self.agent_kind_vars[1:], *self.agent_vars[1:]))
        yield Forced(self.agent_kind_vars[0], _SSH, _ANOTHER_KIND, Source.DEFAULT)
        yield from super().agent(inp, hosts, remote)

    def taken_out(self, inp: PlanInput, environ: Mapping[str, str]) -> Iterator[Item]:
        """Take out of mpirun's environment what would overwrite that of the ranks' own pods.

        The launch agents, which are of this pod, get it back.
        """
        settings, workers = inp.settings, inp.observed.workers
        if not workers:
            return
        names = {name for item in workers if item.facts for name in item.facts.environment}
        found = forward.withheld_from_ranks(
            environ,
            settings.forward,
            settings.no_forward,
            of_workers=names,
            given=inp.line.exports,
        )
        for name in found:
            yield Removal(name)
            yield ForAgents(name, environ[name])
        if found:
            reason = (
                f"{self.title} would overwrite what the ranks' own pods have; "
                "MPIBOOT_FORWARD=NAME,... hands the launcher's on"
            )
            yield Decision("kept-from-ranks", " ".join(found), Source.DETECTED, reason)

    def hand_on(self, inp: PlanInput, chosen: Chosen) -> tuple[list[Item], Collection[str]]:
        """Show what ranks get: all that mpirun has, or only what the line names.

        With such a line the agents set what ranks need: ``mpi_environment.deliver``.
        """
        options = inp.line.given
        only = next((f"-{name} {options[name]}".strip() for name in _ONLY if name in options), "")
        if not only:
            message = f"{self.title} hands on what mpirun has in its environment"
            return [Decision("forwarded", "all", Source.DEFAULT, message)], chosen.values
        message = f"{only} on the mpirun line: ranks get nothing else of mpirun's environment"
        listed = " ".join(dict.fromkeys(chosen.given)) or "none"
        return [Decision("forwarded", listed, Source.FLAG, message)], chosen.given

    def words(self, inp: PlanInput) -> Iterator[Item]:
        given = EXIT_CODES.lstrip("-") in inp.line.given
        if inp.settings.supervise is Switch.ON and not given:
            reason = (
                "mpirun prints why each rank ended; mpiboot removes these lines from its output"
            )
            yield Decision("exit-codes", EXIT_CODES, Source.DEFAULT, reason)
            yield Words((EXIT_CODES,))


class Mpich(Hydra):
    """MPICH."""

    family = MpiFamily.MPICH
    title = "MPICH (Hydra)"
    hostfile_var = "HYDRA_HOST_FILE"
    hostfile_binding = True
    agent_kind_vars = ("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP")
    agent_vars = ("HYDRA_LAUNCHER_EXEC", "HYDRA_BOOTSTRAP_EXEC")
    # The MPI Operator sets the second one, and no MPICH reads it.
    agent_args_vars = ("HYDRA_LAUNCHER_EXTRA_ARGS", "HYDRA_LAUNCH_EXTRA_ARGS")
    daemon_link_vars = ("HYDRA_IFACE",)
    # UCX's, and libfabric's where MPIR_CVAR_CH4_NETMOD=ofi asks for it.
    # FI_TCP_IFACE alone does nothing there; both together do, whichever provider is chosen.
    mpi_link_vars = ("UCX_NET_DEVICES", "FI_TCP_IFACE", "FI_SOCKETS_IFACE")
    # mpiexec and its proxies; then the ranks' own connections, with an older name.
    ports = (
        PortVariable(("MPIEXEC_PORT_RANGE",), "{first}:{last}", daemons=True),
        PortVariable(("MPIR_CVAR_CH3_PORT_RANGE", "MPICH_PORT_RANGE"), "{first}:{last}"),
    )
    # 5.0's shared memory reads other ranks' memory without having tried it; 4.0 never does.
    no_single_copy = Variable(
        "MPIR_CVAR_CH4_CMA_ENABLE", "0", "ranks of one host copy by shared memory"
    )


class IntelMpi(Hydra):
    """Intel MPI: Hydra under names of its own."""

    family = MpiFamily.INTEL
    title = "Intel MPI (Hydra)"
    hostfile_var = "I_MPI_HYDRA_HOST_FILE"
    default_slots_var = "I_MPI_PERHOST"
    agent_kind_vars = ("I_MPI_HYDRA_BOOTSTRAP", "HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP")
    agent_vars = ("I_MPI_HYDRA_BOOTSTRAP_EXEC", "HYDRA_LAUNCHER_EXEC", "HYDRA_BOOTSTRAP_EXEC")
    agent_args_vars = ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",)
    daemon_link_vars = ("I_MPI_HYDRA_IFACE",)
    mpi_link_vars = ("FI_TCP_IFACE",)
    # FI_PROVIDER would be NCCL's as well.
    on_control_link = (
        Variable("I_MPI_OFI_PROVIDER", "tcp", "MPI's own messages go over TCP on the control link"),
    )
    ports = (
        PortVariable(("I_MPI_PORT_RANGE", "MPIEXEC_PORT_RANGE"), "{first}:{last}", daemons=True),
    )
    constants = (
        Variable("I_MPI_HYDRA_BRANCH_COUNT", "0", "flat: no worker needs to reach another"),
    )
    bind_var = "I_MPI_PIN"
    bind_value = "0"
    pinning_vars = ("I_MPI_PIN", "I_MPI_PIN_*")

    def program(self, inp: PlanInput) -> str:
        """Give what its mpirun would start: that is a script, which as PID 1 ignores SIGTERM."""
        path = inp.observed.mpi.path
        return path if path.rpartition("/")[2] == "mpiexec.hydra" else "mpiexec.hydra"

    def default_slots(self, line: UserLine) -> str:
        return "" if "machinefile" in line.given else self.default_slots_var

    def passes_over(self, listed: Sequence[Host]) -> bool:
        """Whether no host has slots: measured with 2021.18, ``-f`` gives way to the variable then.

        Where that has no such host either, every rank starts in this pod.
        """
        return not any(host.slots for host in listed)

    def one_number(self, inp: PlanInput) -> bool:
        return "machinefile" not in inp.line.given and not self._counts_slots(inp)

    def _counts_slots(self, inp: PlanInput) -> bool:
        """Whether mpiboot names the hostfile by ``-machinefile``: its numbers count then.

        It would override the user's own number of ranks per host.
        """
        line, listed = inp.line, inp.observed.hostfile.hosts
        user_decides = (
            "machinefile" in line.given
            or inp.environ.get(self.default_slots_var)
            or line.per_node
            or line.hosts
            or line.moves_hosts
            or line.unknown
        )
        given = all(host.slots_given for host in listed) and not self.passes_over(listed)
        return given and not user_decides

    def words(self, inp: PlanInput) -> Iterator[Item]:
        if self._counts_slots(inp):
            reason = f"{self.title} passes over the numbers of slots in a hostfile named otherwise"
            yield Decision("slots-option", "-machinefile", Source.DETECTED, reason)
            yield Words(("-machinefile", inp.paths.hostfile))
        yield from super().words(inp)


MPICH: Final = Mpich()
INTEL: Final = IntelMpi()
