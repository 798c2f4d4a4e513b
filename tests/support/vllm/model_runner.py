"""A model runner without a model: it answers steps at once, and checks that every request computes on its own KV.

It knows a request only from the steps. For each slot of each KV block it keeps a hash of the tokens that the slot was
computed from, makes the swap's copies, and fails if a request goes on from a slot that holds anything else. The token
at each position is a function of the request's id and the position, so the right output is known beforehand.
"""

from __future__ import annotations

import zlib
from typing import Any

from vllm.v1.outputs import ModelRunnerOutput

BLOCK_TOKENS = 4


def token_at(name: str, position: int) -> int:
    return zlib.crc32(f"{name} {position}".encode()) % 1_000_003


class FakeModelRunner:
    def __init__(self) -> None:
        self.first_computed: dict[str, int] = {}
        """By request: prompt tokens that were computed already at its first step."""
        self.computed: dict[str, int] = {}
        """By request: its tokens whose KV was there after its last step."""
        self.drafts_rejected = 0
        self._tokens: dict[str, list[int]] = {}
        self._chains: dict[str, list[int]] = {}
        """By request: a hash of the tokens up to each position."""
        self._blocks: dict[str, list[int]] = {}
        self._device: dict[int, list[int]] = {}
        self._host: dict[int, list[int]] = {}
        self._last_step: set[str] = set()

    def run(self, output: Any) -> ModelRunnerOutput:
        self._update_requests(output)
        copies = output.kv_connector_metadata
        if copies is not None:
            for device, host in copies.out:
                self._host[host] = list(self._block(device))
            for device, host in copies.back:
                self._device[device] = list(self._host[host])
        names = list(output.num_scheduled_tokens)
        computed = self._computed(output)
        drafts = {name: len(each) for name, each in output.scheduled_spec_decode_tokens.items()}
        sampled = [
            self._compute(name, computed[name], output.num_scheduled_tokens[name], drafts.get(name, 0))
            for name in names
        ]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def run_without_kv(self, output: Any) -> ModelRunnerOutput:
        """Answer a step with one token for each request, without a look at its KV, which may be another engine's."""
        names = list(output.num_scheduled_tokens)
        places = {name: index for index, name in enumerate(names)}
        return ModelRunnerOutput(names, places, [[7] for _ in names])

    def _update_requests(self, output: Any) -> None:
        for name in output.finished_req_ids:
            for known in (self._tokens, self._chains, self._blocks):
                known.pop(name, None)
        for new in output.scheduled_new_reqs:
            self.first_computed.setdefault(new.req_id, new.num_computed_tokens)
            self._set(new.req_id, new.prefill_token_ids or new.prompt_token_ids, new.block_ids[0])
        cached = output.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if name in cached.resumed_req_ids:
                assert name in output.preempted_req_ids or name not in self._last_step, "resumed while it runs"
                self._set(name, cached.all_token_ids[name], blocks[0])
            elif blocks is not None:
                self._blocks[name] += blocks[0]
        self._last_step = set(output.num_scheduled_tokens)

    def _set(self, name: str, tokens: list[int], blocks: list[int]) -> None:
        self._tokens[name], self._blocks[name] = list(tokens), list(blocks)
        chain = self._chains[name] = []
        for token in tokens:
            chain.append(hash((chain[-1] if chain else 0, token)))

    def _computed(self, output: Any) -> dict[str, int]:
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        return computed | dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))

    def _compute(self, name: str, before: int, tokens: int, drafts: int) -> list[int]:
        """Compute a request's tokens and return the new ones. How many of its drafts are right follows from its
        last position."""
        known, chain, blocks = self._tokens[name], self._chains[name], self._blocks[name]
        assert before + tokens <= len(blocks) * BLOCK_TOKENS, "a step beyond the request's blocks"
        tokens -= drafts
        assert 0 < tokens <= len(known) - before, "a step beyond the request's tokens"
        for start in range(0, before, BLOCK_TOKENS):
            end = min(before, start + BLOCK_TOKENS)
            held = self._block(blocks[start // BLOCK_TOKENS])[: end - start]
            assert held == chain[start:end], f"{name} goes on from the KV of another request, at {start}"
        for position in range(before, before + tokens):
            self._block(blocks[position // BLOCK_TOKENS])[position % BLOCK_TOKENS] = chain[position]
        self.computed[name] = before + tokens
        if before + tokens < len(known):
            return []
        accepted = token_at(name, len(known)) % (drafts + 1)
        self.drafts_rejected += drafts - accepted
        for position in range(before + tokens, before + tokens + accepted + 1):
            known.append(token_at(name, position))
            chain.append(hash((chain[-1], known[-1])))
            if position < before + tokens + accepted:
                self._block(blocks[position // BLOCK_TOKENS])[position % BLOCK_TOKENS] = chain[position]
                self.computed[name] = position + 1
        return known[before + tokens :]

    def _block(self, block: int) -> list[int]:
        return self._device.setdefault(block, [0] * BLOCK_TOKENS)
