"""The private ssh_config that mpirun's own ssh gets: what the gate verified, and no prompts.

Pure text making. A user's own ssh arguments are read into configuration lines behind ours: ssh
keeps the first value that it finds, so that a copied ``StrictHostKeyChecking=no`` can't switch
checking off.
"""

from __future__ import annotations

import getopt
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mpiboot.core.launch_spec import EVENTS
from mpiboot.core.model import HostKeys, Identity

# What the setting of the host keys is called in ssh's configuration.
STRICT: Final = {HostKeys.JOB: "yes", HostKeys.ACCEPT_NEW: "accept-new", HostKeys.OFF: "no"}

KNOWN_HOSTS: Final = "known_hosts"
SSH_CONFIG: Final = "ssh_config"
# ssh's own, of which the first value counts.
FILES: Final = ("~/.ssh/config", "/etc/ssh/ssh_config")
# The name under which the job's host key is pinned: one key for every pod of the job.
ALIAS: Final = "mpiboot-job"

# ssh's letters, for getopt; what those with a keyword stand for; and flags that are passed on.
LETTERS: Final = "46AaB:b:Cc:D:E:e:F:fGgI:i:J:KkL:l:Mm:NnO:o:P:p:Q:qR:S:sTtVvW:w:XxYy"
_MEANT: Final = {
    "-p": "Port",
    "-i": "IdentityFile",
    "-l": "User",
    "-c": "Ciphers",
    "-m": "MACs",
    "-J": "ProxyJump",
    "-b": "BindAddress",
    "-B": "BindInterface",
    "-4": "AddressFamily inet",
    "-6": "AddressFamily inet6",
    "-C": "Compression yes",
}
_FLAGS: Final = ("-v", "-T", "-n", "-k")
# The only keywords of a user's that are passed on. None of them decides which host key is accepted;
# files that Include names and options of ssh to come are read behind ``pins``.
_ALLOWED_TEXT: Final = (
    "addressfamily bindaddress bindinterface certificatefile challengeresponseauthentication "
    "ciphers compression connectionattempts connecttimeout gssapiauthentication "
    "hostbasedauthentication hostkeyalgorithms identitiesonly identityagent identityfile include "
    "ipqos kbdinteractiveauthentication "
    "kexalgorithms macs numberofpasswordprompts passwordauthentication proxycommand proxyjump "
    "proxyusefdpass pubkeyacceptedalgorithms pubkeyacceptedkeytypes pubkeyauthentication "
    "rekeylimit requiredrsasize sendenv serveralivecountmax serveraliveinterval setenv "
    "tcpkeepalive"
)
_ALLOWED: Final = frozenset(_ALLOWED_TEXT.split())
# How long ssh waits and how often it tries: a user's values come before mpiboot's own.
_PATIENCE: Final = {
    "connectionattempts": 3,  # the gate has just seen the host answer: a dropped SYN, a full queue
    "connecttimeout": 30,  # seconds
    "serveraliveinterval": 0,  # seconds; from the keep-alive setting
    "serveralivecountmax": 0,  # likewise
}
# Probes in the time of the keep-alive setting, and the most seconds between two: NAT and load
# balancers forget flows that are idle for longer.
_PROBES, _MOST_BETWEEN = 10, 30.0
# ssh_config(5), TIME FORMATS.
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_TIME: Final = re.compile(r"(?:[0-9]{1,9}[smhdw])*[0-9]{1,9}[smhdw]?", re.IGNORECASE)
_TIME_PART: Final = re.compile(r"([0-9]+)([smhdw]?)")
# What asyncssh can't do as it is told.
_ONLY_TEXT: Final = (
    "bindaddress bindinterface ciphers hostkeyalgorithms kexalgorithms macs "
    "pubkeyacceptedalgorithms pubkeyacceptedkeytypes"
)
_ONLY_SSH: Final = frozenset(_ONLY_TEXT.split())


@dataclass(frozen=True, slots=True)
class UserArgs:
    """A user's own ssh arguments, read.

    ``lines`` are configuration lines; ``words`` flags that have no such form; ``without_effect``
    what mpiboot sets itself or does not pass on. ``port`` (0: none) and ``user`` are for the gate,
    whose logins all others follow. ``file`` is read instead of ssh's own, ``text`` is all of them.
    """

    lines: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    port: int = 0
    user: str = ""
    file: str = ""
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SshTimeouts:
    """How often a login is tried, and after how many seconds a host counts as lost.

    ``attempts`` logins of at most ``timeout`` seconds each; ``probes`` unanswered keep-alives,
    one every ``interval`` seconds (0: none is sent).
    """

    attempts: int
    timeout: int
    interval: int
    probes: int


