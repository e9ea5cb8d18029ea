"""The MPIs that mpiboot knows: what a plan sets for each, and why. A new one is a class here. Pure.

Measured on Open MPI 4.1.4 and 5.0.7 to 5.0.11, on MPICH 4.0.2 (Debian's) and 5.0.2 (PyPI's), and on
Intel MPI 2021.18.1; IBM Spectrum MPI can't be had here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from mpiboot.core.addresses import short
from mpiboot.core.checks import failed
from mpiboot.core.facts import Host, Variable
from mpiboot.core.launch_spec import NOT_FOR_RANKS, PLACEMENT
from mpiboot.core.model import Decision, Finding, Level, Mpi, MpiFamily, MpiNetwork, Source, Switch
from mpiboot.core.wording import first_few
from mpiboot.job import forward
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.parameter_files import parameter
from mpiboot.job.plan_input import (
    Drop,
    Forced,
    HandedOn,
    Implementation,
    Item,
    Names,
    PlanInput,
    PortVariable,
    Removal,
    Words,
    warning,
)

TRANSPORTS: Final = (
    Variable("OMPI_MCA_pml", "ob1", "TCP for MPI's own messages: beside GPUs, or without RDMA"),
    # vader is the name of the shared-memory transport that both 4.1 and 5.0 accept.
    Variable("OMPI_MCA_btl", "self,vader,tcp", "TCP between hosts, shared memory within one"),
    Variable("OMPI_MCA_coll_hcoll_enable", "0", "HCOLL would open RDMA devices for MPI itself"),
    Variable("OMPI_MCA_coll_ucc_enable", "0", "UCC would open RDMA devices for MPI itself"),
)
_FLAT: Final = "mpirun starts every daemon itself; each agent lasts as long as the job"
_COPIES: Final = "ranks of one host copy by shared memory"
# More concurrent launches than this is MPI's own default; fewer than hosts hangs it.
DEFAULT_CONCURRENCY: Final = 128


# MPI's TCP has first port and number for both IP versions.
_PORTS_OF_MPI: Final = tuple(
    PortVariable(f"OMPI_MCA_btl_tcp_port_{what}_v{version}", value)
    for what, value in (("min", "{first}"), ("range", "{count}"))
    for version in (4, 6)
)


def _ports(daemons: str) -> tuple[PortVariable, ...]:
    return PortVariable(daemons, "{first}-{last}", daemons=True), *_PORTS_OF_MPI


def _pinning(prefixes: str, parameters: str) -> tuple[str, ...]:
    return tuple(
        f"{prefix}{parameter}" for prefix in prefixes.split() for parameter in parameters.split()
    )


class OpenMpi(Implementation):
    """What the series of Open MPI have in common."""

    mpi_link_vars = ("OMPI_MCA_btl_tcp_if_include",)
    transports: tuple[Variable, ...] = TRANSPORTS
    checks_peer_address = True
    reads_open_mpis = True
    root = (
        Variable("OMPI_ALLOW_RUN_AS_ROOT", "1", "this pod runs as root", Source.DETECTED),
        Variable("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", "this pod runs as root", Source.DETECTED),
    )
    export_var = "OMPI_MCA_mca_base_env_list"
    # -x is taken beside that list, and is one of all programs, wherever it stands.
    exports_and_list = False
    auto_exported = ("OMPI_*", "PMIX_MCA_*")
    # How many agents live at once.
    concurrency_var: str

    def agent(self, inp: PlanInput, hosts: int) -> Iterator[Item]:
        """Let as many agents live at once as there are hosts: with fewer mpirun hangs.

        Without mpiboot it does so too, but where daemons leave their agents (4.1's
        plm_rsh_no_tree_spawn).
        """
        yield from super().agent(inp, hosts)
        name = self.concurrency_var
        users = inp.owned(name)
        if hosts > ((users and _number(users.value)) or DEFAULT_CONCURRENCY):
            yield Drop(parameter(name))
            reason = "each host's agent runs as long as the job; with fewer at once mpirun hangs"
            yield Forced(name, str(hosts), reason)

    def always(self, inp: PlanInput) -> Iterator[Item]:
        """Give what carries MPI's messages and starts daemons; root's own variables.

        Where it is MPI's choice what carries them, what is the user's own is shown.
        """
        left = inp.settings.mpi_network is MpiNetwork.AUTO
        yield from (item for item in self.transports if not left or inp.owned(item.name))
        yield from self.constants
        if inp.observed.identity.uid == 0:
            yield from self.root

    def hand_on(self, inp: PlanInput, names: Names, given: Names, values: Names) -> HandedOn:
        """Name variables to mpirun by ``-x``."""
        message = ", ".join(names) or "none of the known variables is set"
        items: list[Item] = [Decision("forwarded", str(len(names)), Source.DEFAULT, message)]
        if inp.owned(self.export_var) and not self.exports_and_list:
            if not inp.environ.keys().isdisjoint(names):
                message = f"{parameter(self.export_var)} is set, and {self.title} takes no -x "
                message += "beside it: nothing else is forwarded"
                hint = "name all variables in that list, or use -x"
                items.append(warning("usage", message, hint))
            return items, ()
        return items, names


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


# ORTE_MAX_NODE_PREFIX of regx/fwd is 50, without a check; what is behind it on the stack has room
# for six more (measured with 4.1.4 on x86-64, by mpirun's own name and by those of other hosts).
_NAME_FITS: Final = 56


class OpenMpi4(OpenMpi):
    """Open MPI 4.1, on ORTE."""

    family = MpiFamily.OPENMPI4
    title = "Open MPI 4.1 (ORTE)"
    hostfile_var = "OMPI_MCA_orte_default_hostfile"
    default_slots_var = "OMPI_MCA_orte_set_default_slots"
    keep_fqdn_var = "OMPI_MCA_orte_keep_fqdn_hostnames"
    launcher_first = True
    agent_vars = ("OMPI_MCA_plm_rsh_agent",)
    agent_args_vars = ("OMPI_MCA_plm_rsh_args",)
    concurrency_var = "OMPI_MCA_plm_rsh_num_concurrent"
    # What of a user's makes daemons leave their agents, and what keeps them there beside it. Many
    # guides set it for a flat launch, which routed=direct is already.
    leaving_var = "OMPI_MCA_plm_rsh_no_tree_spawn"
    attached = Variable("OMPI_MCA_orte_leave_session_attached", "1", f"{leaving_var} is set")
    daemon_link_vars = ("OMPI_MCA_oob_tcp_if_include",)
    one_link = False
    not_version = (
        ("OMPI_MCA_btl_tcp_disable_family", "{other}"),
        ("OMPI_MCA_oob_tcp_disable_ipv{other}_family", "1"),
    )
    # Else each host of the hostfile is resolved in turn, to see whether it is mpirun's own; 5.0
    # does not do so (src/runtime/prte_mca_params.c of PRRTE 3.0.0 to 3.0.14).
    not_resolve_var = "OMPI_MCA_if_base_do_not_resolve"
    ports = _ports("OMPI_MCA_oob_tcp_dynamic_ipv{version}_ports")
    # A bare no_tree_spawn lets orted daemonize, and the agent ends at once.
    constants = (Variable("OMPI_MCA_routed", "direct", _FLAT),)
    no_single_copy: Variable | None = Variable(
        "OMPI_MCA_btl_vader_single_copy_mechanism", "none", _COPIES
    )
    bind_var = "OMPI_MCA_hwloc_base_binding_policy"
    # By ompi_info 4.1.4.
    pinning_vars = _pinning(
        "OMPI_MCA_",
        "rmaps rmaps_base_*policy rmaps_base_by* rmaps_base_*per* rmaps_base_pattern rmaps_ppr_* "
        "rmaps_rank_file_* rmaps_dist_device orte_rankfile hwloc_base_bind* hwloc_base_cpu_* "
        "hwloc_base_slot_list hwloc_base_use_hwthreads_as_cpus",
    )
    # The handle of mpirun's own messages, which ranks on its own host would inherit.
    messages_var = "OPAL_OUTPUT_STDERR_FD"

    def hosts(self, inp: PlanInput, listed: Sequence[Host]) -> Iterator[Item]:
        own = (inp.observed.own.hostname,) if inp.observed.own else ()
        names = (*own, *(host.name for host in listed))
        long = [name for name in names if len(re.split(r"\d", name)[0]) > _NAME_FITS]
        if long and self.family is MpiFamily.OPENMPI4:
            message = f"{first_few(long)}: Open MPI 4 aborts over a host name of more than "
            message += f"{_NAME_FITS} characters up to its first digit (open-mpi/ompi#13358)"
            yield failed("host-names", message, level=Level.WARN)
        if any("." in host.name for host in listed):
            reason = "the hostfile has names with dots, and this version would cut them"
            yield Variable(self.keep_fqdn_var, "1", reason, Source.DETECTED)
        # What chooses hosts there may name this pod otherwise than the hostfile.
        may_name_this_pod = inp.line.moves_ranks or inp.line.moves_hosts or inp.line.unknown
        if not (inp.observed.local and may_name_this_pod):
            reason = "the gate knows each host's address, and mpirun would ask for them in turn"
            yield Variable(self.not_resolve_var, "1", reason, Source.DETECTED)

    def agent(self, inp: PlanInput, hosts: int) -> Iterator[Item]:
        """Keep daemons with their agents, too."""
        yield from super().agent(inp, hosts)
        if inp.owned(self.leaving_var):
            yield self.attached

    def words(self, inp: PlanInput) -> Iterable[Item]:
        """Name the hosts' prefix; have ranks in this pod do without the handle of messages."""
        line = inp.line
        if prefix := self._prefix(inp):
            reason = "no login finds it"
            yield Decision("prefix", prefix, Source.DETECTED, reason)
            yield Words(("--prefix", prefix))
        # 4.1 can't give ranks a value of their own beside a list of names.
        listed = parameter(self.export_var) in line.mca or self.export_var in inp.environ
        alone = not (line.apps[1:] or line.unknown or listed)
        supervised = inp.settings.supervise is Switch.ON
        if supervised and alone and inp.observed.local and self.messages_var not in inp.environ:
            name, _, value = NOT_FOR_RANKS.partition("=")
            reason = "mpirun alone writes its own messages apart"
            yield Decision(name, value, Source.DEFAULT, reason)
            yield Words(("-x", NOT_FOR_RANKS))

    def _prefix(self, inp: PlanInput) -> str:
        """Choose the prefix by which daemons are found; empty: by the line, or by PATH.

        An mpirun that is called by its absolute path implies one. Behind a shim that can't be
        known, and always naming it would change the ranks' PATH and LD_LIBRARY_PATH.
        """
        line, version = inp.line, inp.observed.mpi.version
        found = {(one.path_mpi, one.called_mpi) for one in inp.observed.workers}
        given = line.daemons_mpirun or line.unknown or "noprefix" in line.given
        on_path, mpi = found.pop() if len(found) == 1 and not given else (None, None)
        if on_path or mpi is None or mpi.version != version:
            return ""
        return mpi.path.removesuffix("/bin/mpirun")


