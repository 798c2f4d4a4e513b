"""Who goes next among the tiers, and who may be evicted for whom, in figures worked by hand."""

from __future__ import annotations

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import Precedence
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.request import QueueRequest
from gpu_worker.policies.tiers.settings import TierSettings
from gpu_worker.policies.tiers.state import PROMOTED
from gpu_worker.policies.tiers.tiered import TieredQueue

PREMIUM, STANDARD, BACKGROUND, SYSTEM = Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND, Tier.SYSTEM
TIER = {"p": PREMIUM, "s": STANDARD, "b": BACKGROUND, "y": SYSTEM}


class Queue(TieredQueue):
    """The tier is the first letter of an id, the tenant the second."""

    def __init__(self, **settings: object) -> None:
        super().__init__(lambda: make_policy("vtc"), TierSettings(**settings))  # type: ignore[arg-type]

    def put(self, *request_ids: str, now_s: float = 0.0, input_tokens: int = 10) -> None:
        for request_id in request_ids:
            tier, tenant = TIER[request_id[0]], request_id[1]
            self.enqueue(QueueRequest(request_id, tenant, input_tokens, tier=tier), now_s)

    def order(self) -> list[str]:
        """Of all that wait, admitted one by one."""
        order: list[str] = []
        while (head := self.peek()) is not None:
            order.append(self.admit(head.request_id).request_id)
        return order

    def may_evict(self, waiting: str, running: str) -> Precedence | None:
        return self.precedence(self.tier_state(waiting).request, running)


def test_without_waits_the_most_urgent_tier_goes_first() -> None:
    queue = Queue()
    queue.put("ba1", "sa1", "pa1", "ya1")
    assert [head.request_id for head in queue.heads()] == ["ya1", "pa1", "sa1", "ba1"]
    assert queue.order() == ["ya1", "pa1", "sa1", "ba1"]


def test_a_wait_is_worth_a_tenth_of_a_rank_a_second_and_one_and_a_half_at_most() -> None:
    queue = Queue()
    queue.put("ba1")
    for now_s, rank in ((0.0, 2.0), (5.0, 1.5), (15.0, 0.5), (1e6, 0.5)):
        queue.advance_to(now_s)
        assert queue.rank_of("ba1") == rank


def test_a_request_that_waited_longer_passes_a_more_urgent_tier() -> None:
    queue = Queue()
    queue.put("sa1")
    queue.put("pa1", now_s=9.9)
    assert queue.peek().request_id == "pa1"  # type: ignore[union-attr]
    queue.put("pb1", now_s=20.2)
    queue.remove("pa1")
    assert queue.peek().request_id == "sa1"  # type: ignore[union-attr]


def test_the_sources_example_stays_behind_premium_and_the_floor_serves_it() -> None:
    """2 - 1.5 - 0.15 x 2 = 0.2: waiting for ever and with nothing of its share, yet behind whoever just came."""
    queue = Queue(share_slack=100.0)
    queue.put("ba1", "pa1", "pb1")
    queue.admit("pa1")
    queue.decoded(200)
    queue.advance_to(3_600.0)
    queue.put("pc1", now_s=3_600.0)
    queue.remove("pb1")
    assert queue.rank_of("ba1") == pytest.approx(0.2)
    assert queue.rank_of("pc1") == 0.0
    assert not queue.shares.is_owed(BACKGROUND)
    assert queue.peek().request_id == "pc1"  # type: ignore[union-attr]
    queue.decoded(200)
    assert queue.rank_of("ba1") == pytest.approx(0.2)
    assert queue.shares.is_owed(BACKGROUND), "0.15 x (10 + 2 x 400) > 100"
    assert queue.peek().request_id == "ba1"  # type: ignore[union-attr]


def test_who_was_admitted_for_its_tiers_share_is_evicted_for_nobody() -> None:
    queue = Queue(share_slack=0.0, shares={BACKGROUND: 0.15})
    queue.put("ba1", "pa1", "pb1")
    queue.admit("pa1")
    queue.admit("ba1")
    assert queue.tier_state("ba1").for_share
    assert queue.may_evict("pb1", "ba1") is None


