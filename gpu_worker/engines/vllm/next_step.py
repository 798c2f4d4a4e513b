"""The tokens and the encoder's budget of vLLM's next step, before vLLM makes the step.

The step's tokens follow the pure rule (gpu_worker/policies/step_tokens.py). The encoder's budget is counted as vLLM's
`_try_schedule_encoder_inputs` counts it: an input, for example an image, is computed whole in the step that reaches it,
if the step's encoder tokens and the encoder's cache have room. A request cannot enter if its next token belongs to an
input without room, and vLLM admits no other in that step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.request import Request

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.step_tokens import Prefill, StepTokens


class NextStep:
    """Both parts are counted when they are first needed. `turn`: returns the tier that has its turn in this step."""

    def __init__(self, scheduler: Any, turn: Callable[[], Tier | None]) -> None:
        self._scheduler = scheduler
        self._turn = turn
        self._tokens: StepTokens | None = None
        self._encoder: EncoderRoom | None = None
        self._newcomers: list[tuple[Request, int, int]] = []
        """Each with its computed tokens, and those of this step."""

    @property
    def tokens(self) -> StepTokens:
        if self._tokens is None:
            self._tokens = step_tokens_of(self._scheduler, self._turn())
        return self._tokens

    @property
    def is_counted(self) -> bool:
        """Whether the tokens were needed."""
        return self._tokens is not None

    def has_encoder_room(self, request: Request, computed: int) -> bool:
        """Return whether a newcomer with so many computed tokens can begin."""
        return self._encoder_room().fits(request, computed)

    def admit(self, request: Request, computed: int, tokens: int) -> None:
        """Take the encoder's room for a newcomer that computes so many tokens in this step."""
        if request.has_encoder_inputs:
            self._newcomers.append((request, computed, tokens))
            self._encoder_room().take(request, computed, tokens)

    def release(self, victims: list[str]) -> None:
        """Free the tokens and the encoder's room of evicted requests."""
        self.tokens.release(victims)
        if self._encoder is not None:
            self._encoder = None
            for newcomer in self._newcomers:
                self._encoder_room().take(*newcomer)

    def _encoder_room(self) -> EncoderRoom:
        if self._encoder is None:
            self._encoder = EncoderRoom(self._scheduler)
            for request in self._scheduler.running:
                if request.has_encoder_inputs and request.is_prefill_chunk:
                    self._encoder.take(request, request.num_computed_tokens, _tokens_of(self._scheduler, request))
        return self._encoder


class EncoderRoom:
    """The free tokens of the encoder in a step, and the free room of its cache."""

    def __init__(self, scheduler: Any) -> None:
        self._tokens = int(scheduler.max_num_encoder_input_tokens)
        self._cache = int(scheduler.encoder_cache_manager.num_freeable_slots)
        self._cached = scheduler.encoder_cache_manager.cached
        self._ahead = int(scheduler.num_prefill_lookahead)
        self._taken: set[str] = set()
        """Inputs that this step computes, or keeps in the cache."""

    def fits(self, request: Request, computed: int) -> bool:
        """Return whether the input that the next token belongs to has room, or is computed already."""
        inputs = self._inputs(request, computed, computed + 1 + self._ahead)
        return all(self._has_room(request, place) for place in inputs)

    def take(self, request: Request, computed: int, tokens: int) -> None:
        """Take the room of the inputs that these tokens reach, up to the first one without room."""
        for place in self._inputs(request, computed, computed + tokens + self._ahead):
            if not self._has_room(request, place):
                return
            name, size = request.mm_features[place].identifier, request.get_num_encoder_embeds(place)
            if name in self._taken:
                continue
            self._taken.add(name)
            if name not in self._cached:
                self._tokens -= size
            if not self._cached.get(name):  # a cached input that no request uses counted as free
                self._cache -= size

    def _has_room(self, request: Request, place: int) -> bool:
        name, size = request.mm_features[place].identifier, request.get_num_encoder_embeds(place)
        return name in self._cached or name in self._taken or size <= min(self._tokens, self._cache)

    @staticmethod
    def _inputs(request: Request, start: int, end: int) -> list[int]:
        """Return the places of the inputs with a token from `start` to before `end`."""
        spans = ((place, each.mm_position) for place, each in enumerate(request.mm_features))
        return [place for place, span in spans if span.offset < end and span.offset + span.length > start]


def step_tokens_of(scheduler: Any, turn: Tier | None) -> StepTokens:
    """Return the tokens of the running requests, as vLLM will give them out: in their order, as far as they reach."""
    prefills: list[Prefill] = []
    fixed: dict[str, int] = {}
    for request in scheduler.running:
        tokens, name = _tokens_of(scheduler, request), request.request_id
        if not request.is_prefill_chunk or not (least_tokens(request) == 0 or may_shorten(scheduler, request)):
            fixed[name] = tokens
        else:
            fixed[name] = least_tokens(request)
            tier = scheduler.queue_policy.tier_state(name).tier
            prefills.append(Prefill(name, tier, tokens - fixed[name]))
    for request in loaded_requests(scheduler):
        fixed[request.request_id] = max(1, int(request.num_tokens - request.num_computed_tokens))
    return StepTokens(int(scheduler.max_num_scheduled_tokens), prefills, turn, fixed)


def loaded_requests(scheduler: Any) -> list[Request]:
    """Return the requests with KV that a connector has loaded: vLLM admits them before any other that waits."""
    if not scheduler.kv_holding_waiting:
        return []
    loaded = scheduler.finished_recving_kv_req_ids
    return [request for request in scheduler.kv_holding_waiting if request.request_id in loaded]


def decoding_tiers(scheduler: Any) -> set[Tier]:
    """Return the tiers of the running requests that decode."""
    tier_state = scheduler.queue_policy.tier_state
    return {tier_state(request.request_id).tier for request in scheduler.running if not request.is_prefill_chunk}


def least_tokens(request: Request) -> int:
    """Return the tokens that a running prompt gets in any step. One with an adapter gets one: vLLM counts the adapters
    of the requests in the step, and ends if those of all running requests are ever more than it has room for."""
    return 0 if request.lora_request is None else 1


def may_shorten(scheduler: Any, request: Request) -> bool:
    """Return whether a part of this prompt may have any length: vLLM has not bound it to images or whole blocks."""
    return not (request.has_encoder_inputs or scheduler.need_mamba_block_aligned_split)


def computes_nothing(request: Request) -> bool:
    """Return whether vLLM, a step ahead, leaves a running request out because its last token is on its way."""
    placeholders = request.num_output_placeholders
    last = request.num_prompt_tokens + request.max_tokens
    return bool(placeholders and request.num_computed_tokens + 2 - placeholders >= last)


def _tokens_of(scheduler: Any, request: Request) -> int:
    """Return the tokens that a running request takes in this step if the budget allows."""
    if computes_nothing(request):
        return 0
    tokens = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
    most = scheduler.scheduler_config.long_prefill_token_threshold
    return int(min(tokens, most) if most else tokens)
