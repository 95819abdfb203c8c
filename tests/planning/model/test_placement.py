from __future__ import annotations

import pytest

from hopsum.network.builder import NetworkBuilder
from hopsum.network.model import NetworkError
from hopsum.planning.model.placement import hosts_named, place


def test_hosts_are_found_by_names_and_labels() -> None:
    builder = NetworkBuilder("zoo")
    builder.add_switch("s1")
    for name, label in (("LosAngele", "Los Angeles"), ("h2", "LosAngele"), ("ps", "")):
        builder.add_host(name, label=label)
        builder.link(name, "s1")
    network = builder.build()
    # A name comes before another host's label.
    assert hosts_named(network, ["Los Angeles", "LosAngele"]) == ("LosAngele", "LosAngele")
    placement = place(network, ["Los Angeles", "h2"], 1)
    assert (placement.workers, placement.servers) == (("LosAngele", "h2"), ("ps",))
    with pytest.raises(NetworkError, match="there is no host 'Chicago' in zoo"):
        place(network, ["Chicago"], 1)
