"""Engine profiles: those that come with headgate, and files of one's own with every mistake named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dispatcher.model.errors import ConfigurationError
from headgate.simulator.engines.profile import DEFAULT_ENGINE, EngineProfile, engine_names, load_profile


@pytest.mark.parametrize("name", engine_names())
def test_each_profile_says_where_its_figures_come_from(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert len(profile.source) > 40


def test_the_default_is_the_measured_one() -> None:
    assert load_profile() == load_profile(DEFAULT_ENGINE)
    assert load_profile().fitted


def written(folder: Path, **changes: object) -> str:
    facts = {**load_profile().model_dump(), **changes}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in facts.items() if value != "absent"}))
    return str(path)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    profile = load_profile(written(tmp_path, name="mine", pool_tokens=123))
    assert isinstance(profile, EngineProfile)
    assert (profile.name, profile.pool_tokens) == ("mine", 123)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pool_tokens": 0}, "pool_tokens"),
        ({"pool_tokens": "absent"}, "pool_tokens"),
        ({"pool_tokens": "many"}, "pool_tokens"),
        ({"decode_base_s": -1.0}, "decode_base_s"),
        ({"decode_base_s": float("inf")}, "decode_base_s"),
        ({"steps_between_admissions": 0}, "steps_between_admissions"),
        ({"pool_size": 1}, "pool_size"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_key(tmp_path: Path, changes: dict[str, object], named: str) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(ConfigurationError, match=named) as refused:
        load_profile(path)
    assert path in str(refused.value)


@pytest.mark.parametrize("text", ["[", "- a\n- b\n", "", "\x00"])
def test_what_is_no_profile_at_all(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"mine\.yaml"):
        load_profile(str(path))


def test_an_unknown_name_lists_those_that_exist() -> None:
    with pytest.raises(ConfigurationError, match=DEFAULT_ENGINE):
        load_profile("h100-nothing")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        load_profile(str(tmp_path / "absent.yaml"))
