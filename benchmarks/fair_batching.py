"""FairBatching's step in the paged model: a baseline for the rule of our step's tokens (policies/step_tokens.py).

Source: the abstract of FairBatching (arXiv 2510.14392) and a published summary that has its due times; the whole paper
was not read. With
arrival a_i, targets T (first token) and P (each further one), token j of request i is due at

    due_ij = a_i + T + P j            j from 0; slack_i = due of its next token - now

    budget     max(the least slack of the requests that decode, P): the longest time that a step may take
    step       first the urgent decodes, which would be late if they waited for the step after this one (slack below
               budget + P); then prompts, as many tokens as the budget leaves; then the other decodes, while they fit

The time of a step is the profile's own formula, which the simulated engine follows exactly; the paper fits one of this
form. Deviations: `targets` are by tier, and a tier without any is never urgent and bounds nothing, because here
background requests have no targets; prompts come in the order of the queue policy, as under our rule, and not by their
own slack; a step has at most the profile's `chunk_tokens`, as under our rule. Our own reading, not checked
against the paper: the floor P of the budget (a request that is late already cannot stop the prompts), and the limit
from which on a decode is urgent.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.modelled.paged.kv_budget import PagedSequence
from gpu_worker.engines.modelled.paged.model import PagedModel, Step
from gpu_worker.engines.modelled.paged.profile import PagedProfile
from gpu_worker.policies.admission import Admission
from gpu_worker.policies.step_tokens import Prefill, StepTokens
from headgate.simulator.engines.paged import PagedEngine, paged_profile
from headgate.simulator.requests import SimRequest

Targets = Mapping[Tier, tuple[float, float]]
"""Seconds to the first token, and for each further one, by tier."""


class FairBatchingModel(PagedModel):
    """A paged model with chunks of prompts whose steps FairBatching forms. `arrived_s`: by request id."""

    def __init__(
        self, profile: PagedProfile, admission: Admission, targets: Targets, arrived_s: Mapping[str, float]
    ) -> None:
        if profile.chunk_tokens is None:
            raise ValueError("FairBatching needs a profile with chunk_tokens")
        super().__init__(profile, admission)
        self._machine, self._chunk_tokens = profile, profile.chunk_tokens
        self._targets = targets
        self._arrived_s = arrived_s

    def plan(self, now_s: float) -> Step:
        batch = self.batch
        evicted = batch.grow()
        decoding = [one for one in batch.running if not one.left]
        slack_s = {one: self._slack_s(one, now_s) for one in decoding}
        budget_s = max(min(slack_s.values(), default=inf), self._floor_s())
        urgent = [one for one in decoding if slack_s[one] < budget_s + self._targets[one.request.tier][1]]
        begun = sorted((one for one in batch.running if one.left), key=lambda one: (not one.protected, one.rank))
        prefills = [Prefill(one.request.request_id, one.request.tier, one.left) for one in begun]
        tokens = StepTokens(self._prompt_tokens(len(urgent), budget_s), prefills)
        entered, parts, victims = ([], [], set()) if evicted else batch.admit(tokens, now_s, begun=bool(begun))
        parts = [*((batch.sequences[one.request_id], one.part) for one in tokens.settle() if one.part), *parts]
        prompt_tokens = sum(part for _, part in parts)
        kept = [one for one in urgent if one not in victims]
        for one in sorted(slack_s, key=slack_s.__getitem__):
            fits = self._machine.step_s(len(kept) + 1, prompt_tokens, batch.kv_tokens) <= budget_s
            if one not in victims and one not in kept and (fits or not (kept or parts)):
                kept.append(one)
        return Step(kept, [(one, part) for one, part in parts if part], entered)

    def _slack_s(self, sequence: PagedSequence, now_s: float) -> float:
        first_s, each_s = self._targets[sequence.request.tier]
        return self._arrived_s[sequence.request.request_id] + first_s + each_s * sequence.tokens - now_s

    def _floor_s(self) -> float:
        return min(each_s for _, each_s in self._targets.values())

    def _prompt_tokens(self, decodes: int, budget_s: float) -> int:
        """Return the prompt tokens that fit into the time beside so many decodes, at least one without any."""
        machine = self._machine
        left_s = budget_s - machine.step_s(decodes, 0, self.batch.kv_tokens) - machine.prefill_base_s
        most = max(1, self._chunk_tokens - decodes)
        if left_s >= most * machine.prefill_per_token_s:
            return most
        return max(0 if decodes else 1, int(left_s / machine.prefill_per_token_s))


class FairBatchingEngine(PagedEngine):
    """A simulated engine with this model. Call `aim` before the first request."""

    def aim(self, targets: Targets) -> FairBatchingEngine:
        machine = paged_profile(self.profile)
        self._arrived_s: dict[str, float] = {}
        self.model = FairBatchingModel(machine, Admission(self.policy, machine.calibration()), targets, self._arrived_s)
        return self

    def _enqueue(self, request: SimRequest, at_s: float) -> bool:
        self._arrived_s[request.request_id] = at_s
        return super()._enqueue(request, at_s)
