"""What the workers of a model support together."""

from dispatcher.model.fleet import TEXT, Capability, common


def test_what_counts_is_what_each_worker_supports() -> None:
    assert common([]) == frozenset()
    assert common([("chat", "tools"), ("chat", "tools", "n")]) == {Capability.CHAT, Capability.TOOLS}
    assert common([(), ("chat", "completion", "n")]) == TEXT, "a worker of an older version generates text"