# PRRTE before 3.0.12, as a distribution builds it with a PMIx without IPv6, reads past the end of
# a pod's list of aliases, which is empty without IPv4 (prte_check_host_is_local): SIGSEGV on every
# host. In 5.0.3 to 5.0.5 PMIx sees no IPv6 address at all (open-mpi/ompi#12771).
_IPV6_ALONE_SINCE: Final = (5, 0, 9)


class OpenMpi5(OpenMpi):
    """Open MPI 5.0, on PRRTE."""

    family = MpiFamily.OPENMPI5
    title = "Open MPI 5.0 (PRRTE)"
    hostfile_var = "PRTE_MCA_prte_default_hostfile"
    default_slots_var = "PRTE_MCA_prte_set_default_slots"
    # Measured with 5.0.7: of `a.b-0` and `a.b-1` the hostfile has one host ("multiple definitions
    # of the slot count"). The variable doesn't change that, but that daemons then call their own
    # hosts `a` both, and their ranks wait for each other in shared memory.
    by_first_label = True
    keep_hostnames_var = "PRTE_MCA_prte_keep_fqdn_hostnames"
    agent_vars = ("PRTE_MCA_plm_ssh_agent",)
    agent_args_vars = ("PRTE_MCA_plm_ssh_args",)
    # The SIGCHLD of an agent cuts off what mpirun is writing (docs/reference/open-mpi-output.md).
    agent_linger = 5
    concurrency_var = "PRTE_MCA_plm_ssh_num_concurrent"
    daemon_link_vars = ("PRTE_MCA_prte_if_include", "PRTE_MCA_oob_tcp_if_include")
    not_version = (
        ("OMPI_MCA_btl_tcp_disable_family", "{other}"),
        ("PRTE_MCA_oob_tcp_disable_ipv{other}_family", "1"),
    )
    # Its own choice, netlink, has a message of each rank.
    ipv6: tuple[Variable, ...] = (
        Variable("OMPI_MCA_reachable", "weighted", "netlink reports IPv6 as unreachable"),
    )
    ports = _ports("PRTE_MCA_oob_tcp_dynamic_ipv{version}_ports")
    constants = (Variable("PRTE_MCA_plm_ssh_no_tree_spawn", "1", _FLAT),)
    no_single_copy: Variable | None = Variable("OMPI_MCA_smsc", "^cma", _COPIES)
    bind_var = "PRTE_MCA_hwloc_default_binding_policy"
    # By the sources of PRRTE 3.0.8, which takes OMPI_MCA_ for these as well (translate_params in
    # schizo_ompi.c).
    pinning_vars = _pinning(
        "PRTE_MCA_ OMPI_MCA_",
        "rmaps rmaps_default_*policy hwloc_default_binding_policy hwloc_default_cpu_list "
        "hwloc_base_bind_to_* hwloc_*use_hwthreads_as_cpus",
    )
    exports_and_list = True

    def hosts(self, inp: PlanInput, listed: Sequence[Host]) -> Iterator[Item]:
        pods = (inp.observed.own, *(worker.facts for worker in inp.observed.workers))
        own = {pod.hostname for pod in pods if pod}
        if len({short(name) for name in own}) < len(own):
            reason = "the pods' own names are alike up to the first dot, where this version would "
            yield Variable(self.keep_hostnames_var, "1", f"{reason}cut them", Source.DETECTED)

    def without_ipv4(self, version: str) -> Iterator[Finding]:
        number = tuple(int(part) for part in version.split(".") if part.isdigit())
        if () < number < _IPV6_ALONE_SINCE:
            message = f"Open MPI {version} may crash in pods without an IPv4 address"
            hint = "use 5.0.9 or newer, or give the pods IPv4 addresses too (dual stack)"
            yield warning("ip-version", message, hint)

    def taken_out(self, inp: PlanInput, environ: Mapping[str, str]) -> Iterator[Item]:
        """Take out empty parameters: measured with 5.0.7, as soon as a daemon is started by ssh."""
        for name, value in environ.items():
            if not value and name.startswith("PRTE_MCA_"):
                yield Removal(name, f"it is empty, which crashes {self.title}")

    def words(self, inp: PlanInput) -> Iterable[Item]:
        """Have mpirun write a file of which rank is where.

        The host of a rank that ends badly is otherwise on the job's stderr alone. The
        user's own options of that kind stay alone: given twice mpirun refuses them, and the
        variable gives way to the option. A comma would end the path.
        """
        line, table = inp.line, f"{inp.paths.launch_dir}/{PLACEMENT}"
        given = {"runtime-options", "output-proctable"} & line.given.keys()
        given |= {name for name in inp.environ if "runtime_options" in name}
        if inp.settings.supervise is Switch.ON and not (given or line.unknown or "," in table):
            reason = "mpirun writes there which rank is where"
            yield Decision("rank-table", table, Source.DEFAULT, reason)
            yield Words(("--runtime-options", f"output-proctable={table}"))


