"""What mpirun and ranks get: constants, binding, forwarded names, the data network's values. Pure.

Common to all MPIs; ``mpis`` has what differs. ``network.decision`` proposes the data network's
variables; here the user's line and environment win over them. Also MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Final

from mpiboot.core.checks import failed
from mpiboot.core.facts import Host, PodFacts, Variable, Worker
from mpiboot.core.model import DataNetworkUse, Decision, MpiNetwork, ProveTransport, Source
from mpiboot.core.settings import ROWS
from mpiboot.core.wording import first_few
from mpiboot.job import control_links, forward, job_hosts
from mpiboot.job.parameter_files import parameter
from mpiboot.job.plan_input import (
    Forced,
    Item,
    Observed,
    PlanInput,
    Removal,
    for_ranks,
    users_choice,
    warning,
)
from mpiboot.network import decision, worker_network
from mpiboot.network.decision import DataNetwork
from mpiboot.network.records import RDMA, Owned, Transport, owned_in_pod

_NCCL_FILE: Final = "NCCL_CONF_FILE"


def binding(inp: PlanInput) -> Iterator[Item]:
    """Turn binding off unless each pod is known to have CPUs of its own, or the user chose one.

    A value of mpiboot's beside the user's mapping, ranking, binding or CPUs ends mpirun (4.1:
    "Prior policy: BYSLOT"), or overrides the user's binding.
    """
    mpi = inp.implementation
    source, given, by = _binding_of_user(inp)
    if given:
        yield Decision("binding", ", ".join(given), source, by)
    elif mpi.bind_var and (shared := _why_not_bound(_pods_of_ranks(inp.observed))):
        reason = f"ranks are not bound: {shared}"
        yield Variable(mpi.bind_var, mpi.bind_value, reason, Source.DETECTED)


def _binding_of_user(inp: PlanInput) -> tuple[Source, list[str], str]:
    """Find the user's options, else variables and parameters for it; where from, and in words."""
    mpi, line = inp.implementation, inp.line

    def pins(name: str, cut: Callable[[str], str] = str) -> bool:
        return any(fnmatchcase(name, cut(pattern)) for pattern in mpi.pinning_vars)

    found = [*line.pinned_by, *([f"{line.unknown} ..."] if line.unknown else [])]
    found += [f"--mca {name} {value}" for name, value in line.mca.items() if pins(name, parameter)]
    # -genv reaches mpirun's proxies, too; what -x sets ranks alone have.
    exported = line.exports.items() if mpi.exports_all else ()
    found += [f"{name}={value}" for name, value in exported if value is not None and pins(name)]
    if found:
        return Source.FLAG, found, "given on the mpirun line"
    names = [name for name, value in inp.environ.items() if value and pins(name)]
    source, by = inp.set_by(names[0]) if names else (Source.DEFAULT, "")
    return source, [f"{name}={inp.environ[name]}" for name in names], by


def _pods_of_ranks(observed: Observed) -> dict[Host, PodFacts | None]:
    """Give the pods of ranks, as far as they are known."""
    found = {worker.host: worker.facts for worker in observed.workers}
    return found | dict.fromkeys(observed.local, observed.own)


def _why_not_bound(pods: Mapping[Host, PodFacts | None]) -> str:
    """Return why mpirun's own binding would do harm; empty where each pod has CPUs of its own."""
    for host, facts in pods.items():
        cpus = facts.cpus if facts else None
        if cpus is None:
            return f"whether {host.name} has CPUs of its own is not known"
        if not cpus.exclusive:
            # mpirun would bind ranks of several pods to the same ones.
            return f"other pods of the node may use the CPUs of {host.name}, too"
        if cpus.cores < host.slots:
            return f"{host.name} has fewer cores than slots, where mpirun may refuse"
    return "" if pods else "no pod is known"


def constants(inp: PlanInput) -> Iterator[Item]:
    """Give what this MPI always gets, binding, and HOME, USER and LOGNAME where not set."""
    yield from inp.implementation.always(inp)
    yield from _no_cma(inp)
    yield from binding(inp)
    who = inp.observed.identity
    values = {"HOME": who.home, "USER": who.user, "LOGNAME": who.user}
    for name, text in values.items():
        if not inp.environ.get(name):
            yield Forced(name, text, by_agents=inp.forwards_all)


def _no_cma(inp: PlanInput) -> Iterator[Item]:
    """Turn single copy (CMA) between ranks of a host off where process_vm_readv is refused."""
    item = inp.implementation.no_single_copy
    pods = _pods_of_ranks(inp.observed)
    refused = [host.name for host, pod in pods.items() if pod and pod.memory_refused]
    if item and refused:
        reason = f"process_vm_readv is refused on {first_few(refused)}: {item.reason}"
        yield replace(item, reason=reason, source=Source.DETECTED)


