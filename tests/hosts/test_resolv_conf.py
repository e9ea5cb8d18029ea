"""What resolv.conf means and which names are asked for, as values."""

from __future__ import annotations

import pytest

from mpiboot.hosts.dns import ResolvConf, is_malformed, parse_resolv_conf, search_names

LONGEST = ".".join(["a" * 63] * 3 + ["a" * 61])
KUBELET = "nameserver 10.96.0.10\nsearch ns.svc.cluster.local. svc.cluster.local\noptions ndots:5\n"


def test_a_kubelets_file_is_read_and_search_has_no_final_dots() -> None:
    assert parse_resolv_conf(KUBELET) == ResolvConf(
        nameservers=("10.96.0.10",), search=("ns.svc.cluster.local", "svc.cluster.local"), ndots=5
    )


def test_of_several_search_lines_the_last_one_counts() -> None:
    assert parse_resolv_conf(f"{KUBELET}domain example.org\n").search == ("example.org",)


def test_comments_and_limits_are_glibcs() -> None:
    text = (
        "# by kubelet\nnameserver 10.0.0.10 ; first\nnameserver fd00::10\nnonsense\nnameserver\n"
        "nameserver 10.0.0.11\nnameserver 10.0.0.12\nsearch a.svc.cluster.local.\nsearch\n"
        "options ndots:99 timeout:2 attempts:x rotate\noptions use-vc ndots:x # ndots:3\n"
    )
    servers = ("10.0.0.10", "fd00::10", "10.0.0.11")
    assert parse_resolv_conf(text) == ResolvConf(servers, (), ndots=15, use_vc=True)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("w-0.job", ("w-0.job.a.", "w-0.job.b.", "w-0.job.")),
        ("w-0.job.ns", ("w-0.job.ns.", "w-0.job.ns.a.", "w-0.job.ns.b.")),
        ("w-0.job.", ("w-0.job.",)),
        (LONGEST, (f"{LONGEST}.",)),  # with a domain it is longer than a name may be
    ],
)
def test_names_are_asked_for_in_the_order_of_their_dots(name: str, asked: tuple[str, ...]) -> None:
    assert search_names(name, ResolvConf(search=("a", "b"), ndots=2)) == asked


@pytest.mark.parametrize(
    ("name", "malformed"),
    [
        ("w-0.job.", False),
        ("under_score", False),
        ("a" * 63, False),
        ("a" * 64, True),
        (".".join(["a" * 63] * 3 + ["a" * 61]), False),  # 253
        (".".join(["a" * 63] * 3 + ["a" * 62]), True),
        ("a..b", True),
        ("-a", True),
        ("a b", True),
        ("", True),
    ],
)
def test_no_nameserver_has_a_host_of_such_a_name(name: str, *, malformed: bool) -> None:
    assert is_malformed(name) is malformed
