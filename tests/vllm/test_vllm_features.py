"""Our scheduler beside vLLM's features, without a model: images, drafts of tokens, KV that a connector loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput
from vllm.v1.request import RequestStatus

from tests.support.vllm.scheduler_harness import SchedulerHarness
from tests.support.vllm.scheduler_setup import BaseConfig, FakeTime, Setup, base_config, fake_time

Make = Callable[..., SchedulerHarness]
"""Makes a harness of these fields of `Setup`."""


@pytest.fixture(scope="module")
def base() -> Iterator[BaseConfig]:
    with base_config() as found:
        yield found


@pytest.fixture
def time() -> Iterator[FakeTime]:
    with fake_time() as found:
        yield found


@pytest.fixture
def make(base: BaseConfig, time: FakeTime) -> Make:
    return lambda **setup: SchedulerHarness(base, Setup(**setup), time)


def prompt(tokens: int, family: int = 0) -> list[int]:
    return [family * 1000 + place for place in range(tokens)]


# ── Images ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_encoder(harness: SchedulerHarness, *, step: int, cache: int) -> SchedulerHarness:
    """Give the scheduler an encoder, with the tokens of a step and those that its cache holds."""
    harness.scheduler.max_num_encoder_input_tokens = step
    harness.scheduler.encoder_cache_manager = EncoderCacheManager(cache)
    return harness


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("step", "cache"), [(8, 100), (100, 8)], ids=["step", "cache"])
def test_no_request_is_evicted_for_one_whose_image_has_no_room(make: Make, ahead: bool, step: int, cache: int) -> None:
    """Two premium requests begin with an image each. The encoder has room for one of them, so one victim is enough."""
    harness = with_encoder(make(ahead=ahead, batch=2), step=step, cache=cache)
    for name in ("b1", "b2"):
        harness.add(name, prompt(4), 12, tier="background")
    harness.step(2)
    for name in ("p1", "p2"):
        harness.add(name, prompt(8, family=1), 2, tier="premium", images={0: 6})
    harness.step()
    assert "p1" in harness.running
    assert len(harness.running) == 2
    harness.finish()
    assert not harness.useless_evictions


def test_an_image_later_in_the_prompt_lets_its_request_begin(make: Make) -> None:
    harness = with_encoder(make(batch=3), step=8, cache=100)
    harness.add("b", prompt(4), 12, tier="background")
    harness.step()
    harness.add("p1", prompt(8, family=1), 2, tier="premium", images={0: 6})
    harness.add("p2", prompt(12, family=2), 2, tier="premium", images={4: 6})
    output = harness.schedule()
    assert (output.num_scheduled_tokens["p1"], output.num_scheduled_tokens["p2"]) == (8, 4)
    harness.finish()


def test_premium_does_not_wait_for_the_encoder_of_an_aged_request(make: Make, time: FakeTime) -> None:
    """vLLM admits none behind a request whose image has no room. So the plan puts the more urgent one before it."""
    harness = with_encoder(make(batch=4, tiers={"aging_per_s": 1.0}), step=0, cache=100)
    harness.add("b", prompt(4), 12, tier="background")
    harness.step()
    harness.add("s", prompt(8, family=1), 2, tier="standard", images={0: 6})
    time.now_s += 10.0
    gold = harness.add("p", prompt(8, family=2), 2, tier="premium")
    harness.step()
    assert len(gold.tokens) == 1
    harness.scheduler.max_num_encoder_input_tokens = 8
    harness.finish()


# ── Drafts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def step_with_drafts(harness: SchedulerHarness, drafts: int) -> None:
    """Run a step, and let the model runner draft tokens for the next one."""
    harness.step()
    names = harness.running
    harness.scheduler.update_draft_token_ids(DraftTokenIds(names, [[7] * drafts for _ in names]))


@pytest.mark.parametrize("drafts", [1, 3])
@pytest.mark.parametrize("step_tokens", [12, 64])
def test_rejected_drafts_are_not_charged(make: Make, drafts: int, step_tokens: int) -> None:
    """Beside an eviction, and a prompt that other requests' drafts leave fewer tokens of the step."""
    harness = make(blocks=24, batch=3, step_tokens=step_tokens)
    harness.scheduler.num_spec_tokens = drafts
    for number, tier in enumerate(("background", "background", "standard")):
        harness.add(f"r{number}", prompt(8, family=number), 20, tier=tier, tenant=f"t{number}")
    for _ in range(4):
        step_with_drafts(harness, drafts)
    harness.add("gold", prompt(30, family=9), 8, tier="premium", tenant="gold")
    while harness.scheduler.has_requests():
        step_with_drafts(harness, drafts)
        assert harness.steps < 200
    harness.check_end()
    assert harness.model_runner.drafts_rejected > 20
    assert harness.scheduler.counts.preemptions.total() == 1