def timeouts_from(keepalive: float, args: UserArgs = UserArgs()) -> SshTimeouts:
    """Give the timeouts of SSH: from the user's ssh arguments, else mpiboot's defaults.

    Args:
        keepalive: the setting: seconds after which a silent worker is lost; 0 for never.
        args: the user's ssh arguments; ssh itself complains of values that it can't read.
    """
    interval = math.ceil(min(keepalive / _PROBES, _MOST_BETWEEN))
    probes = math.ceil(keepalive / interval) if interval else 0
    values = {**_PATIENCE, "serveraliveinterval": interval, "serveralivecountmax": probes}
    for line in reversed(args.lines):  # ssh keeps the first
        keyword, _, value = line.partition(" ")
        if keyword.lower() in values and _TIME.fullmatch(value):
            parts = _TIME_PART.findall(value.lower())
            values[keyword.lower()] = sum(int(count) * _UNITS[unit] for count, unit in parts)
    return SshTimeouts(*(max(0, values[name]) for name in _PATIENCE))


def read_args(text: str) -> UserArgs:
    """Read the value of ``plm_rsh_args`` and its kin: split at blanks, as Open MPI splits it."""
    lines: list[str] = []
    words: list[str] = []
    gates: dict[str, str] = {}  # ssh takes the first value
    try:
        options, without_effect = getopt.getopt(text.split(), LETTERS)
    except getopt.GetoptError:  # ssh itself would end with an error
        return UserArgs(without_effect=(text,), text=text)
    files = [given for letter, given in options if letter == "-F"]  # ssh takes the last
    for letter, given in options:
        if letter == "-F":
            continue
        if letter in _FLAGS:
            words.append(letter)
            continue
        line = f"{_MEANT.get(letter, letter)} {given}"
        if letter == "-o":
            line = given.replace("=", " ", 1)
        keyword, _, value = line.strip().partition(" ")
        if keyword.lower() == "user" or (keyword.lower() == "port" and value.strip().isdecimal()):
            gates.setdefault(keyword.lower(), value.strip())
        elif keyword.lower() not in _ALLOWED or not value.strip():
            named = line if keyword[:1] == "-" else f"{keyword}={value}"
            without_effect.append(named.rstrip("= "))
        else:
            lines.append(f"{keyword} {value.strip()}")
    port, user, file = int(gates.get("port", 0)), gates.get("user", ""), "".join(files[-1:])
    return UserArgs(tuple(lines), tuple(words), tuple(without_effect), port, user, file, text)


def only_by_ssh(args: UserArgs) -> tuple[str, ...]:
    """List a user's ssh arguments that have no effect on a login by asyncssh."""
    return tuple(item for item in args.lines if item.partition(" ")[0].lower() in _ONLY_SSH)


@dataclass(frozen=True, slots=True)
class LaunchHost:
    """One host as mpirun names it, where it was verified to be, and the host key that it showed.

    Or a pattern of names; its address then is ``%h``, the name itself, and what that lacks. Empty:
    ssh connects by another host.
    ``key`` is a public key as a line: for ssh a host's own, empty where that is the job's; for
    the pool the one it must show, empty where any will do. ``by_ssh``: asyncssh can't log in there.
    ``proxy``, ``send`` and ``variables`` are as in ``client.HostSettings``.
    """

    name: str
    address: str
    port: int
    user: str
    key: str = ""
    by_ssh: bool = False
    proxy: str = ""
    send: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()

    @property
    def key_alias(self) -> str:
        """The name under which a key of the host's own is pinned."""
        return f"[{self.address or self.name}]:{self.port}"


