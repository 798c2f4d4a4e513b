"""The next request among the tiers, which request may be evicted for which, and the least service of a tier while it
waits, worked by hand."""

from __future__ import annotations

import pytest

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.interface import Precedence, QueueRequest
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.tiers import PROMOTED, TierSettings, TierShares

PREMIUM, STANDARD, BACKGROUND, SYSTEM = Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND, Tier.SYSTEM

TIER = {"p": PREMIUM, "s": STANDARD, "b": BACKGROUND, "y": SYSTEM}


class Queue(TieredQueue):
    """The first letter of a request's id is its tier, the second its tenant."""

    def __init__(self, **settings: object) -> None:
        super().__init__(lambda: make_policy("vtc"), TierSettings(**settings))  # type: ignore[arg-type]

    def put(self, *request_ids: str, now_s: float = 0.0, input_tokens: int = 10) -> None:
        for request_id in request_ids:
            tier, tenant = TIER[request_id[0]], request_id[1]
            self.enqueue(QueueRequest(request_id, tenant, input_tokens, tier=tier), now_s)

    def order(self) -> list[str]:
        """Admit all waiting requests one by one, and return their ids."""
        order: list[str] = []
        while (head := self.peek()) is not None:
            order.append(self.admit(head.request_id).request_id)
        return order

    def may_evict(self, waiting: str, running: str) -> Precedence | None:
        return self.precedence(self.tier_state(waiting).request, running)


def test_waiting_improves_the_rank_by_a_tenth_per_second_and_by_one_and_a_half_at_most() -> None:
    queue = Queue()
    queue.put("ba1")
    for now_s, rank in ((0.0, 2.0), (5.0, 1.5), (15.0, 0.5), (1e6, 0.5)):
        queue.advance_to(now_s)
        assert queue.rank_of("ba1") == rank


def test_admissions_after_a_whole_rank_of_aging_are_counted() -> None:
    queue = Queue()
    queue.put("ba1", "bb1")
    queue.advance_to(9.9)
    queue.admit("ba1")
    assert queue.aged == 0
    queue.advance_to(10.0)
    queue.admit("bb1")
    assert queue.aged == 1
    queue.undo_admit("bb1")
    assert queue.aged == 0
    queue.admit("bb1")
    queue.preempt("bb1")
    queue.admit("bb1")
    assert queue.aged == 2, "each admission counts"


def test_a_request_that_waited_longer_passes_a_more_urgent_tier() -> None:
    queue = Queue()
    queue.put("sa1")
    queue.put("pa1", now_s=9.9)
    assert queue.peek().request_id == "pa1"  # type: ignore[union-attr]
    queue.put("pb1", now_s=20.2)
    queue.remove("pa1")
    assert queue.peek().request_id == "sa1"  # type: ignore[union-attr]


def test_the_sources_example_stays_behind_premium_and_the_share_serves_it() -> None:
    """2 - 1.5 - 0.15 x 2 = 0.2: after an endless wait without service it is still behind a new premium request."""
    queue = Queue(share_slack=100.0)
    queue.put("ba1", "pa1", "pb1")
    queue.admit("pa1")
    queue.on_decoded(200)
    queue.advance_to(3_600.0)
    queue.put("pc1", now_s=3_600.0)
    queue.remove("pb1")
    assert queue.rank_of("ba1") == pytest.approx(0.2)
    assert queue.rank_of("pc1") == 0.0
    assert not queue.shares.is_owed(BACKGROUND)
    assert queue.peek().request_id == "pc1"  # type: ignore[union-attr]
    queue.on_decoded(200)
    assert queue.rank_of("ba1") == pytest.approx(0.2)
    assert queue.shares.is_owed(BACKGROUND), "0.15 x (10 + 2 x 400) > 100"
    assert queue.peek().request_id == "ba1"  # type: ignore[union-attr]


def test_a_request_admitted_for_its_tiers_share_is_not_evicted() -> None:
    queue = Queue(share_slack=0.0, shares={BACKGROUND: 0.15})
    queue.put("ba1", "pa1", "pb1")
    queue.admit("pa1")
    queue.admit("ba1")
    assert queue.tier_state("ba1").for_share
    assert queue.may_evict("pb1", "ba1") is None