def listed(inp: PlanInput) -> tuple[str, ...]:
    """List the names in the user's own list of variables, where this MPI has such a list."""
    name = inp.implementation.export_var
    lists = (inp.environ.get(name, ""), inp.line.mca.get(parameter(name), "")) if name else ()
    return tuple(item.partition("=")[0] for text in lists for item in text.split(";") if item)


def _not_forwarded(unknown: tuple[str, ...], observed: Observed) -> tuple[str, ...]:
    """Leave out what every worker's pod sets itself, older names of settings, and the platform's.

    If a worker has no facts, what its pod sets is unknown, and nothing is left out for that.
    """
    names = [set(item.facts.environment) if item.facts else set() for item in observed.workers]
    known = set.intersection(*names) if names else set(observed.environ)  # all ranks run here
    known |= {older for setting in ROWS for older in setting.older}
    known |= {name for name in unknown if observed.platform.has_set(name, observed.environ[name])}
    return tuple(name for name in unknown if name not in known)


def forwarding(
    inp: PlanInput, removed: Collection[str], added: Mapping[str, str]
) -> tuple[list[Item], Collection[str]]:
    """Choose the variables that ranks get.

    Args:
        inp: what the plan is made of.
        removed: what mpirun's environment does not have.
        added: what it will have of the data network and of torchrun.

    Returns:
        What is shown and set, and the names.
    """
    observed, mpi, settings = inp.observed, inp.implementation, inp.settings
    foreign = forward.of_other_managers(observed.environ, observed.platform.managers)
    reason = "mpirun would look for another resource manager's allocation"
    items: list[Item] = [Removal(name, reason) for name in foreign]
    kept = {name: value for name, value in observed.environ.items() if name not in foreign}
    items += mpi.taken_out(inp, kept)
    given = (*inp.line.exports, *listed(inp))
    paths = _search_paths(inp, (*settings.forward, *given))
    items += (
        Decision(name, "the workers' own", Source.DETECTED, why) for name, why in paths.items()
    )
    # What is taken out of mpirun's environment can't be handed on: 5.0 would not start.
    left = paths.keys() | removed | {x.name for x in items if isinstance(x, Removal)}
    values = {name: value for name, value in {**kept, **added}.items() if name not in left}
    chosen = forward.select(values, settings, mpi.auto_exported, given)
    if chosen.withheld:
        message = f"MPIBOOT_FORWARD has {', '.join(chosen.withheld)}: unset here, or excluded"
        items.append(warning("usage", message))
    if left_here := _not_forwarded(chosen.unknown, observed):
        reason = "MPIBOOT_FORWARD=NAME,... or `-x NAME` forwards them"
        items.append(Decision("not-forwarded", " ".join(left_here), Source.DETECTED, reason))
    more, names = mpi.hand_on(inp, chosen.names, given, values)
    return [*items, *more], names


def _search_paths(inp: PlanInput, named: Collection[str]) -> dict[str, str]:
    """Find search paths of which workers have others of their own, and why they are not forwarded.

    Where a script has put folders in front of what the workers have, too, that is for the job; so
    is what ``named`` has, names or patterns.
    """
    found = {}
    for name in forward.SEARCH_PATHS if not inp.implementation.exports_all else ():
        own = inp.environ.get(name, "")
        others = [
            worker.host.name
            for worker in inp.observed.workers
            if worker.facts
            and not forward.extends(own, dict(worker.facts.search_paths).get(name, ""))
        ]
        if own and others and not any(fnmatchcase(name, item) for item in named):
            reason = f"another one on {first_few(others)}"
            found[name] = f"{reason}; MPIBOOT_FORWARD={name} or -x forwards the launcher's"
    return found


def data_network(inp: PlanInput) -> DataNetwork:
    """Decide the data network."""
    observed, settings = inp.observed, inp.settings
    workers = _hosts(observed)
    found = decision.decide(
        [
            observed.networks.get(worker.host.name) or worker_network.choose(worker, settings)
            for worker in workers
        ],
        settings,
        _for_all_ranks(inp),
        others=_of_the_mpi(inp, workers),
        given=inp.given["data_network"],
        blocked=observed.data_blocked,
    )
    if not inp.implementation.reads_open_mpis:
        found.proposals = [item for item in found.proposals if not item.name.startswith("OMPI_")]
    return of_ranks(found)


