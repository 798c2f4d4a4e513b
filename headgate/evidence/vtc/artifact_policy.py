"""The counters of the VTC artifact's server as its runs were measured, which differ from the paper's algorithm.

Source: Fairness in Serving Large Language Models (OSDI 2024), repository Ying1123/VTC-artifact, slora/server/router:
vtc_req_queue.py, vtc_pred_len_req_queue.py, vtc_oracle_req_queue.py, lcf_req_queue.py (in S-LoRA), manager.py. Only the
evidence uses this policy, to compare runs; the product's policies follow the paper. With tenant k, p input tokens as
the server counts them, q output tokens so far and q' predicted:

    admission of a request      c_k += h(p, q')                    q' = 0 without prediction
    each decode step, before    c_k += h(p, q) - h(p, q - 1)       if q > q', for each running request
    each step with an end       the same once more, for each request that ran in this step   (`charges_twice`)
    the end                     c_k += h(p, q) - h(p, q')          if q < q'
    next                        arg min c_k over the tenants with waiting requests; of equals, the first that ever came
    lift, u joins the waiting   c_u = max(c_u, min c_k over the other waiting tenants), if there are others

Differences from Algorithms 2 and 3 of the paper, all found in the code and then in the logs:

- The server has no lift to the last tenant that left (lines 8 to 10).
- The first output token is charged with the second, so the last is never charged.
- When a request ends, every running request is charged for one more token. This is a defect of the server since the
  revision of the paper; the run of Figure 8 was measured before it.
- The prediction is no mean of the last five outputs: it is 4/5 of the last prediction and 1/5 of the last output, and
  the first output is the first prediction.
- Without the artifact's constant, the profiled cost function has more digits than Appendix B.2.
"""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.policies.service import ServiceFunction
from gpu_worker.policies.fairness.interface import QueueRequest, RequestRecord
from gpu_worker.policies.fairness.tenant_queues import TenantQueuePolicy

_KEPT = 0.8
"""What a new prediction has of the one before."""


class PreciseProfile:
    """h(p, q) of Appendix B.2 as the server has it, times ten: 2.10 p + 1.01 q + 0.0399 p q + 0.0325 q^2 + 11.5."""

    def __call__(self, input_tokens: int, output_tokens: float) -> float:
        p, q = input_tokens, output_tokens
        return 2.1001891 * p + 1.0075395 * q + 0.039868 * p * q + 0.0324733 * q * q + 11.4601454


class ArtifactPolicy(TenantQueuePolicy):
    """`predict`: the output tokens predicted for a request, from the request and the tenant's last prediction (0: there
    is none yet); None: nothing is predicted. `lifts`: False for LCF. `extra_tokens`: input tokens that the server adds
    to each prompt and charges."""

    def __init__(
        self,
        service: ServiceFunction,
        *,
        extra_tokens: int,
        lifts: bool = True,
        charges_twice: bool = True,
        predict: Callable[[QueueRequest, float], float] | None = None,
    ) -> None:
        super().__init__(service)
        self._extra_tokens = extra_tokens
        self._lifts = lifts
        self._charges_twice = charges_twice
        self._predict = predict
        self._counters: dict[str, float] = {}
        """They stand in the order in which the tenants came first, which decides between equal ones."""
        self._last_prediction: dict[str, float] = {}
        self._predicted: dict[str, float] = {}
        """This has the running requests."""
        self._ended_at_step = -1

    def counter(self, tenant: str) -> float:
        return self._counters.get(tenant, 0.0)

    def _tenant_joins(self, request: QueueRequest) -> None:
        own = self._counters.setdefault(request.tenant, 0.0)
        if self._lifts and self._queues:
            self._counters[request.tenant] = max(own, min(self._counters[tenant] for tenant in self._queues))

    def _next_tenant(self) -> str | None:
        waiting = (tenant for tenant in self._counters if tenant in self._queues)
        return min(waiting, key=self._counters.__getitem__, default=None)

    def _charge_prompt(self, record: RequestRecord) -> None:
        request = record.request
        predict, last = self._predict, self._last_prediction.get(request.tenant, 0.0)
        predicted = self._predicted[request.request_id] = 0.0 if predict is None else predict(request, last)
        self._counters[request.tenant] += self._h(record, predicted)

    def _charge_steps(self, steps: int) -> None:
        for record in self._running.values():
            now = self._output_now(record)
            self._charge_tokens(record, now - steps, now - 1)

    def _on_finish(self, record: RequestRecord) -> None:
        request, output_tokens = record.request, record.output_tokens
        if self._charges_twice:
            self._charge_again(record)
        predicted = self._predicted.pop(request.request_id)
        if output_tokens < predicted:
            self._counters[request.tenant] += self._h(record, output_tokens) - self._h(record, predicted)
        last = self._last_prediction.get(request.tenant, 0.0)
        self._last_prediction[request.tenant] = _KEPT * last + (1 - _KEPT) * output_tokens if last else output_tokens

    def _charge_again(self, ended: RequestRecord) -> None:
        """Charge each request that ran in this step for its last token once more, at the first end of the step. A
        request that ends with its prefill does so to its mini-batch only: the requests with one token."""
        with_prefill = ended.output_tokens == 1
        if not with_prefill and self._ended_at_step == self._steps:
            return
        if not with_prefill:
            self._ended_at_step = self._steps
        for record in (ended, *self._running.values()):
            now = self._output_now(record)
            if (now == 1) == with_prefill:
                self._charge_tokens(record, now, now)

    def _charge_tokens(self, record: RequestRecord, first: int, last: int) -> None:
        """Charge the output tokens of these numbers, counted from 1, without those that the prediction has paid."""
        first = max(first, int(self._predicted[record.request.request_id]) + 1)
        if first <= last:
            self._counters[record.request.tenant] += self._h(record, last) - self._h(record, first - 1)

    def _h(self, record: RequestRecord, output_tokens: float) -> float:
        # A service function takes whole tokens, but the server predicts fractions; those in use take both.
        return self.service(record.request.input_tokens + self._extra_tokens, output_tokens)  # type: ignore[arg-type]
