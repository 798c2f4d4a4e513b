"""Mistakes that were made in similar software, each with the report that it is derived from."""

from __future__ import annotations

from dispatcher.policies.orders import two_clocks
from dispatcher.shard import accept, attempts, fold
from gpu_worker.service.executions import executions
from gpu_worker.service.executions import outbox as worker_outbox
from tests.support.gate.storm.bugs.registry import Edit, bug

bug(
    "unbounded_queue",
    "A tenant's queue has no limit (vllm-project/vllm#18826).",
    Edit(accept, "_queue_full", "if waiting < limit or", "if True or"),
)
bug(
    "count_below_zero",
    "A suspended call that leaves is not counted as suspended, and the count is clamped (llm-d/llm-d#1950).",
    Edit(fold, "_leave", "state.suspend(call, -1)", "call.tenant.suspended = max(0, call.tenant.suspended)"),
)
bug(
    "aborted_stream_is_free",
    "A stream that is aborted costs nothing (BerriAI/litellm#18730).",
    Edit(
        attempts,
        "_end",
        "    served = state.settings.charge(input_tokens, output_tokens, cached_tokens)",
        '    output_tokens = 0 if outcome == "cancelled" else output_tokens\n'
        "    served = state.settings.charge(input_tokens, output_tokens, cached_tokens)",
    ),
)
bug(
    "returned_call_goes_last",
    "A call that comes back loses its place (vllm-project/vllm#23347).",
    Edit(
        fold,
        "_fold_return",
        "        state.enqueue(call)",
        "        call.arrival += 1000\n        state.enqueue(call)",
    ),
)
bug(
    "counter_is_not_lifted",
    "A tenant that was idle comes back with its old counter, and takes all slots until it has caught up (the lift of "
    "VTC, section 4.1, left out in several schedulers).",
    Edit(two_clocks.TwoClocks, "join", "vft = virtual_time\n", "pass\n"),
)
bug(
    "charged_again_on_retry",
    "A call that comes back is charged for its first attempt too (BerriAI/litellm#15740).",
    Edit(attempts, "_return", "state.order.settle(call.tenant, call, 0.0)", "call.tenant.clocks"),
)
bug(
    "refused_charge_is_dropped",
    "A report that the gate refuses for now is not sent again (BerriAI/litellm#35531, #33873: spend that the database "
    "does not take is gone).",
    Edit(worker_outbox.Outbox, "_repeat_report", "if not isinstance(outcome, Refused):", "if True:"),
)
bug(
    "finished_work_is_given_away",
    "A worker does not say that it holds an attempt whose report is under way, so the attempt is done again "
    "(mapbox/ecs-watchbot#143).",
    Edit(executions.Executions, "live", "self.running() | self.outbox.live() | self._deciding", "self.running()"),
)
bug(
    "aborted_request_keeps_its_slot",
    "A request whose caller left before the end keeps its slot (sgl-project/sglang#8587).",
    Edit(executions.Executions, "_close", "if execution.name in self._live:", "if False:"),
)
