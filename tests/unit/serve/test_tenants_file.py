"""Tenants from a YAML file: every field, the simulator's file too, and each mistake with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.model.errors import ConfigurationError
from dispatcher.model.tenants import Tenant
from dispatcher.policies.clocks import Share
from dispatcher.policies.throttling import ThrottleLimits
from dispatcher.policies.tiers import Tier
from dispatcher.settings.config import load_config
from dispatcher.shard.settings import SWAP_CHARGE, TierFloors
from headgate.tenants_file import read_tenants

EXAMPLE = Path(__file__).parents[3] / "examples/tenants.yaml"


def read(tmp_path: Path, text: str) -> list[Tenant]:
    path = tmp_path / "tenants.yaml"
    path.write_text(text)
    return read_tenants(path).wanted()


def test_every_field(tmp_path: Path) -> None:
    line = "{weight: 2, rate_per_s: 5, burst: 20, tier: premium, queue_max: 7, max_tokens: 9, models: [m]}"
    quiet, flood = read(tmp_path, f"tenants:\n  quiet: {line}\n  flood:\n")
    assert quiet == Tenant("quiet", Share(2.0, 5.0, 20.0), Tier.PREMIUM, ("m",), 7, 9)
    assert flood == Tenant("flood")


def test_the_simulators_file_is_read_too() -> None:
    assert [tenant.name for tenant in read_tenants(EXAMPLE).wanted()] == ["quiet", "flood"]


def test_settings_of_the_gate_become_its_configuration(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    path.write_text("tenants: {a: }\ntiers: {shares: {premium: 0.6}, slack: 100}\nthrottling: {user: 5, app: 9}\n")
    settings = load_config(read_tenants(path).environment()).shard_settings()
    assert settings.tiers == TierFloors({"premium": 0.6}, 100.0)
    assert settings.throttling == ThrottleLimits(5, 9)
    assert read_tenants(EXAMPLE).environment() == {}


@pytest.mark.parametrize("word", ["drop", "refuse"])
def test_the_file_says_what_happens_to_unknown_fields(tmp_path: Path, word: str) -> None:
    path = tmp_path / "tenants.yaml"
    path.write_text(f"tenants: {{a: }}\nunknown_fields: {word}\n")
    assert load_config(read_tenants(path).environment()).unknown_fields == word


def test_the_file_says_how_many_tokens_are_expected(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    path.write_text("tenants: {a: }\nexpected_tokens: 500\n")
    assert load_config(read_tenants(path).environment()).expected_tokens == 500
    path.write_text("tenants: {a: }\nadapter_load_tokens: 900\n")
    assert load_config(read_tenants(path).environment()).adapter_load_tokens == 900


def test_the_file_says_what_swaps_cost(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    path.write_text("tenants: {a: }\n")
    assert load_config(read_tenants(path).environment()).shard_settings().swap_charge == SWAP_CHARGE
    path.write_text("tenants: {a: }\nswap_charge: 0\n")
    assert load_config(read_tenants(path).environment()).shard_settings().swap_charge == 0.0


def test_slo_classes_and_the_classes_of_tenants(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    classes = "slo_classes: {chat: {first_token_s: 20}, night: {first_token_s: 3600, deferred: true}}"
    path.write_text(f"tenants: {{a: {{slo_class: night}}, b: }}\n{classes}\n")
    tenants = read_tenants(path)
    assert [tenant.slo_class for tenant in tenants.wanted()] == ["night", ""]
    config = load_config(tenants.environment())
    assert config.shard_settings().slack is not None
    assert config.slo_classes is not None
    found = config.slo_classes.classes()
    assert [(each.name, each.first_token_s, each.is_deferred) for each in found.ordered] == [
        ("chat", 20.0, False),
        ("night", 3600.0, True),
    ]


def test_classes_that_are_configured_elsewhere(tmp_path: Path) -> None:
    """As those of a fleet's file. The file's own classes stand in their place."""
    path = tmp_path / "tenants.yaml"
    path.write_text("tenants: {a: {slo_class: soon}}\n")
    assert [tenant.slo_class for tenant in read_tenants(path, classes=["soon"]).wanted()] == ["soon"]
    with pytest.raises(ConfigurationError, match="lacks; there are: later, night"):
        read_tenants(path, classes=["later", "night"])
    path.write_text("tenants: {a: {slo_class: soon}}\nslo_classes: {chat: {first_token_s: 20}}\n")
    with pytest.raises(ConfigurationError, match="there are: chat"):
        read_tenants(path, classes=["soon"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tenants: {a: {weight: 0}}", "key 'tenants.a.weight': should be a number from 0.01 to 100, not 0:"),
        ("tenants: {a: {weight: .nan}}", "from 0.01 to 100, not nan"),
        ("tenants: {a: {weight: 1e-306}}", "from 0.01 to 100, not 1e-306"),
        ("tenants: {a: {weight: '2'}}", "from 0.01 to 100, not '2'"),
        ("tenants: {a: {weight: true}}", "from 0.01 to 100, not True"),
        ("tenants: {a: {rate_per_s: 1.0e-308}}", "should be 0 or a number from 0.001 to 1e+07, not 1e-308"),
        ("tenants: {a: {rate_per_s: .inf}}", "from 0.001 to 1e+07, not inf"),
        ("tenants: {a: {burst: -1}}", "should be a number from 0 to 1e+12, not -1"),
        ("tenants: {a: {wait: 1}}", "wait"),
        ("tenants: {a: {tier: system}}", "premium"),
        ("tenants: {a: {models: []}}", "models"),
        ("tenants: {}", "tenants"),
        ("tenants: {a: }\ntiers: {shares: {premium: 0.6, standard: 0.6}}", "add up to at most 1"),
        ("tenants: {a: }\nthrottling: {user: 0, app: 1}", "throttling.user"),
        ("tenants: {a: }\nunknown_fields: keep", "unknown_fields"),
        ("tenants: {a: }\nexpected_tokens: 0", "expected_tokens"),
        ("tenants: {a: }\nswap_charge: 2", "swap_charge"),
        ("tenants: {a: }\nadapter_load_tokens: -5", "adapter_load_tokens"),
        ("tenants: {a: }\nslo_classes: {}", "configure 1 to 8"),
        ("tenants: {a: }\nslo_classes: {c: {first_token_s: 0}}", "slo_classes.c.first_token_s"),
        ("tenants: {a: }\nslo_classes: {c: 20}", "slo_classes.c"),
        ("tenants: {a: {slo_class: c}}", "there are: none"),
        ("tenants: {a: {slo_class: d}}\nslo_classes: {c: {first_token_s: 1}}", "there are: c"),
        (
            "tenants: {a: }\nslo_classes: {c: {first_token_s: 9}, d: {first_token_s: 1, deferred: true}}",
            "deferred classes must be due after all others",
        ),
        ("tenants: [a]", "tenants"),
        ("tenants: {No Name: }", "No Name"),
        ("queues: {}", "tenants"),
        ("a: [", "not YAML"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)
    assert "tenants.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)
