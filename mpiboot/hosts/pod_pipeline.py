"""One host's way through the gate where its pod is entered by kubectl: its state, then the facts.

No name is asked for and nobody logs in: the API server tells whether the pod runs and at which
address, and ``kubectl exec`` runs the gate's one command in it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Host, NoFacts, Worker
from mpiboot.hosts import retry_delay
from mpiboot.hosts.kubectl import Kubectl
from mpiboot.hosts.kubectl_pods import Obstacle, Trouble, pod_of
from mpiboot.hosts.pipeline import Pipelines
from mpiboot.hosts.progress import HostState, Stage
from mpiboot.network import links
from mpiboot.ssh.attempt import Attempt, Outcome, Target

# A Role may be applied a moment after the job; a no that is still a no after this is for good.
_CONFIRM: Final = 2.0


class PodPipelines(Pipelines):
    """The pipelines of hosts whose pods kubectl enters."""

    def prepare(self) -> asyncio.Future[Any]:
        """Give what is there already: no library, and no key."""
        return asyncio.ensure_future(asyncio.sleep(0))

    async def run(self, state: HostState) -> Worker | None:
        """Bring one host through the gate; None for this pod itself.

        Raises:
            MpibootError: what failed will not get better by waiting.
        """
        if self.is_own_name(state.host):
            self._set(state, Stage.READY)
            return None
        pod = pod_of(state.host.name)
        if not pod:
            said = "this host is an address, and kubectl enters a pod by its name"
            raise error("hostfile-invalid", said, host=state.host.name)
        # What is missing is the pod, never a name's address.
        state.resolved = True
        self._set(state, Stage.KUBECTL)
        self._reaching += 1
        try:
            return await self._enter(state, pod)
        finally:
            self._reaching -= 1

    async def moved(self, worker: Worker) -> str:
        """Tell where the pod of a host that was ready is now; empty where it still is there."""
        found = await self._kubectl.look(pod_of(worker.host.name))
        if found.obstacle is None:
            now = ", ".join(found.addresses)
            there = worker.address in found.addresses
            return "" if there else f"its pod now has the address {now}"
        # Who gets no answer knows nothing of the pod.
        known = found.obstacle.trouble in (Trouble.NO_POD, Trouble.NOT_RUNNING)
        return f"{found.obstacle.trouble.value}: {found.obstacle.said}" if known else ""

    def restart(self, state: HostState) -> None:
        """Put a host that was ready back to the beginning; ``run`` is to be called again."""
        self._set(state, Stage.KUBECTL)

    @cached_property
    def _kubectl(self) -> Kubectl:
        assert self._access.pods is not None  # noqa: S101 - the gate has chosen by it
        return Kubectl(self._access.pods, limit=self._limits.command)

    async def _enter(self, state: HostState, pod: str) -> Worker | None:
        started, refused = time.monotonic(), False
        while True:
            found = await self._once_in(state.host, pod)
            if not isinstance(found, Obstacle):
                self._set(state, Stage.READY)
                return found
            state.hint = found.hint
            # What kubectl says is all that is known of a failure without a name; hosts with the
            # same words are told together.
            known = found.trouble is not Trouble.FAILED
            reason = found.trouble.value if known else _detail(found).replace(pod, "this pod")
            self._set(state, Stage.KUBECTL, reason, _detail(found))
            if found.trouble.final and (refused or self._once_only):
                raise _error(found, state.host)
            self._stop_if_once(state)
            refused = found.trouble.final
            wait = retry_delay.pause(time.monotonic() - started, self._reaching)
            await asyncio.sleep(_CONFIRM if refused else wait)

    async def _once_in(self, host: Host, pod: str) -> Worker | Obstacle | None:
        kubectl = self._kubectl
        there = await kubectl.look(pod)
        if there.obstacle is not None:
            return there.obstacle
        if any(links.is_local(address) for address in there.addresses):
            return None
        output = await kubectl.run(pod, self._command)
        if isinstance(output, Obstacle):
            return output
        ipv6 = self._access.ipv6
        first = sorted(there.addresses, key=lambda item: ipv6 is not None and (":" in item) != ipv6)
        target = Target(host.name, first[0], 0, "")
        local = links.source_address(target.address)
        attempt = Attempt(target, Outcome.OK, output=output, local_address=local)
        return replace(self.answered(host, attempt), no_facts=NoFacts.BY_KUBECTL)


def _detail(found: Obstacle) -> str:
    return f"{found.trouble.value}: {found.said}"


def _error(found: Obstacle, host: Host) -> MpibootError:
    return error(
        "kubectl-denied", _detail(found), host=host.name, evidence=found.evidence, hint=found.hint
    )