def test_of_two_owed_tiers_the_one_further_behind_relative_to_its_share_is_first() -> None:
    """Background lacks 0.1 x 1,300 and standard 0.6 x 300. That is less, but 1,300 shares against 300."""
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


def test_the_waiting_time_continues_after_a_preemption() -> None:
    """All stays in the queue count; the time in the batch does not."""
    queue = Queue()
    queue.put("ba1")
    queue.advance_to(4.0)
    queue.admit("ba1")
    assert queue.rank_of("ba1") == 1.6, "while it runs, it keeps the rank of its admission"
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


def test_background_never_evicts_a_standard_request_that_it_aged_past() -> None:
    queue = Queue()
    queue.put("sa1")
    queue.admit("sa1")
    queue.put("ba1")
    queue.advance_to(100.0)
    assert queue.rank_of("ba1") < queue.rank_of("sa1")
    assert queue.may_evict("ba1", "sa1") is None


def test_without_preemption_no_request_is_evicted() -> None:
    queue = Queue(preemption=False)
    queue.put("ba1", "pa1")
    queue.admit("ba1")
    assert queue.may_evict("pa1", "ba1") is None


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


def test_a_promoted_request_goes_before_all_tenants_and_is_not_evicted_again() -> None:
    """It goes before older requests, before the tenant that VTC would serve first, and before aged requests."""
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


def test_at_limit_end_promotes_and_protects_no_request() -> None:
    queue = Queue(preemptions_max=1, at_limit="end")
    queue.put("pa1", "bc1")
    evicted(queue, "bc1", 1)
    assert queue.peek().request_id == "pa1"  # type: ignore[union-attr]
    queue.admit("bc1")
    assert queue.may_evict("pa1", "bc1") == (2.0, 0.0)
    assert queue.tier_state("bc1").exhausted(queue.settings)


def test_an_undone_admission_leaves_the_tier_as_far_behind() -> None:
    """The tier was owed service when its only request was admitted. The admission is undone, so it still is."""
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


def test_output_reported_within_an_undone_admission_is_refunded() -> None:
    queue = Queue()
    queue.put("ba1")
    queue.admit("ba1")
    queue.on_generated("ba1", 3)
    queue.undo_admit("ba1")
    assert (queue.shares.given(BACKGROUND), queue.shares.total) == (0, 0)
    queue.admit("ba1")
    queue.on_generated("ba1", 3)
    queue.preempt("ba1")
    queue.admit("ba1")
    queue.undo_admit("ba1")
    assert (queue.shares.given(BACKGROUND), queue.shares.total) == (16, 16), "a resumed request keeps its charges"


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


def test_a_step_does_not_charge_excluded_requests() -> None:
    queue = Queue()
    queue.put("sa1", "pb1")
    for request_id in ("sa1", "pb1"):
        queue.admit(request_id)
    queue.on_decoded(3, ["sa1"])
    assert (queue.shares.given(STANDARD), queue.shares.given(PREMIUM), queue.shares.total) == (10, 16, 26)
    queue.on_decoded(1)
    assert (queue.shares.given(STANDARD), queue.shares.given(PREMIUM), queue.shares.total) == (12, 18, 30)


def test_a_tenant_that_changed_its_tier_has_the_sum_of_both() -> None:
    queue = Queue()
    queue.put("sa1", "pa1")
    for request_id in ("sa1", "pa1"):
        queue.admit(request_id)
    queue.on_decoded(5)
    assert queue.received["a"].service == 40.0
    assert queue.counter("a") == 20.0, "the highest counter of its tiers"
    assert queue.waiting_of("a") == 0
    queue.put("ba2", "pa2")
    assert queue.waiting_of("a") == 2
    assert queue.counters() == [{}, {"a": 20.0}, {"a": 0.0}]


def test_an_id_in_use_is_refused_in_any_tier() -> None:
    queue = Queue()
    queue.put("sa1")
    with pytest.raises(ValueError, match=r"sa1.* is here already"):
        queue.enqueue(QueueRequest("sa1", "a", 10, tier=PREMIUM))


