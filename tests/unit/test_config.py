"""The gate's configuration: defaults, variables, and errors that name the variable."""

from __future__ import annotations

import pytest

from dispatcher.config import load_config
from dispatcher.model.errors import ConfigurationError


class TestConfig:
    def test_defaults_and_variables(self) -> None:
        assert load_config({}).table == "headgate"
        assert load_config({"HEADGATE_ORDER": "fcfs", "OTHER": "x"}).order == "fcfs"

    def test_unknown_fields(self) -> None:
        assert not load_config({}).gate_settings().drops_unknown_fields
        assert load_config({"HEADGATE_UNKNOWN_FIELDS": "drop"}).gate_settings().drops_unknown_fields

    @pytest.mark.parametrize(
        ("name", "value"),
        [("HEADGATE_DEADLINE_S", "soon"), ("HEADGATE_ORDER", "random"), ("HEADGATE_UNKNOWN_FIELDS", "keep")],
    )
    def test_what_is_wrong_is_named(self, name: str, value: str) -> None:
        with pytest.raises(ConfigurationError, match=name):
            load_config({name: value})