_LEFT_OUT: Final = (
    "leaves out the choice of MPI's own transports (OMPI_MCA_pml, OMPI_MCA_btl, OMPI_MCA_coll_*) "
)


class NewerOpenMpi(OpenMpi5):
    """A series that was not tried: an unknown parameter is ignored, but not an unknown option.

    A component or an option that is gone would end mpirun.
    """

    title = "Open MPI after 5.0"
    untried = _LEFT_OUT + "and the table of which rank is where"
    transports = ()
    ipv6 = ()
    no_single_copy = None

    def words(self, inp: PlanInput) -> Iterable[Item]:
        return ()


class SpectrumMpi(OpenMpi4):
    """IBM Spectrum MPI. Not run, for it can't be had here.

    It is built on Open MPI with ORTE (3.0 in 10.2, by its release notes) and reads OMPI_MCA_ names;
    PAMI, a component of its own, carries its messages (TCP with ``-tcp``), and fails under other
    launchers than its own: https://github.com/flux-framework/flux-core/issues/1382
    """

    family = MpiFamily.SPECTRUM
    title = "IBM Spectrum MPI (ORTE)"
    untried = _LEFT_OUT + "and what its own messages report of a rank that failed"
    transports = ()
    no_single_copy = None
    reads_open_mpis = False
    words = Implementation.words


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
    exports_all = True

    def agent(self, inp: PlanInput, hosts: int) -> Iterator[Item]:
        """Set the kind of launch agent that calls one, whatever the user's line or pod names.

        ``fork`` would start every rank in this pod.
        """
        given = {name: inp.environ.get(name, "") for name in self.agent_kind_vars}
        given["-launcher"] = inp.line.given.get("launcher", "")
        others = [f"{name}={kind}" for name, kind in given.items() if kind not in ("", _SSH)]
        if others:
            yield warning("settings-conflict", f"{', '.join(others)} is dropped: {_ANOTHER_KIND}")
        yield Drop("launcher")
        yield from map(Removal, (*self.agent_kind_vars[1:], *self.agent_vars[1:]))
        yield Forced(self.agent_kind_vars[0], _SSH, _ANOTHER_KIND, Source.DEFAULT)
        yield from super().agent(inp, hosts)

    def taken_out(self, inp: PlanInput, environ: Mapping[str, str]) -> Iterator[Item]:
        """Take out of mpirun's environment what would overwrite that of the ranks' own pods.

        The launch agents, which are of this pod, get it back.
        """
        pods = [item.facts for item in inp.observed.workers if item.facts]
        found = forward.withheld_from_ranks(
            environ if inp.observed.workers else {},
            inp.settings,
            of_workers={name for pod in pods for name in pod.environment},
            given=inp.line.exports,
        )
        for name in found:
            yield Removal(name)
            yield Forced(name, environ[name], by_agents=True)
        if found:
            reason = f"{self.title} would overwrite the ranks' own; MPIBOOT_FORWARD hands them on"
            yield Decision("kept-from-ranks", " ".join(found), Source.DETECTED, reason)

    def hand_on(self, inp: PlanInput, names: Names, given: Names, values: Names) -> HandedOn:
        """Show what ranks get: all that mpirun has, or only what the line names.

        With such a line the agents set what ranks need: ``mpi_environment.deliver``.
        """
        options = inp.line.given
        only = next((f"-{name} {options[name]}".strip() for name in _ONLY if name in options), "")
        if not only:
            message = f"{self.title} hands on what mpirun has in its environment"
            return [Decision("forwarded", "all", Source.DEFAULT, message)], values
        message = f"{only} on the mpirun line: ranks get nothing else of mpirun's environment"
        listed = " ".join(dict.fromkeys(given)) or "none"
        return [Decision("forwarded", listed, Source.FLAG, message)], given

    def words(self, inp: PlanInput) -> Iterator[Item]:
        given = EXIT_CODES.lstrip("-") in inp.line.given
        if inp.settings.supervise is Switch.ON and not given:
            reason = "why each rank ended; mpiboot removes these lines from the output"
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
    # mpiexec and its proxies; then the ranks' own connections.
    ports = (
        PortVariable("MPIEXEC_PORT_RANGE", "{first}:{last}", daemons=True),
        PortVariable("MPIR_CVAR_CH3_PORT_RANGE", "{first}:{last}"),
    )
    # 5.0's shared memory reads other ranks' memory without having tried it; 4.0 never does.
    no_single_copy = Variable("MPIR_CVAR_CH4_CMA_ENABLE", "0", _COPIES)


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
    on_control_link = (Variable("I_MPI_OFI_PROVIDER", "tcp", "MPI's TCP on the control link"),)
    ports = (PortVariable("I_MPI_PORT_RANGE", "{first}:{last}", daemons=True),)
    constants = (Variable("I_MPI_HYDRA_BRANCH_COUNT", "0", _FLAT),)
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


IMPLEMENTATIONS: Final[dict[MpiFamily, Implementation]] = {
    mpi.family: mpi for mpi in (OpenMpi4(), OpenMpi5(), Mpich(), IntelMpi(), SpectrumMpi())
}
_NEWER: Final = NewerOpenMpi()
_TRIED: Final = "5.0"


def implementation_of(mpi: Mpi) -> Implementation | None:
    """Find what mpiboot does for an installed MPI; None for one that it does not know.

    Of a series of Open MPI that was not tried it does what is safe. Off a cluster the version may
    not be known: then it is the series that was tried.
    """
    known = mpi.version[:1].isdigit() and not mpi.version.startswith(_TRIED)
    newer = mpi.family is MpiFamily.OPENMPI5 and known
    return _NEWER if newer else IMPLEMENTATIONS.get(mpi.family)