# ── KV that a connector loads ─────────────────────────────────────────────────────────────────────────────────────────


class RemoteKv:
    """A connector's scheduler side: another engine has the first `tokens` tokens of the requests in `remote`, and they
    come some steps later."""

    requires_kv_delivery = False

    def __init__(self, tokens: int, remote: set[str]) -> None:
        self._tokens, self._remote = tokens, remote

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        found = self._tokens if request.request_id in self._remote else 0
        return found, found > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self._remote.discard(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        return ()

    def __getattr__(self, name: str) -> Any:
        """Do nothing at all of vLLM's other calls."""
        return lambda *args: None


def schedule_only(harness: SchedulerHarness) -> Any:
    """Run a step without the harness's checks: they know no request that waits and holds blocks."""
    output = harness.scheduler.schedule()
    names = list(output.num_scheduled_tokens)
    answer = harness.model_runner.run_without_kv(output)
    harness.scheduler.update_from_output(output, answer)
    return names


def arrive(harness: SchedulerHarness, *names: str) -> None:
    """Let the KV of these requests arrive."""
    harness.scheduler._update_from_kv_xfer_finished(KVConnectorOutput(finished_recving=set(names)))


def test_a_request_whose_kv_is_loaded_is_charged_for_what_it_generates(make: Make) -> None:
    harness = make(blocks=24, batch=2)
    harness.scheduler.connector = RemoteKv(8, {"far"})
    harness.add("far", prompt(9), 3, tenant="far", tier="standard")
    harness.add("near", prompt(4, family=1), 20, tenant="near", tier="background")
    for _ in range(4):
        assert schedule_only(harness) == ["near"]
    assert harness.scheduler.requests["far"].status is RequestStatus.WAITING_FOR_REMOTE_KVS
    assert harness.policy.received["far"].output_tokens == 0
    arrive(harness, "far")
    assert sorted(schedule_only(harness)) == ["far", "near"]
    received = harness.policy.received["far"]
    assert (received.input_tokens, received.output_tokens) == (9, 1)
    assert received.service == pytest.approx(9 - 0.9 * 8 + 2)


def test_a_loaded_request_has_its_slot_before_any_that_waits(make: Make) -> None:
    """vLLM admits it first, whatever waits. So its slot does not count as free for a more urgent request, which would
    otherwise evict for nothing."""
    harness = make(blocks=40, batch=2)
    harness.scheduler.connector = RemoteKv(8, {"far"})
    harness.add("far", prompt(9), 3, tier="background")
    harness.add("b1", prompt(4, family=1), 30, tier="background")
    schedule_only(harness)
    harness.add("b2", prompt(4, family=2), 30, tier="background")
    schedule_only(harness)
    assert harness.running == ["b1", "b2"]
    arrive(harness, "far")
    harness.add("gold", prompt(4, family=3), 3, tier="premium")
    assert sorted(schedule_only(harness)) == ["far", "gold"]