def test_of_two_tiers_that_are_owed_the_one_owed_more_shares_goes_first() -> None:
    """Background by 0.1 x 1,300, standard by 0.6 x 300: less of it, but thirteen hundred shares against three."""
    queue = Queue(share_slack=10.0, shares={STANDARD: 0.6, BACKGROUND: 0.1})
    queue.put("ba1")
    queue.put("pa1", input_tokens=1_000)
    queue.admit("pa1")
    queue.put("sa1")
    queue.put("pa2", input_tokens=300)
    queue.admit("pa2")
    assert queue.shares.behind(STANDARD) == pytest.approx(180)
    assert queue.shares.behind(BACKGROUND) == pytest.approx(130)
    assert [head.request_id for head in queue.heads()] == ["ba1", "sa1"]


def test_a_wait_goes_on_where_it_was_after_a_preemption() -> None:
    """All stays in the line count, the time in the batch does not."""
    queue = Queue()
    queue.put("ba1")
    queue.advance_to(4.0)
    queue.admit("ba1")
    assert queue.rank_of("ba1") == 1.6, "that of its admission, while it runs"
    queue.advance_to(9.0)
    assert queue.rank_of("ba1") == 1.6
    queue.preempt("ba1")
    assert queue.rank_of("ba1") == 1.6
    queue.advance_to(10.0)
    assert queue.rank_of("ba1") == 1.5


def test_the_clock_does_not_go_back() -> None:
    queue = Queue()
    queue.advance_to(10.0)
    queue.put("ba1", now_s=3.0)
    assert queue.rank_of("ba1") == 2.0


@pytest.mark.parametrize(
    ("waiting", "running", "found"),
    [
        ("pa1", "bb1", (2.0, 0.0)),
        ("pa1", "sb1", (1.0, 0.0)),
        ("sa1", "bb1", (1.0, 0.0)),
        ("ya1", "pb1", (1.0, 0.0)),
        ("pa1", "pb1", None),
        ("sa1", "pb1", None),
        ("ba1", "sb1", None),
        ("ba1", "bb1", None),
        ("pa1", "yb1", None),
    ],
)
def test_only_who_is_strictly_less_urgent_is_evicted(waiting: str, running: str, found: Precedence | None) -> None:
    queue = Queue()
    queue.put(running)
    queue.admit(running)
    queue.put(waiting)
    assert queue.may_evict(waiting, running) == found


def test_nobody_is_evicted_for_one_whose_rank_is_not_before_its_own() -> None:
    """A background request that waited 15 s entered with rank 0.5; a standard one that just came has 1."""
    queue = Queue()
    queue.put("ba1")
    queue.advance_to(15.0)
    queue.admit("ba1")
    queue.put("sa1", "pa1", now_s=15.0)
    assert queue.may_evict("sa1", "ba1") is None
    assert queue.may_evict("pa1", "ba1") == (2.0, 0.0)
    queue.advance_to(20.0)
    assert queue.may_evict("sa1", "ba1") is None, "0.5 is not before 0.5"
    queue.advance_to(20.1)
    assert queue.may_evict("sa1", "ba1") == (1.0, 0.0)


def test_background_that_aged_past_a_standard_one_still_evicts_nobody() -> None:
    queue = Queue()
    queue.put("sa1")
    queue.admit("sa1")
    queue.put("ba1")
    queue.advance_to(100.0)
    assert queue.rank_of("ba1") < queue.rank_of("sa1")
    assert queue.may_evict("ba1", "sa1") is None


def test_without_preemption_nobody_is_evicted() -> None:
    queue = Queue(preemption=False)
    queue.put("ba1", "pa1")
    queue.admit("ba1")
    assert queue.may_evict("pa1", "ba1") is None


def test_within_a_tier_a_tenant_that_leads_by_more_than_the_threshold_is_evicted() -> None:
    """VTC, Appendix C.3; a's counter is 10 + 2 x 20 = 50 ahead of b's."""
    for lead_max, found in ((49.0, (0.0, 50.0)), (50.0, None), (float("inf"), None)):
        queue = Queue(lead_max=lead_max)
        queue.put("pa1", "pb1")
        queue.admit("pa1")
        queue.decoded(20)
        assert queue.may_evict("pb1", "pa1") == found


