"""The prefix cache of the paged model: blocks of prompts by their hashes, the least recently used ones leave first.

A block's hash stands for its tokens and all tokens before it, so a prompt's cached prefix is its longest run of leading
blocks that are here. A key is a hash with its sharing group, as vLLM's salt makes it: another group's equal block is
another key, and neither group can see, use or renew the other's. Only whole blocks are kept, and the last token of a
prompt is always computed, as in vLLM.

Deviations from vLLM, each of which makes the cache look worse: it has memory of its own beside the KV blocks, so a
request that found a prefix still takes blocks for it; and a block can be found only after the step that computed it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class PrefixCache:
    """`tokens`: its size; below a block, nothing is ever found."""

    def __init__(self, tokens: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.blocks_max = tokens // block_tokens
        self._blocks: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def cached_tokens(self, keys: Sequence[Hashable], input_tokens: int) -> int:
        """Return how many tokens of a prompt are here, fewer than all. Changes nothing."""
        found = 0
        for key in keys[: max(0, input_tokens - 1) // self.block_tokens]:
            if key not in self._blocks:
                break
            found += 1
        return found * self.block_tokens

    def add(self, keys: Sequence[Hashable]) -> None:
        """Add or renew leading blocks of a prompt. The first block is renewed last: without it, the others are
        useless."""
        for key in reversed(keys):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self.blocks_max:
            self._blocks.popitem(last=False)
