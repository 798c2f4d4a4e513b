"""Names of policies: which parameters are accepted, and one sentence for a wrong one."""

from __future__ import annotations

import pytest

from gpu_worker.policies.fairness.registry import make_policy


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "lottery",
            r"unknown queue policy 'lottery'; there are drr:QUANTUM, fcfs, lcf, .*tiered\[:POLICY\], .*wsc\[:A,B,C\]",
        ),
        ("vtc:3", "takes nothing after its name"),
        ("rpm", "whole number"),
        ("rpm:", "nothing after the colon.*rpm:N"),
        ("rpm:0", "at least 1"),
        ("rpm:1.5", "whole number"),
        ("rpm:-1", "whole number"),
        ("rpm:" + "9" * 5_000, "whole number"),
        ("vtc-cap:much", "whole number"),
        ("vtc-noisy:0", "above 0 and at most 1"),
        ("vtc-noisy:1.1", "above 0 and at most 1"),
        ("vtc-noisy:nan", "above 0 and at most 1"),
        ("drr:0", "above 1e-06"),
        ("drr:inf", "above 1e-06"),
        ("wsc:", "nothing after the colon"),
        ("wsc:1,2", "3 numbers"),
        ("wsc:0,0,0", "not all 0"),
        ("wsc:1,-1,1", "none negative"),
        ("wsc:1,nan,1", "3 numbers"),
    ],
)
def test_a_wrong_name_is_one_sentence(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        make_policy(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["rpm:1", "rpm:000000000000000007", "vtc-noisy:1", "drr:0.5", "wsc:0,0,1", "vtc-cap:1"]
)
def test_the_limits_of_parameters_are_accepted(name: str) -> None:
    assert make_policy(name).waiting == 0