def test_policies_without_counters_have_no_leads() -> None:
    queue = TieredQueue(lambda: make_policy("fcfs"), TierSettings(lead_max=1.0))
    for request_id in ("a1", "b1"):
        queue.enqueue(QueueRequest(request_id, request_id[0], 10))
    queue.admit("a1")
    assert queue.precedence(queue.tier_state("b1").request, "a1") is None


def evicted(queue: Queue, request_id: str, times: int) -> None:
    for _ in range(times):
        queue.admit(request_id)
        queue.preempt(request_id)


def test_after_its_last_preemption_it_goes_before_all_tenants_and_is_not_evicted_again() -> None:
    """Before those of its own tenant's elders, before a tenant that VTC would serve first, before whoever aged."""
    queue = Queue(preemptions_max=2)
    queue.put("pa1", "ba1", "bc1")
    evicted(queue, "bc1", 2)
    queue.put("bd1")
    queue.advance_to(3_600.0)
    queue.put("ya1", now_s=3_600.0)
    assert queue.rank_of("pa1") < queue.rank_of("bc1") == PROMOTED
    assert [head.request_id for head in queue.heads()] == ["ya1", "bc1", "pa1"]
    queue.admit("bc1")
    assert [head.request_id for head in queue.heads()] == ["ya1", "pa1", "ba1"]
    assert queue.may_evict("pa1", "bc1") is None
    assert queue.may_evict("ya1", "bc1") is None
    queue.undo_admit("bc1")
    assert [head.request_id for head in queue.heads()] == ["ya1", "bc1", "pa1"]
    queue.cancel("bc1")
    assert [head.request_id for head in queue.heads()] == ["ya1", "pa1", "ba1"]


def test_who_is_not_preempted_so_often_is_not_promoted() -> None:
    queue = Queue(preemptions_max=2)
    queue.put("pa1", "bc1")
    evicted(queue, "bc1", 1)
    assert queue.peek().request_id == "pa1"  # type: ignore[union-attr]
    queue.admit("bc1")
    assert queue.may_evict("pa1", "bc1") == (2.0, 0.0)


def test_where_the_last_preemption_ends_it_nobody_is_promoted_or_protected() -> None:
    queue = Queue(preemptions_max=1, at_limit="end")
    queue.put("pa1", "bc1")
    evicted(queue, "bc1", 1)
    assert queue.peek().request_id == "pa1"  # type: ignore[union-attr]
    queue.admit("bc1")
    assert queue.may_evict("pa1", "bc1") == (2.0, 0.0)
    assert queue.tier_state("bc1").exhausted(queue.settings)


def test_with_no_preemption_allowed_nobody_is_evicted_and_nobody_promoted_for_it() -> None:
    queue = Queue(preemptions_max=0)
    queue.put("ba1", "pa1")
    assert queue.peek().request_id == "pa1"  # type: ignore[union-attr]
    queue.admit("ba1")
    assert queue.may_evict("pa1", "ba1") is None


def test_an_admission_put_back_takes_nothing_of_its_tiers_claim() -> None:
    """The tier was owed its share when its only request was admitted; that came to nothing, so it still is."""
    queue = Queue(share_slack=50.0)
    queue.put("ba1")
    queue.put("pa1", input_tokens=1_000)
    queue.admit("pa1")
    behind = queue.shares.behind(BACKGROUND)
    assert behind == 150.0
    queue.admit("ba1")
    queue.undo_admit("ba1")
    assert queue.shares.behind(BACKGROUND) == behind
    assert queue.shares.given(BACKGROUND) == 0


def test_what_was_told_of_an_admission_put_back_is_returned_too() -> None:
    queue = Queue()
    queue.put("ba1")
    queue.admit("ba1")
    queue.generated("ba1", 3)
    queue.undo_admit("ba1")
    assert (queue.shares.given(BACKGROUND), queue.shares.total) == (0, 0)
    queue.admit("ba1")
    queue.generated("ba1", 3)
    queue.preempt("ba1")
    queue.admit("ba1")
    queue.undo_admit("ba1")
    assert (queue.shares.given(BACKGROUND), queue.shares.total) == (16, 16), "it was resumed: what it got before stands"