def of_ranks(found: DataNetwork) -> DataNetwork:
    """Let the user's values win over what the data network proposes; report them all."""
    pods = {one.host: owned_in_pod(one.facts) for one in found.networks}

    def owned(host: str, name: str) -> Owned | None:
        here = found.owned[host]
        file, read = here.get(_NCCL_FILE), pods[host].get(_NCCL_FILE)
        if name in here or not name.startswith("NCCL_") or file is None:
            return here.get(name)
        # What is in a file that ranks alone read isn't known.
        by = f"perhaps in the file of {_NCCL_FILE} ({file.by})"
        known = file.value == (read and read.value)
        return None if known else Owned(None, Source.ENVIRONMENT, by)

    found.common, found.per_host, shown = for_ranks(found.proposals, list(pods), owned)
    if found.settings.data_network is DataNetworkUse.REPORT:
        found.common, found.per_host = {}, {host: {} for host in pods}
    found.decisions += shown
    return found


def _of_the_mpi(inp: PlanInput, workers: Iterable[Worker]) -> tuple[Variable, ...]:
    """Return the values that this MPI needs of variables owned by the data network (MPICH: UCX's).

    Open MPI's own are left out: MPIBOOT_MPI_NETWORK moves them.
    """
    names = [name for name in inp.implementation.mpi_link_vars if not name.startswith("OMPI_")]
    reason = f"messages of {inp.implementation.title} on the control link"
    return tuple(
        Variable(name, link.name, reason, host=worker.host.name)
        for name in names
        for worker in workers
        if worker.facts
        and (link := worker_network.link_of(worker.address, worker.facts.links))
        and not (name in control_links.OF_LIBFABRIC and control_links.ambiguous(worker))
    )


def proves_transport(inp: PlanInput, found: DataNetwork) -> bool:
    """Whether counters are compared after the job; the user may want no RDMA."""
    if inp.settings.prove_transport is ProveTransport.OFF:
        return False
    users = (item for pod in found.owned.values() for item in pod.items())
    given = {(name, (own.value or "").strip().lower()) for name, own in users}
    off = (value for name, value in given if name == "NCCL_IB_DISABLE")
    disabled = any(value.lstrip("0").isdigit() for value in off)
    without_rdma = disabled or ("NCCL_NET", "socket") in given
    return found.transport is Transport.TCP or (found.transport in RDMA and not without_rdma)


def deliver(
    inp: PlanInput,
    common: Mapping[str, str],
    per_host: Mapping[str, Mapping[str, str]],
    forwarded: Collection[str],
) -> tuple[tuple[Item, ...], dict[str, dict[str, str]]]:
    """Decide how each value reaches its ranks: by mpirun's environment, or by its host's agent.

    A value that mpirun does not hand on goes by the agent, whatever it is; the ranks of this pod
    itself have mpirun's environment, or read their own back (``plan._local_rank_wrapper``).

    Returns:
        Items for mpirun's environment, and the variables of each host, by mpirun's name.
    """
    observed, items = inp.observed, list[Item]()
    of_host = {host: {**mine} for host, mine in per_host.items()}
    for name, value in common.items():
        # Open MPI hands its own parameters on, and they rule over the workers' environment.
        if name in forwarded or name.startswith("OMPI_"):
            items.append(Forced(name, value))
        else:
            for mine in of_host.values():
                mine[name] = value
    # What mpirun has would overwrite the values of the other hosts, where it hands on everything.
    for host in observed.local:
        for name, value in of_host.pop(host.name, {}).items():
            items.append(Forced(name, value, by_agents=inp.forwards_all))
    return tuple(items), {observed.called(host): mine for host, mine in of_host.items() if mine}


def mpi_network(inp: PlanInput, found: DataNetwork) -> Iterator[Decision]:
    """Show which network MPI's own messages use, where there is a choice."""
    name, (carrier, why) = "mpi-network", found.mpi
    mpi = inp.implementation
    names = ("OMPI_MCA_pml", *mpi.mpi_link_vars) if mpi.transports else ()
    chosen = next(filter(None, (users_choice(item, inp.owned) for item in names)), None)
    if carrier is MpiNetwork.AUTO and not chosen:
        yield Decision(name, f"left to {mpi.title}", Source.DETECTED, why)
    elif not names or found.transport not in (*RDMA, Transport.TCP):
        return
    elif chosen:
        by, own = chosen
        yield Decision(name, "your own choice", own.source, f"{by} is {own.by}")
    elif all(item.name != name for item in found.decisions):  # else `data` is not possible
        given = inp.given["mpi_network"]
        why = f"{why}; a program without NCCL may want MPIBOOT_MPI_NETWORK=data" if why else ""
        yield Decision(name, carrier.value, given.source, why or str(given))


def _hosts(observed: Observed) -> tuple[Worker, ...]:
    """List the hosts in the hostfile's order, this pod itself among them if it runs ranks."""
    known = {worker.host.name: worker for worker in observed.workers}
    own = observed.own
    if own is not None:
        address = own.control_address
        known |= {
            host.name: Worker(host, address, 0, "", address, own, observed.mpi)
            for host in observed.local
        }
    return tuple(known[host.name] for host in observed.hostfile.hosts if host.name in known)


