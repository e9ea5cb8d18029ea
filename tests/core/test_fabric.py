from __future__ import annotations

import pytest

from mpiboot.core.model import AttachmentSource, GidType, LinkLayer, PortState, RdmaPort


@pytest.mark.parametrize("word", [AttachmentSource, GidType, LinkLayer, PortState])
def test_a_word_that_is_not_known_here_reads_as_the_empty_one(
    word: type[AttachmentSource | GidType | LinkLayer | PortState],
) -> None:
    assert word("a newer kernel's word") is word("")
    assert word("") is word.UNKNOWN
    assert [word(item.value) for item in word] == list(word)


def test_of_a_port_nothing_but_its_number_may_be_known() -> None:
    port = RdmaPort(1)
    assert (port.state, port.link_layer) == (PortState.UNKNOWN, LinkLayer.UNKNOWN)
    assert (port.physical, port.netdev, port.rate, port.mtu) == ("", "", 0.0, 0)
    assert (port.gids, port.pkeys) == ((), ())