def test_a_tier_waits_from_its_first_arrival_to_its_last_admission() -> None:
    queue = Queue()
    queue.put("ba1", "pa1", "pb1")
    queue.admit("pa1")
    queue.put("bb1")
    assert queue.shares.behind(BACKGROUND) == 1.5
    queue.cancel("bb1")
    queue.admit("pb1")
    assert queue.shares.behind(BACKGROUND) == 3.0
    queue.cancel("ba1")
    queue.put("pc1")
    queue.admit("pc1")
    assert queue.shares.behind(BACKGROUND) == 0


def test_service_counts_for_its_tier_once() -> None:
    queue = Queue()
    queue.put("sa1")
    queue.admit("sa1")
    queue.decoded(3)
    queue.preempt("sa1")
    queue.admit("sa1")
    queue.generated("sa1", 2)
    assert queue.shares.given(STANDARD) == 10 + 2 * 3
    queue.generated("sa1", 5)
    queue.finish("sa1")
    assert queue.shares.given(STANDARD) == 10 + 2 * 5
    assert queue.received["a"].service == 20.0


def test_a_step_is_not_about_those_that_are_named() -> None:
    queue = Queue()
    queue.put("sa1", "pb1")
    for request_id in ("sa1", "pb1"):
        queue.admit(request_id)
    queue.decoded(3, ["sa1"])
    assert (queue.shares.given(STANDARD), queue.shares.given(PREMIUM), queue.shares.total) == (10, 16, 26)
    queue.decoded(1)
    assert (queue.shares.given(STANDARD), queue.shares.given(PREMIUM), queue.shares.total) == (12, 18, 30)


def test_a_tenant_that_changed_its_tier_is_the_sum_of_both() -> None:
    queue = Queue()
    queue.put("sa1", "pa1")
    for request_id in ("sa1", "pa1"):
        queue.admit(request_id)
    queue.decoded(5)
    assert queue.received["a"].service == 40.0
    assert queue.counter("a") == 20.0, "the highest of its tiers"
    assert queue.waiting_of("a") == 0
    queue.put("ba2", "pa2")
    assert queue.waiting_of("a") == 2
    assert queue.counters() == [{}, {"a": 20.0}, {"a": 0.0}]


def test_an_id_that_is_here_is_refused_in_any_tier() -> None:
    queue = Queue()
    queue.put("sa1")
    with pytest.raises(ValueError, match=r"sa1.* is here already"):
        queue.enqueue(QueueRequest("sa1", "a", 10, tier=PREMIUM))


def test_nothing_is_kept_of_one_that_the_inner_policy_refuses() -> None:
    queue = TieredQueue(lambda: make_policy("rpm:1"), TierSettings())
    assert queue.enqueue(QueueRequest("a1", "a", 10))
    assert not queue.enqueue(QueueRequest("a2", "a", 10))
    assert not queue.holds("a2")
    assert queue.waiting == 1


def test_a_wrong_inner_policy_is_refused_when_it_is_named() -> None:
    for name in ("tiered:lottery", "tiered:tiered"):
        with pytest.raises(ValueError, match=r"lottery|takes another policy after the colon"):
            make_policy(name)


def test_promoted_requests_that_are_put_back_keep_their_places() -> None:
    """As a planned pass does it: all admitted, then put back, the last first."""
    queue = TieredQueue(lambda: make_policy("vtc"), TierSettings(preemptions_max=1))
    for name in ("first", "second", "third"):
        queue.enqueue(QueueRequest(name, name, 10, tier=Tier.BACKGROUND))
        queue.admit(name)
        queue.preempt(name)
    order = []
    while (head := queue.peek()) is not None:
        order.append(queue.admit(head.request_id).request_id)
    for name in reversed(order):
        queue.undo_admit(name)
    again = []
    while (head := queue.peek()) is not None:
        again.append(queue.admit(head.request_id).request_id)
    assert order == again == ["first", "second", "third"]
