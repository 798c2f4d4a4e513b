"""`python -m headgate_vllm.check`: a table of vLLM's names that our code uses, and whether the installed vLLM has them.

The exit code is 0 if all fit, 1 if one of the scheduler does not, 2 without vLLM.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpu_worker.engines.vllm.compatibility import NameCheck, check_names, describe_missing, installed_version, is_tested
from gpu_worker.engines.vllm.names import TESTED_VERSIONS, VLLM_NAMES, VllmPart

_FITS, _NEEDED_FAILS, _NO_VLLM = range(3)


def describe(version: str, found: Sequence[NameCheck]) -> tuple[str, int]:
    """Return the table with its conclusion, and the exit code."""
    width = max(len(each.name) for each in found)
    lines = [f"{each.part.value:<10}  {each.name:<{width}}  {each.problem or 'ok'}" for each in found]
    missing = [each for each in found if each.problem]
    tested = "" if is_tested(version) else f", which was not tested (tested: {', '.join(TESTED_VERSIONS)})"
    lines += ["", f"vLLM {version}{tested}: {len(found) - len(missing)} of {len(found)} names fit"]
    for part in VllmPart:
        if lost := [each for each in missing if each.part is part]:
            lines.append(f"{part.value}: {describe_missing(version, lost)}")
    fails = any(each.part is VllmPart.SCHEDULER for each in missing)
    return "\n".join(lines), _NEEDED_FAILS if fails else _FITS


def main() -> int:
    """Write the table to standard output. Return the exit code."""
    version = installed_version()
    if version is None:
        sys.stderr.write(f"vLLM is not installed; headgate's scheduler needs vLLM {', '.join(TESTED_VERSIONS)}\n")
        return _NO_VLLM
    parts = [part for part in VllmPart if part is not VllmPart.WORKER]
    text, code = describe(version, list(check_names(VLLM_NAMES, parts)))
    sys.stdout.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