def test_nothing_is_kept_of_a_request_that_the_inner_policy_refuses() -> None:
    queue = TieredQueue(lambda: make_policy("rpm:1"), TierSettings())
    assert queue.enqueue(QueueRequest("a1", "a", 10))
    assert not queue.enqueue(QueueRequest("a2", "a", 10))
    assert not queue.holds("a2")
    assert queue.waiting == 1


def test_a_wrong_inner_policy_is_refused_when_it_is_named() -> None:
    for name in ("tiered:lottery", "tiered:tiered"):
        with pytest.raises(ValueError, match=r"lottery|takes another policy after the colon"):
            make_policy(name)


def test_promoted_requests_keep_their_places_when_admissions_are_undone() -> None:
    """A tentative pass admits all of them and then undoes the admissions, the last one first."""
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


PREMIUM, STANDARD, BACKGROUND = Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND


def shares_of(slack: float = 100.0, **shares: float) -> TierShares:
    by_tier = {Tier(tier): share for tier, share in shares.items()} or {BACKGROUND: 0.15}
    return TierShares(TierSettings(shares=by_tier, share_slack=slack))


def test_a_tier_is_owed_its_share_of_all_service_since_it_began_to_wait() -> None:
    shares = shares_of()
    shares.charge_prompt(PREMIUM, 1_000)
    shares.start_waiting(BACKGROUND)
    assert shares.behind(BACKGROUND) == 0, "earlier service does not count"
    shares.charge_prompt(PREMIUM, 600)
    assert shares.behind(BACKGROUND) == 90
    assert not shares.is_owed(BACKGROUND)
    shares.charge_output(PREMIUM, 40)
    assert shares.behind(BACKGROUND) == 102
    assert shares.is_owed(BACKGROUND)
    shares.charge_prompt(BACKGROUND, 20)
    assert shares.behind(BACKGROUND) == pytest.approx(85)


def test_a_tier_behind_by_the_slack_is_not_owed_yet() -> None:
    shares = shares_of(slack=15.0)
    shares.start_waiting(BACKGROUND)
    shares.charge_prompt(PREMIUM, 100)
    assert shares.behind(BACKGROUND) == 15.0
    assert not shares.is_owed(BACKGROUND)


def test_waiting_time_is_not_service() -> None:
    """The source counts the time from arrival to end as GPU time, so a starved tier looks served."""
    shares = shares_of()
    shares.start_waiting(BACKGROUND)
    shares.start_running(PREMIUM)
    shares.on_decoded(1_000)
    assert shares.given(BACKGROUND) == 0
    assert shares.behind(BACKGROUND) == pytest.approx(300)


def test_a_tier_that_does_not_wait_is_not_behind() -> None:
    """The source counts since the server started, so an idle morning makes a tier owed all afternoon."""
    shares = shares_of()
    shares.charge_prompt(PREMIUM, 10_000)
    assert shares.behind(BACKGROUND) == shares.deficit(BACKGROUND) == 0
    shares.start_waiting(BACKGROUND)
    shares.charge_prompt(PREMIUM, 10_000)
    assert shares.is_owed(BACKGROUND)
    shares.stop_waiting(BACKGROUND)
    assert not shares.is_owed(BACKGROUND)
    shares.start_waiting(BACKGROUND)
    assert shares.behind(BACKGROUND) == 0


def test_the_deficit_is_the_lacking_fraction_of_all_service() -> None:
    shares = shares_of()
    shares.start_waiting(BACKGROUND)
    assert shares.deficit(BACKGROUND) == 0
    shares.charge_prompt(PREMIUM, 900)
    assert shares.deficit(BACKGROUND) == 0.15
    shares.charge_prompt(BACKGROUND, 100)
    assert shares.deficit(BACKGROUND) == pytest.approx(0.05)
    shares.charge_prompt(BACKGROUND, 1_000)
    assert shares.deficit(BACKGROUND) == 0, "never negative"


def test_a_lead_beyond_the_slack_is_forgotten() -> None:
    """After a night alone it is 0.85 x 10,000 ahead of its share, and would wait until premium got 56,667."""
    shares = shares_of(slack=30.0)
    shares.start_waiting(BACKGROUND)
    shares.charge_output(BACKGROUND, 5_000)
    assert shares.behind(BACKGROUND) == -30
    shares.charge_prompt(PREMIUM, 400)
    assert shares.behind(BACKGROUND) == 30
    assert not shares.is_owed(BACKGROUND)
    shares.charge_prompt(PREMIUM, 1)
    assert shares.is_owed(BACKGROUND)


