"""Options of local processes: every order that the gate's configuration takes, and one line for a mistake."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.orders.registry import ORDERS
from dispatcher.settings.config import Config
from headgate.machine.options import FleetOptions, stack_options

HOME = Path("home")
CONFIGURED = get_args(Config.model_fields["order"].annotation)


@pytest.mark.parametrize("order", CONFIGURED)
def test_every_configured_order_can_be_chosen(order: str) -> None:
    assert order in ORDERS
    assert stack_options(home=HOME, order=order).order == order


def test_no_other_order_can() -> None:
    assert set(get_args(FleetOptions.model_fields["order"].annotation)) == set(CONFIGURED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "steam"}, "--order"),
        ({"fronts": 0}, "--fronts"),
        ({"workers": 99}, "--workers"),
        ({"start_timeout_s": 0}, "--start-timeout"),
        ({"swap_gib": -1}, "--swap-gib"),
        ({"sleep_memory_gb": -1}, "--sleep-memory-gb"),
    ],
)
def test_a_mistake_names_its_option(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        stack_options(home=HOME, **options)
