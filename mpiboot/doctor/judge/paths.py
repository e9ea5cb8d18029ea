"""The ways between hosts that were measured, judged: reach, path MTU, round trip, rate. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import counted
from mpiboot.doctor.judge.image import ok
from mpiboot.network.paths import PathSeen
from mpiboot.network.worker_pairs import Reached

_SHOWN: Final = 4
_WHY: Final = {
    Reached.SILENT: "no answer",
    Reached.REFUSED: "refused",
    Reached.NO_ROUTE: "no route",
}
# So much slower than the middle one is worth a look.
_TIMES: Final = 4
_LEAST: Final = 2000  # microseconds; what is quicker is never called slow
_FEW: Final = 4  # ways of which there is a middle one


def _where(one: PathSeen) -> str:
    kind = "control" if one.control else "data"
    return f"{one.source} to {one.target} ({one.address} by the {kind} link {one.link})"


def _finding(check: str, level: Level, bad: Sequence[tuple[PathSeen, str]]) -> Finding:
    """Tell what is wrong with some ways, of the host that all of them begin or end at."""
    lines = [f"{_where(one)}: {what}" for one, what in bad]
    more = f"; {len(bad) - 1} more" if len(bad) > 1 else ""
    ends = [{one.source, one.target} for one, _ in bad]
    common = sorted(set.intersection(*ends))
    host, hosts = (common[0], ()) if len(common) == 1 else ("", tuple(common))
    hint = BY_REFERENCE[check].hint
    return Finding(check, level, lines[0] + more, host, tuple(lines[1:_SHOWN]), hint, hosts)


def reach(seen: Sequence[PathSeen]) -> Iterable[Finding]:
    """Judge who reaches whom."""
    cut = [(one, _WHY[one.how]) for one in seen if one.how in _WHY]
    late = [_where(one) for one in seen if one.how is None]
    if cut:
        yield _finding("network-reach", Level.FAIL, cut)
    if late:
        said = (
            f"not measured in time: {counted(len(late), 'way')} of {len(seen)}, such as {late[0]}"
        )
        yield Finding("network-reach", Level.UNKNOWN, said)
    if seen and not cut and not late:
        links = ", ".join(dict.fromkeys(one.link for one in seen))
        yield ok("network-reach", f"{counted(len(seen), 'way')} on {links}: all come through")


def path_mtu(seen: Sequence[PathSeen]) -> Iterable[Finding]:
    """Judge whether packets as large as the links' MTU come through unbroken."""
    small = [
        (
            one,
            (
                f"packets of {one.mtu} bytes come through, larger ones are lost; the links have "
                f"{one.wanted}"
            ),
        )
        for one in seen
        if one.mtu is not None and one.mtu < one.wanted
    ]
    small += [
        (one, "small packets come through, large ones are lost")
        for one in seen
        if one.how is Reached.STALLED and (one.mtu is None or one.mtu >= one.wanted)
    ]
    measured = [one for one in seen if one.mtu is not None]
    unknown = [one for one in seen if one.how is Reached.CONNECTED and one.mtu is None]
    if small:
        yield _finding("path-mtu", Level.FAIL, small)
    elif measured:
        sizes = sorted({(one.link, one.wanted) for one in measured})
        said = ", ".join(f"{size} on {link}" for link, size in sizes)
        yield ok("path-mtu", f"packets as large as the links' MTU come through: {said}")
    if unknown:
        said = f"no answer by UDP on {counted(len(unknown), 'way')}, such as {_where(unknown[0])}"
        yield Finding("path-mtu", Level.UNKNOWN, f"{said}; TCP's large packets come through")


def speed(seen: Sequence[PathSeen]) -> Iterable[Finding]:
    """Judge round trips and rates of a network by its middle one."""
    for link in dict.fromkeys(one.link for one in seen):
        on_link = [one for one in seen if one.link == link]
        trips = {one: one.microseconds for one in on_link if one.microseconds is not None}
        rates = {one: one.rate for one in on_link if one.rate is not None}
        if not trips:
            continue
        middle = median(trips.values())
        longest = _time(max(trips.values()))
        said = f"on {link} a round trip takes {_time(middle)} in the middle, {longest} at most"
        odd = [
            (one, f"a round trip takes {_time(trip)}, of the others {_time(middle)}")
            for one, trip in trips.items()
            if len(trips) >= _FEW and trip > max(_LEAST, _TIMES * middle)
        ]
        if rates:
            usual, least = median(rates.values()), _rate(min(rates.values()))
            said += f"; one TCP stream carries {_rate(usual)}, {least} at least"
            odd += [
                (one, f"one TCP stream carries {_rate(rate)}, the others {_rate(usual)}")
                for one, rate in rates.items()
                if len(rates) >= _FEW and rate * _TIMES < usual
            ]
        if odd:
            yield _finding("path-speed", Level.WARN, odd)
        yield ok("path-speed", said)


def _time(microseconds: float) -> str:
    return f"{microseconds / 1000:.3g} ms" if microseconds >= 1000 else f"{microseconds:.0f} us"  # noqa: PLR2004 - units


def _rate(rate: float) -> str:
    bits = rate * 8
    return f"{bits / 1e9:.3g} Gb/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mb/s"  # noqa: PLR2004 - units