def _for_all_ranks(inp: PlanInput) -> dict[str, Owned]:
    """Find the variables that the user sets for all ranks."""
    never = inp.settings.no_forward
    moves = inp.settings.mpi_network is MpiNetwork.DATA
    found: dict[str, Owned] = {}

    for name, value in inp.environ.items():
        is_ompi = name.startswith("OMPI_")
        held_back = not is_ompi and any(fnmatchcase(name, item) for item in never)
        # An empty parameter is none to Open MPI; an empty NCCL_ variable may be meant.
        of_file = inp.of_files.get(name)
        # The setting wins over a file, but not over its *_exclude: Open MPI aborts where an
        # include is set beside that.
        moved = moves and of_file and not name.endswith("_exclude")
        if held_back or moved or (is_ompi and not value):
            continue
        by = of_file.path if of_file else "the launcher's environment"
        found[name] = Owned(value, Source.ENVIRONMENT, by)
    # Without a value, -x passes the launcher's own on.
    line = {
        name: found[name].value if value is None and name in found else value
        for name, value in inp.line.exports.items()
    }
    line |= dict.fromkeys(listed(inp))
    line |= {f"OMPI_MCA_{name}": value for name, value in inp.line.mca.items()}
    by = "the mpirun line"
    return found | {name: Owned(value, Source.FLAG, by) for name, value in line.items()}


# Not a path: each host finds its own mpiboot on PATH, as it finds the program.
_BEFORE: Final = ("mpiboot", "rank", "--")
_ADDRESS: Final = "MASTER_ADDR"
_PORT: Final = "MASTER_PORT"
MASTER_PORT: Final = "29500"  # PyTorch's own default (torch.distributed.run)


@dataclass(frozen=True, slots=True)
class RankEnv:
    """The words before each program, and the items and variables that they need."""

    before: tuple[str, ...] = ()
    items: tuple[Item, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def rank_env(inp: PlanInput, hosts: Sequence[Host]) -> RankEnv:
    """Decide whether `mpiboot rank` starts each program, and MASTER_ADDR and MASTER_PORT.

    The setting chooses both; where the user's line has `mpiboot rank`, only the latter are set.
    """
    given, (name, command, _) = inp.given["rank_env"], _BEFORE
    words = pairwise(inp.line.argv)
    written = any(a.rsplit("/", 1)[-1] == name and b == command for a, b in words)
    if not written and not inp.settings.rank_env:
        return RankEnv()
    before, items = () if written else _before(inp.observed), list[Item]()
    if before:
        if any(app.program is None for app in inp.line.apps):
            reason = "mpiboot can't find where the program starts on the mpirun line"
            hint = f"write `{' '.join(_BEFORE)}` there, before the program"
            unfit = failed("settings-conflict", f"{given}: {reason}", hint=hint)
            return RankEnv(items=(unfit,))
        reason = f"{given}: before each program"
        items.append(Decision("rank-env", " ".join(before), given.source, reason))
    first, left = job_hosts.first_host(inp, hosts)
    if left and not inp.owned(_ADDRESS):
        message = f"{left}: mpirun alone decides which host gets rank 0, so {_ADDRESS} is not set"
        hint = f"set {_ADDRESS} to that host's name in the launcher's pod"
        items.append(warning("settings-conflict", message, hint))
    port = Variable(_PORT, MASTER_PORT, "PyTorch's own default", Source.DEFAULT)
    # An address that isn't known leaves the user's own to be shown.
    found = [item for item in (_address(inp, first), port) if item.value or inp.owned(item.name)]
    variables = {item.name: item.value for item in found if not inp.owned(item.name)}
    return RankEnv(before, (*items, *found), variables)


def _before(observed: Observed) -> tuple[str, ...]:
    """Name mpiboot by its path where no host's PATH leads to it, and it is the same on all."""
    programs = {worker.facts.program for worker in _hosts(observed) if worker.facts}
    (program,) = programs if len(programs) == 1 else {""}
    return (program or _BEFORE[0], *_BEFORE[1:])


def _address(inp: PlanInput, name: str) -> Variable:
    """Give the address of rank 0's host; an empty value where that host isn't known."""
    observed = inp.observed
    called = {observed.called(item.host.name): item for item in observed.workers}
    worker, value = called.get(name), name
    reason = f"rank 0 runs on {name}: its address on the control link"
    if worker:
        value = (worker.facts.control_address if worker.facts else "") or worker.address
    elif observed.own and name in observed.local_names:
        value = observed.own.control_address or name
    else:
        reason = f"rank 0 runs on {name}, of which no address is known"
    return Variable(_ADDRESS, value, reason, Source.DETECTED)