def quoted(value: str) -> str:
    """Quote a value of ssh_config; a percent sign would be a token."""
    text = value.replace("%", "%%")
    if not any(char.isspace() or char in "\"'\\#" for char in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def pins(known_hosts: str, host_keys: HostKeys) -> dict[str, str]:
    """Give the options that decide which host key is accepted.

    ssh keeps the first value of each: they come first in its configuration and on its command line.

    Args:
        known_hosts: path of the file with the pinned host key.
        host_keys: ``job`` (pinned), ``accept-new`` or ``off``.
    """
    return {
        "StrictHostKeyChecking": STRICT[host_keys],
        "UserKnownHostsFile": quoted(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        # KnownHostsCommand is of OpenSSH 8.5; a list of the user's, for other clients, comes late.
        "IgnoreUnknown": "*",
        "KnownHostsCommand": "none",
        "VerifyHostKeyDNS": "no",
        "NoHostAuthenticationForLocalhost": "no",
        "CheckHostIP": "no",
        "UpdateHostKeys": "no",
        "GSSAPIKeyExchange": "no",  # would take the server's word for its Kerberos name
    }


def render(
    entries: Iterable[LaunchHost],
    *,
    key: str,
    known_hosts: str,
    host_keys: HostKeys,
    keepalive: float,
    user_args: UserArgs,
    files: Sequence[str] = FILES,
) -> str:
    """Write the configuration.

    Args:
        entries: the hosts; ssh matches the name that mpirun passes. Those with a key of their own
            are known by their address. None: any host is taken for one of the job.
        key: path of the private key's copy.
        known_hosts: path of the file with the pinned host key.
        host_keys: ``job`` (pinned), ``accept-new`` or ``off``.
        keepalive: seconds after which a silent worker is lost; 0: never.
        user_args: the user's own, behind ours.
        files: ssh's own, behind these.
    """
    wait = timeouts_from(keepalive, user_args)
    lines = []
    for entry in entries:
        lines += [
            f"Host {entry.name}",
            f"  Port {entry.port}",
            f"  User {quoted(entry.user)}",
        ]
        if entry.address:
            pattern = entry.address[:2] == "%h"
            lines.append(f"  HostName {entry.address if pattern else quoted(entry.address)}")
        if entry.proxy:
            lines.append(f"  ProxyCommand {entry.proxy}")
        own = entry.key and host_keys is not HostKeys.JOB
        lines.append(f"  HostKeyAlias {entry.key_alias if own else ALIAS}")
        if entry.by_ssh:  # as the pool does for others
            events = f"{known_hosts.rpartition('/')[0]}/{EVENTS}".replace("%", "%%")
            report = f"sh -c '[ -p {events} ] && echo connected %n 1<> {events}'"
            lines += ["  PermitLocalCommand yes", f"  LocalCommand {report}"]
        else:  # the job's key is all that it takes
            lines += ["  IdentitiesOnly yes", "  IdentityAgent none"]
    lines.append("Host *")
    if not lines[1:] and host_keys is HostKeys.JOB:  # of whatever host
        lines.append(f"  HostKeyAlias {ALIAS}")
    lines += [
        f"  IdentityFile {quoted(key)}",
        *(f"  {name} {value}" for name, value in pins(known_hosts, host_keys).items()),
        "  BatchMode yes",
        "  PreferredAuthentications publickey",
        "  ForwardAgent no",
        "  ForwardX11 no",
        "  ClearAllForwardings yes",
        "  ControlMaster no",
        "  ControlPath none",
        "  RequestTTY no",
        "  RemoteCommand none",
        "  SessionType default",
        "  StdinNull no",
        "  ForkAfterAuthentication no",
        "  Tunnel no",
        "  LogLevel ERROR",
    ]
    lines += [f"  {line}" for line in user_args.lines]
    files = (user_args.file,) if user_args.file else files
    lines += [f"  Include {quoted(file)}" for file in files if file != "none"]
    lines += [
        # The user's own choice, which stands before, wins.
        "Host *",
        # ssh's own, which it does not offer beside the job's.
        *(f"  IdentityFile ~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ed25519")),
        f"  ConnectTimeout {wait.timeout}",
        f"  ConnectionAttempts {wait.attempts}",
        f"  ServerAliveInterval {wait.interval}",
        f"  ServerAliveCountMax {wait.probes}",
    ]
    return "\n".join(lines) + "\n"


def unusable(ssh: str, identity: Identity) -> str:
    """Say why no ssh can run here; empty where it can.

    Args:
        ssh: the path of the installed ssh; empty where there is none.
        identity: this pod's user.
    """
    if not ssh:
        return "there is no ssh on PATH"
    if not identity.known:
        return f"{ssh} refuses uid {identity.uid}, which has no passwd entry"
    return ""
