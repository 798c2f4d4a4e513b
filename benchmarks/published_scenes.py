"""Ten scenes of published workloads and public reports. An outsider wrote them without a look at the planner and before
any run. One weight was chosen with them (planning/choice.py, _LEFT); no scene was changed after its first run."""

from __future__ import annotations

from math import cos, pi

from benchmarks.planner_scenes import FAST, SLOW, Scene, Stream, fleet, scene
from dispatcher.policies.planning.slo import SloClass

_TEN = (SloClass("interactive", 10.0), SloClass("normal", 60.0), SloClass("batch", 3600.0, is_deferred=True))
_TEN_MINUTES = (SloClass("interactive", 20.0), SloClass("normal", 60.0), SloClass("batch", 600.0, is_deferred=True))
_DAY_S, _STEP_S = 600, 50


def published_scenes(seed: int = 0) -> list[Scene]:
    """Return the scenes, with the arrivals of the seed."""
    groups = {f"g{group}m{at}": 6.0 for group in range(3) for at in range(3)}
    active_s = [(0, 0, 80), (1, 80, 160), (2, 160, 240), (0, 240, 320)]
    day = {"europe": 15.0, "america": 15.0, "asia": 15.0, "reports": 15.0}
    ranked = {f"rank{at}": 8.0 for at in range(1, 9)}
    powers = [at**-2.1 for at in range(1, 9)]
    market = {f"m{at}": 1.0 for at in range(28)}
    loads_s = (3.0, 4.0, 4.0, 5.0, 5.0, 5.0, 5.0, 6.0, 7.0, 9.0, 11.0, 19.0)
    steps = {f"step{at}": seconds for at, seconds in enumerate(loads_s)}
    described = [
        # redhat-developer/vscode-paver issue 137: tab completion and chat with two models, 45 to 60 s at each change;
        # TabbyML/tabby issue 4208: completion, chat and embedding on two GPUs. The embedding model is asked in one go.
        ("tab_and_chat", fleet(2, {"tab": 45.0, "chat": 60.0, "embed": 5.0}, loaded=("tab", "chat"), classes=_TEN),
              [Stream("editor", "tab", 22, 400, outputs=20), Stream("chat", "chat", 7, 400, 0, "normal", 300),
               Stream("indexer", "embed", 10, 250, 100, "batch", 4, even=True)]),
        # Prism (arXiv 2505.04021): sets of models become active together and shift over time, the others are almost
        # idle, and rates change more than fivefold within a minute.
        ("bursty_groups", fleet(3, groups),
              [*(Stream(f"team{name[1]}", name, 0.1, 320) for name in groups),
               *(Stream(f"team{group}", f"g{group}m{at}", 12, end, start)
                 for group, start, end in active_s for at in range(3))]),
        # SageServe (arXiv 2502.14617, the study of Office 365): interactive load follows the day of each region, and
        # work that can wait (reports) comes evenly. A day is 600 s; rates change in steps.
        ("three_regions", fleet(3, day, kinds=(SLOW,)),
              [*(Stream(name, name, 1.3 * (1 + 0.9 * cos(2 * pi * ((start + _STEP_S / 2) / _DAY_S - at / 3))),
                        start + _STEP_S, start)
                 for at, name in enumerate(("europe", "america", "asia")) for start in range(0, _DAY_S, _STEP_S)),
               Stream("reports", "reports", 0.8, 600, 0, "batch")]),
        # MuxServe (ICML 2024, section 4, synthetic workloads): popularity is a power law (here of exponent 2.1), and
        # answers have the 338 tokens of ShareGPT. The first model needs more than one worker.
        ("power_law", fleet(4, ranked),
              [Stream(f"rank{at}", f"rank{at}", 40 * power / sum(powers), 250, outputs=338)
               for at, power in enumerate(powers, 1)]),
        # Aegaeon (SOSP 2025): sporadic models of equal rates, seven for each GPU, most of them active at any time
        # because an answer takes long, and switches that were made cheap.
        ("seven_each", fleet(4, market, kinds=(SLOW,)), [Stream(name, name, 0.16, 300) for name in market]),
        # llm-d/llm-d-batch-gateway issue 491: bursts that saturate and 1 request/s between them, 90 s each, and three
        # batch jobs of 1000 requests that are all there before.
        ("waves_and_batch", fleet(2, {"chat": 10.0, "bulk": 10.0}, classes=_TEN_MINUTES),
              [*(Stream("chat", "chat", per_s, start + 90, start)
                 for start, per_s in ((0, 30), (90, 1), (180, 30), (270, 1))),
               *(Stream(f"job{at}", "bulk", 200, 5, 0, "batch", even=True) for at in range(3))]),
        # ollama issues 8430 and 1288: unlike GPUs, and the large model is to have the fast one. It begins elsewhere.
        ("unlike_cards", fleet(3, {"large": 12.0, "small": 3.0, "coder": 6.0}, loaded=("small", "large", "coder"),
                               kinds=(FAST, SLOW, SLOW)),
              [Stream("large", "large", 14, 300), Stream("small", "small", 1.2, 300),
               Stream("coder", "coder", 1.2, 300)]),
        # mittwald/feature-requests issue 378: with a new model the old one is used less but must stay; the days after
        # DeepSeek R1 ("server busy"): at once more requests for the new model than there is room for.
        ("release_day", fleet(2, {"old": 10.0, "other": 10.0, "new": 45.0}, loaded=("old", "other")),
              [Stream("old", "old", 18, 100), Stream("old", "old", 10, 200, 100), Stream("old", "old", 4, 300, 200),
               Stream("other", "other", 7, 300), Stream("new", "new", 36, 200, 100),
               Stream("new", "new", 25, 300, 200)]),
        # ServeGen (arXiv 2505.09999, reasoning workloads): a reasoning model with answers several times as long as
        # those of the language and multimodal models beside it.
        ("reasoning", fleet(3, {"chat": 8.0, "reason": 8.0, "code": 8.0, "vision": 8.0}),
              [Stream("chat", "chat", 16, 250), Stream("reason", "reason", 7, 250, 0, "normal", 900),
               Stream("code", "code", 8, 250, outputs=300), Stream("vision", "vision", 5, 250, outputs=50)]),
        # roboflow/inference issue 2448: six workflows of 3 to 5 models each out of a working set of 12, loads of 3 to
        # 19 s (median 5), and models evicted although they are in rotation. A workflow is a tenant.
        ("workflows", fleet(6, steps, kinds=(SLOW,)),
              [Stream(f"flow{at}", f"step{(2 * at + step) % 12}", 1, 300, outputs=50)
               for at in range(6) for step in range(3 + at % 3)]),
    ]  # fmt: skip
    return [scene(*each, seed) for each in described]
