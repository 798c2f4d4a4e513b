"""SLO classes: defaults, laxer classes on request, and configurations that are refused."""

from __future__ import annotations

import pytest

from dispatcher.policies.planning.slo import BATCH, CLASSES_MAX, INTERACTIVE, NORMAL, SloClass, SloClasses


def test_defaults_are_those_of_qlm() -> None:
    due_at = {each.name: each.due_at(100.0) for each in SloClasses().ordered}
    assert due_at == {"interactive": 120.0, "normal": 160.0, "batch": 3700.0}
    assert [each.name for each in SloClasses().ordered if each.is_deferred] == ["batch"]


@pytest.mark.parametrize(
    ("own", "requested", "expected"),
    [
        ("interactive", None, INTERACTIVE),
        ("normal", None, NORMAL),
        ("normal", "normal", NORMAL),
        ("interactive", "batch", BATCH),
        ("normal", "batch", BATCH),
    ],
)
def test_own_and_laxer_classes_are_given(own: str, requested: str | None, expected: SloClass) -> None:
    assert SloClasses().resolve(own, requested) == expected


@pytest.mark.parametrize(
    ("own", "requested", "message"),
    [
        ("normal", "interactive", "'interactive' is stricter than 'normal'; allowed are normal, batch"),
        ("batch", "normal", "'normal' is stricter than 'batch'; allowed are batch"),
        ("normal", "urgent", "unknown SLO class 'urgent'; there are interactive, normal, batch"),
        ("gold", None, "unknown SLO class 'gold'; there are interactive, normal, batch"),
        ("normal", "", "unknown SLO class ''"),
    ],
)
def test_a_stricter_or_unknown_class_is_refused(own: str, requested: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SloClasses().resolve(own, requested)


def test_classes_are_configurable_and_equally_strict_ones_exchangeable() -> None:
    classes = SloClasses([SloClass("slow", 30.0), SloClass("chat", 2.0), SloClass("agent", 2.0)])
    assert [each.name for each in classes.ordered] == ["chat", "agent", "slow"]
    assert classes.resolve("chat", "agent").name == "agent"
    assert classes.resolve("agent", "chat").name == "chat"


@pytest.mark.parametrize("first_token_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_class_needs_a_positive_time(first_token_s: float) -> None:
    with pytest.raises(ValueError, match="first_token_s must be above 0"):
        SloClass("chat", first_token_s)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([], "configure 1 to 8"),
        ([SloClass(f"c{number}", 1.0) for number in range(CLASSES_MAX + 1)], "9 SLO classes"),
        ([SloClass("chat", 1.0), SloClass("chat", 2.0)], "same name: chat, chat"),
        ([NORMAL, SloClass("night", 30.0, is_deferred=True)], r"due after all others \(60 s\): night"),
    ],
)
def test_impossible_configurations_are_refused(classes: list[SloClass], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SloClasses(classes)


def test_a_class_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        SloClass("", 1.0)
