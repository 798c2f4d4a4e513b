"""Vidur's side of vidur_comparison.py. The interpreter of an environment with vidur runs it, without headgate.

`python vidur_side.py TRACE.csv STEP.json` prints one JSON object. Vidur's profiles of step times are not in its
package, but on a hub of data sets. The step times of headgate's profile replace them, as a predictor of Vidur's kind.
Everything else is Vidur's: events, requests, its Sarathi scheduler. It measures and writes nothing: its metrics are
off, and so is its Chrome trace, which is on by default and took 3.4 s of 9.1 s for 5,000 requests. headgate keeps its
measures.

Two settings differ from Vidur's defaults. With the pool of headgate's profile its schedulers preempt, and then fail an
assertion of their own (entities/request.py, tokens processed beyond the total, in 0.0.26; vLLM's and Sarathi's alike),
so it gets ten times the pool, and as many requests at once as headgate's engine runs. Its default scheduler, Mnemosyne,
needs batches split over devices, so it runs Sarathi.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

from vidur._native.entities import ExecutionTime
from vidur.config import SimulationConfig
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
from vidur.simulator import Simulator
from vidur.types import ExecutionTimePredictorType


class GivenStepTimes:
    """`get_execution_time` returns milliseconds for each layer; Vidur computes the step's time from them."""

    step: ClassVar[dict[str, Any]] = {}

    def __init__(self, predictor_config: Any, replica_config: Any, cache_config: Any) -> None:
        self._layers = replica_config.num_layers_per_pipeline_stage

    def get_execution_time(self, batch: Any, pipeline_stage: int) -> Any:
        step = self.step
        prompt = sum(tokens for tokens in batch.num_q_tokens if tokens > 1)
        decodes = sum(tokens == 1 for tokens in batch.num_q_tokens)
        seconds = step["base"] + step["per_request"] * decodes + step["per_prompt_token"] * prompt
        seconds += step["per_kv_token"] * sum(batch.num_kv_tokens)
        return ExecutionTime(self._layers, *[0.0] * 2, 1e3 * seconds / self._layers, *[0.0] * 11)

    def get_hash(self) -> str:
        return "given"

    def to_dict(self) -> dict[str, Any]:
        return {}


def main() -> None:
    trace = str(Path(sys.argv[1]).resolve())
    GivenStepTimes.step = json.loads(Path(sys.argv[2]).read_text())
    ExecutionTimePredictorRegistry.unregister(ExecutionTimePredictorType.RANDOM_FORREST)
    ExecutionTimePredictorRegistry.register(ExecutionTimePredictorType.RANDOM_FORREST, GivenStepTimes)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        sys.argv = [sys.argv[0], *options(trace, folder)]
        config = SimulationConfig.create_from_cli_args()
        began = time.perf_counter()
        simulator = Simulator(config)
        made = time.perf_counter()
        requests = [event._request for _, event in simulator._event_queue]
        started = time.perf_counter()
        simulator.run()
        ran = time.perf_counter()
    completed = sum(request.completed for request in requests)
    report = {"setup_s": made - began, "run_s": ran - started, "simulated_s": simulator._time, "completed": completed}
    print(json.dumps(report))


def options(trace: str, folder: str) -> list[str]:
    """Return Vidur's options: one replica of one device."""
    step = GivenStepTimes.step
    return [
        *("--request_generator_config_type", "trace_replay"),
        *("--trace_request_generator_config_trace_file", trace),
        *("--trace_request_generator_config_prefill_scale_factor", "1"),
        *("--trace_request_generator_config_time_scale_factor", "1"),
        *("--replica_config_num_pipeline_stages", "1"),
        *("--replica_config_tensor_parallel_size", "1"),
        *("--replica_scheduler_config_type", "sarathi"),
        *("--sarathi_scheduler_config_chunk_size", str(step["minibatch_tokens"])),
        *("--sarathi_scheduler_config_batch_size_cap", str(step["batch_max"])),
        *("--cache_config_block_size", "16"),
        *("--cache_config_num_blocks", str(10 * step["pool_tokens"] // 16)),
        *("--metrics_config_output_dir", folder),
        "--no-metrics_config_write_metrics",
        "--no-metrics_config_enable_chrome_trace",
        *("--log_level", "error"),
    ]


if __name__ == "__main__":
    main()
