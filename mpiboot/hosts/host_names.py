"""By which name a host is asked for: as the hostfile has it, or with the cluster's domain."""

from __future__ import annotations

from mpiboot.core import log
from mpiboot.core.setting_types import Auto, Switch
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.dns_answers import DnsAnswer
from mpiboot.job import names
from mpiboot.network import many_hosts


class HostNames:
    """Asks for names; ``renamed`` has those whose long form is used, by the hostfile's."""

    def __init__(self, resolver: Resolver, mode: Switch | Auto, domain: str) -> None:
        """Ask for none yet; ``mode`` is the setting ``rewrite_fqdn``."""
        self._resolver = resolver
        self._mode = mode
        self._domain = domain
        self.renamed: dict[str, str] = {}

    async def ask(self, name: str) -> DnsAnswer:
        """Ask for a name in the forms that the setting allows, and note which one is used."""
        mode = self._mode
        long = name if mode is Switch.OFF else names.long_form(name, self._domain) or name
        if mode is Switch.ON or name in self.renamed:
            answer = await self._resolver.ask(long)
            if long != name and answer.addresses:
                self.renamed[name] = long
            return answer
        answer = await self._resolver.ask(name)
        # Where the search list leads to the long form, the short one covers it.
        if answer.addresses or long == name or f"{long}." in answer.searched:
            return answer
        longer = await self._resolver.ask(long)
        if not longer.addresses:
            return answer
        # The record may have come between the two questions.
        answer = await self._resolver.ask(name)
        if answer.addresses:
            return answer
        self.renamed[name] = long
        # Of very many names the plan has the number and the first few.
        say = log.info if len(self.renamed) <= many_hosts.MOST else log.debug
        say("names", f"{name} resolves only as {long}: that name is used", host=name)
        return longer