def test_a_lead_by_decoded_tokens_is_forgotten_too() -> None:
    shares = shares_of(slack=30.0)
    shares.start_waiting(BACKGROUND)
    shares.start_running(BACKGROUND)
    shares.on_decoded(5_000)
    assert shares.behind(BACKGROUND) == -30


def test_a_lead_within_the_slack_is_not_forgotten() -> None:
    shares = shares_of(slack=30.0)
    shares.start_waiting(BACKGROUND)
    shares.charge_output(BACKGROUND, 10)
    assert shares.behind(BACKGROUND) == -17


def test_a_refunded_prompt_leaves_the_tier_no_further_behind() -> None:
    """An admission forgets no lead, because it may be undone."""
    shares = shares_of(slack=30.0)
    shares.start_waiting(BACKGROUND)
    shares.charge_prompt(BACKGROUND, 10_000)
    shares.charge_prompt(BACKGROUND, -10_000)
    assert shares.behind(BACKGROUND) == 0
    assert shares.total == 0


def test_a_refunded_output_leaves_the_tier_no_further_behind() -> None:
    """Two admissions of one pass are undone, one after the other."""
    shares = shares_of(slack=30.0)
    shares.start_waiting(BACKGROUND)
    shares.charge_output(PREMIUM, 4)
    shares.charge_prompt(BACKGROUND, 10_000)
    shares.charge_output(PREMIUM, -4)
    shares.charge_prompt(BACKGROUND, -10_000)
    assert shares.behind(BACKGROUND) == 0


def test_a_tier_without_a_share_is_owed_nothing() -> None:
    """Even if a charge from before it began to wait is refunded afterwards."""
    shares = shares_of(slack=0.0, standard=0.5)
    shares.charge_prompt(BACKGROUND, 100)
    shares.start_waiting(BACKGROUND)
    shares.charge_prompt(BACKGROUND, -100)
    assert shares.behind(BACKGROUND) > 0
    assert not shares.is_owed(BACKGROUND)


def test_the_total_is_the_service_of_all_tiers() -> None:
    shares = shares_of()
    shares.start_running(PREMIUM)
    shares.start_running(PREMIUM)
    shares.start_running(STANDARD)
    shares.on_decoded(10)
    shares.charge_prompt(Tier.SYSTEM, 7)
    shares.stop_running(PREMIUM)
    shares.on_decoded(5)
    assert [shares.given(tier) for tier in (PREMIUM, STANDARD, BACKGROUND, Tier.SYSTEM)] == [50, 30, 0, 7]
    assert shares.total == 87


def test_a_pass_for_a_lead_is_needed_only_where_a_running_tenant_leads_the_next_one_by_enough() -> None:
    queue = TieredQueue(lambda: make_policy("vtc"), TierSettings(lead_max=100.0))
    queue.enqueue(QueueRequest("a", "a", 90))
    queue.admit("a")
    assert not queue.may_preempt()
    queue.enqueue(QueueRequest("b", "b", 10))
    assert not queue.may_preempt()
    queue.on_generated("a", 50)  # b's counter was lifted to that of a
    assert not queue.may_preempt()
    queue.on_generated("a", 51)
    assert queue.may_preempt()
    assert queue.precedence(QueueRequest("b", "b", 10), "a") == (0.0, 102.0)


def test_what_protects_from_an_eviction_does_not_protect_from_a_pause() -> None:
    queue = TieredQueue(lambda: make_policy("vtc"), TierSettings(preemptions_max=0))
    premium = QueueRequest("p", "p", 10, tier=Tier.PREMIUM)
    queue.enqueue(QueueRequest("b", "b", 10, tier=Tier.BACKGROUND))
    queue.admit("b")
    queue.enqueue(premium)
    assert queue.precedence(premium, "b") is None
    assert queue.pause_precedence(premium, "b") == (2.0, 0.0)
    never = TieredQueue(lambda: make_policy("vtc"), TierSettings(preemption=False))
    never.enqueue(QueueRequest("b", "b", 10, tier=Tier.BACKGROUND))
    assert never.pause_precedence(premium, "b") is None
