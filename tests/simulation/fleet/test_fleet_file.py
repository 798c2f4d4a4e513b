"""The YAML file of a fleet: what it says, and one sentence with the place for whatever is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.model.errors import ConfigurationError
from headgate.simulator.fleet.spec import read_fleet

EXAMPLE = Path(__file__).parents[3] / "examples" / "simulated-fleet.yaml"
KINDS = "kinds:\n  k:\n    a: {engine: a10g-llama2-7b, swap_s: 2}\n    b: {engine: a100-llama2-13b, swap_s: 3}\n"
WORKERS = "workers:\n  - {name: w, kind: k}\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    return path


def test_the_example() -> None:
    fleet = read_fleet(EXAMPLE)
    assert [(worker.name, worker.loaded) for worker in fleet.workers] == [("a", "chat-13b"), ("b", None)]
    assert fleet.models == ("chat-13b", "code-8b", "law-8b")
    assert [(each.name, each.first_token_s, each.is_deferred) for each in fleet.classes] == [
        ("interactive", 20.0, False),
        ("normal", 60.0, False),
        ("batch", 3600.0, True),
    ]
    assert fleet.default_class == "normal"
    assert [(each.swap_s, each.slots) for each in fleet.workers[0].models.values()] == [(3, 70), (2, 64), (2, 64)]


def test_a_count_numbers_the_workers_and_models_may_be_a_part(tmp_path: Path) -> None:
    text = KINDS + "workers:\n  - {name: w, kind: k, count: 3, models: [b]}\n  - {name: one, kind: k}\ndrain_s: 5\n"
    fleet = read_fleet(written(tmp_path, text))
    assert [(worker.name, list(worker.models)) for worker in fleet.workers] == [
        *((f"w-{number}", ["b"]) for number in (1, 2, 3)),
        ("one", ["a", "b"]),
    ]
    assert (fleet.drain_s, fleet.default_class) == (5.0, "normal")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (WORKERS, "key 'kinds': is missing"),
        (KINDS + "workers: []\n", "key 'workers': needs at least one worker"),
        (KINDS + WORKERS.replace("kind: k", "kind: x"), "line 6, column 15, key 'workers[0].kind': 'x' is no kind"),
        (KINDS + WORKERS.replace("k}", "k, models: [c]}"), "'c' is no model of 'k': a, b"),
        (KINDS + WORKERS.replace("k}", "k, loaded: c}"), "'c' is not one of its models: a, b"),
        (KINDS + WORKERS.replace("k}", "k, models: [a]}"), "key 'kinds.k.b': fits no worker"),
        (KINDS + WORKERS + "  - {name: w, kind: k}\n", "two workers have the name 'w'"),
        (KINDS + WORKERS + "  - {name: w-1, kind: k}\n  - {name: w, kind: k, count: 2}\n", "the name 'w-1'"),
        (
            KINDS + WORKERS.replace("k}", "k, count: 2000}"),
            "key 'workers[0].count': should be less than or equal to 1000, not '2000'",
        ),
        (
            KINDS.replace("swap_s: 2", "swap_s: -1") + WORKERS,
            "line 3, column 33, key 'kinds.k.a.swap_s': should be greater than or equal to 0, not '-1'",
        ),
        (KINDS.replace("swap_s: 2", "swap_s: .inf") + WORKERS, "key 'kinds.k.a.swap_s'"),
        (KINDS.replace("swap_s: 2", "swap_s: 99999") + WORKERS, "key 'kinds.k.a.swap_s'"),
        (KINDS.replace("a10g-llama2-7b", "h100") + WORKERS, "key 'kinds.k.a.engine': unknown engine 'h100'"),
        (KINDS + WORKERS + "class: {}\n", "is not known here (did you mean 'classes'?)"),
        (KINDS + WORKERS + "classes: {soon: {first_token_s: 0}}\n", "key 'classes.soon.first_token_s'"),
        (KINDS + WORKERS + "default_class: soon\n", "key 'default_class': unknown SLO class 'soon'"),
        (
            KINDS + WORKERS + "classes: {late: {first_token_s: 5, deferred: true}, soon: {first_token_s: 9}}\n",
            "key 'classes': deferred classes must be due after all others",
        ),
        (KINDS.replace("    b:", "    a:") + WORKERS, "the key 'a' appears twice"),
        ("", "is empty"),
    ],
)
def test_errors_name_the_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_fleet(written(tmp_path, text))
    assert str(caught.value).startswith(str(tmp_path / "fleet.yaml"))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="none\\.yaml"):
        read_fleet(tmp_path / "none.yaml")
