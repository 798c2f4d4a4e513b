"""What the workers of a model support together."""

from dispatcher.model.fleet import TEXT, Capability, common_capabilities


def test_what_counts_is_what_each_worker_supports() -> None:
    assert common_capabilities([]) == frozenset()
    assert common_capabilities([("chat", "tools"), ("chat", "tools", "n")]) == {Capability.CHAT, Capability.TOOLS}
    assert common_capabilities([(), ("chat", "completion", "n")]) == TEXT, "a worker of an older version generates text"
