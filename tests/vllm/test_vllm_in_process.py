"""`LLM()` without a server: Python code names the tenant of each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from vllm import LLM, SamplingParams

import headgate_vllm
from gpu_worker.engines.random_llama import TinySize, ensure_tiny_model
from gpu_worker.engines.vllm.scheduler import TierScheduler
from tests.support.vllm.engine import vllm_driver

TENANTS = """
[tenants.heavy]
weight = 3.0
[tenants.urgent]
tier = "premium"
[tenants.north]
prefix_group = "partners"
[tenants.south]
prefix_group = "partners"
"""


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("home")
    (folder / "tenants.toml").write_text(TENANTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADGATE_TENANTS", str(folder / "tenants.toml"))
        model = ensure_tiny_model(folder, TinySize())
        with vllm_driver(model, batch=2, prefix_caching=True, scheduler="headgate_vllm.Scheduler") as driver:
            assert isinstance(driver.scheduler, TierScheduler)
            yield driver.llm


def ends_of(llm: LLM, tenants: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Generate for these tenants, in this order, with one call. Return the tenants in the order of their ends."""
    ends: list[str] = []
    step = llm.llm_engine.step

    def noted_step() -> object:
        outputs = step()
        ends.extend(tenants[int(each.prompt_token_ids[0]) - 100] for each in outputs if each.finished)
        return outputs

    monkeypatch.setattr(llm.llm_engine, "step", noted_step)
    usual = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": [100 + place, *range(5, 20)]} for place in range(len(tenants))]
    outputs = llm.generate(prompts, [headgate_vllm.for_tenant(usual, each) for each in tenants], use_tqdm=False)
    assert [len(each.outputs[0].token_ids) for each in outputs] == [6] * len(tenants)
    return ends


def test_a_flood_and_a_quiet_tenant_take_turns(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = ends_of(llm, ["flood"] * 24 + ["quiet"] * 4, monkeypatch)
    assert Counter(ends[:10])["quiet"] == 4, "vLLM's own order would end them last"


def test_weights_and_tiers_are_those_of_the_file(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = ends_of(llm, ["light"] * 12 + ["heavy"] * 12 + ["urgent"] * 2, monkeypatch)
    assert ends.index("urgent") < 2
    while_both_wait = Counter(ends[: 2 + 16])
    assert 10 <= while_both_wait["heavy"] <= 13
    assert while_both_wait["light"] >= 3


def test_tenants_share_prefixes_only_within_their_group(llm: LLM) -> None:
    """Each tenant sends the same prompt. The salt of a prompt itself divides its tenant's prefixes further."""
    usual = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
    tokens = list(range(300, 350))

    def cached_tokens(tenant: str, salt: str | None = None) -> int:
        prompt = {"prompt_token_ids": tokens} if salt is None else {"prompt_token_ids": tokens, "cache_salt": salt}
        (output,) = llm.generate([prompt], headgate_vllm.for_tenant(usual, tenant), use_tqdm=False)
        return int(output.num_cached_tokens or 0)

    assert cached_tokens("acme") == 0
    whole = cached_tokens("acme")
    assert whole >= 32
    assert cached_tokens("globex") == 0
    assert cached_tokens("partners") == 0, "a tenant has the name of a group"
    assert [cached_tokens("north"), cached_tokens("south")] == [0, whole]
    assert [cached_tokens("acme", "own"), cached_tokens("acme", "own"), cached_tokens("acme")] == [0, whole, whole]
