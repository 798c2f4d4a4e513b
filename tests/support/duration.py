"""How long tests run: the tests that are slow and those that are long, and how far the long ones go.

Slow and long tests are listed by their names' beginnings: `make unit` leaves out both, and `make test` the long ones,
which `make test-long` runs. CI runs all. A slow test takes more than 0.3 CPU seconds, or is in a file that takes more
than one; a long one takes more than about 5. `make test SLOWEST=100` prints the figures. The names stand here and not
as marks beside the tests, so that they are seen side by side.

`make test-long` runs long tests as far as they usually find something, `make test-deep` to the end. The last full run
is in benchmarks/results/deep_tests.md.
"""

from __future__ import annotations

import os

import pytest

DEEP = os.environ.get("HEADGATE_TESTS") == "deep"


def at_depth(usual: int, deep: int) -> int:
    """Return how many examples, seeds or schedules a test runs."""
    return deep if DEEP else usual


LONG = (
    "tests/conformance/test_store_concurrency.py::test_processes_lose_nothing",
    "tests/property/test_bwfq_clocks.py::test_forgetting_changes_no_decision",
    "tests/property/test_bwfq_clocks.py::test_heaps_and_memory_stay_in_proportion",
    "tests/property/test_planner_dominance.py::test_few_random_scenes_are_dominated",
    "tests/property/test_planner_dominance.py::test_no_simpler_planner_dominates_in_the_scenes_of_outsiders",
    "tests/property/test_planner_dominance.py::test_the_worst_scenes_of_the_search_are_no_worse",
    "tests/property/test_shard_processes.py::test_in_another_order_of_arrival",
    "tests/property/test_shard_processes.py::test_in_the_same_order_of_arrival",
    "tests/property/worker_policies/test_queue_pick_cost.py::test_the_benchmark_has_its_columns",
    "tests/property/worker_policies/test_queue_policies.py::test_the_lemma_fails_somewhere",
    "tests/property/worker_policies/test_tier_machine.py::test_every_request_ends_in_each_schedule",
    "tests/simulation/test_gate_cluster.py::test_the_runs_that_decided_the_order_are_deterministic",
    "tests/simulation/test_gate_cluster.py::test_the_same_seed_gives_the_same_workload_and_the_same_runs",
    "tests/simulation/test_gate_cluster.py::test_the_workload_offers_its_load",
    "tests/simulation/test_seeded_bugs.py::test_the_bug_is_found",
    "tests/simulation/test_storm.py::TestMoreSeeds",
    "tests/simulation/test_storm.py::TestStillMoreSeeds",
    "tests/simulation/test_storm.py::test_a_seed_runs_the_same_way_each_time",
    "tests/simulation/test_storm.py::test_nothing_is_violated_with_eight_fronts",
    "tests/unit/cli/test_reproduce.py::test_a_document_that_shows_another_result_is_exit_1",
    "tests/unit/cli/test_reproduce.py::test_the_same_bytes_on_one_core_and_on_two",
    "tests/unit/functions/test_generated_bodies.py",
    "tests/unit/gate_policies/test_gate_runs.py",
    "tests/unit/service/test_leadership.py::test_no_takeover_without_a_fault_at_a_p99_of_100_ms",
    "tests/unit/service/test_projection.py::test_gate_processes_say_in_the_log_what_they_projected",
    "tests/unit/worker/executions/test_admission.py::test_slots_are_never_exceeded",
)
SLOW = (
    "tests/unit/cli/test_cli.py",
    "tests/unit/cli/test_reproduce.py",
    "tests/unit/cli/test_simulate",
    "tests/unit/cli/test_tenants",
    "tests/unit/cli/test_top.py",
    "tests/unit/demo/test_order.py",
    "tests/unit/deployment/test_loading.py::test_anything_is_a_deployment_or_a_mistake_in_one_line",
    "tests/unit/doctor/test_account.py",
    "tests/unit/doctor/test_deployed",
    "tests/unit/doctor/test_weights.py",
    "tests/unit/functions/test_mutated_bodies.py",
    "tests/unit/functions/test_openapi.py",
    "tests/unit/functions/test_operator_page.py",
    "tests/unit/functions/test_outage.py",
    "tests/unit/functions/test_raw_requests.py",
    "tests/unit/functions/test_scaling_rehearsal.py",
    "tests/unit/gate_policies/test_bwfq_benchmark.py",
    "tests/unit/gate_policies/test_bwfq_forgetting.py",
    "tests/unit/gate_policies/test_share_bounds.py",
    "tests/unit/gate_policies/test_sorted_entries.py",
    "tests/unit/operations/test_batches.py",
    "tests/unit/operations/test_scale.py",
    "tests/unit/planning/test_mixed_integer.py",
    "tests/unit/planning/test_plan.py",
    "tests/unit/planning/test_planner.py",
    "tests/unit/planning/test_planning_groups_benchmark.py",
    "tests/unit/service/test_faults.py",
    "tests/unit/service/test_garbage.py",
    "tests/unit/service/test_gate_process.py",
    "tests/unit/service/test_leadership.py",
    "tests/unit/service/test_link_faults.py",
    "tests/unit/service/test_many_ends.py",
    "tests/unit/service/test_patience.py",
    "tests/unit/service/test_planning.py",
    "tests/unit/service/test_pool_sweep.py",
    "tests/unit/service/test_projection.py",
    "tests/unit/service/test_storm_bugs.py",
    "tests/unit/shard/test_swapping.py::test_each_model_is_loaded_within_the_bound",
    "tests/unit/shard/test_sweeps.py",
    "tests/unit/shard/test_tiers.py::test_a_call_is_dispatched_within_the_stated_bound",
    "tests/unit/shard/test_usage.py::test_of_many_tenants_only_the_active_ones_are_held_and_saved",
    "tests/unit/shard/test_waits.py",
    "tests/unit/stores/test_sqlite_migration.py",
    "tests/unit/test_house.py",
    "tests/unit/test_imports.py",
    "tests/unit/test_tidy.py",
    "tests/unit/test_tracing.py",
    "tests/unit/test_vllm_wheel.py",
    "tests/unit/test_words.py",
    "tests/unit/worker/health/test_engine_health.py",
    "tests/unit/worker/test_hostile_answers.py",
    "tests/unit/worker/test_options.py",
    "tests/unit/worker/test_outbox.py",
    "tests/unit/worker/test_weights.py",
    "tests/unit/worker/test_worker_sockets.py",
    "tests/unit/worker/vllm_engine/test_sleep.py",
    "tests/unit/worker/vllm_engine/test_vllm_names.py",
    "tests/unit/worker_policies/test_slo.py",
    "tests/unit/workloads/test_planning.py",
    "tests/unit/workloads/test_plans.py",
    "tests/unit/workloads/test_sources.py",
    "tests/unit/workloads/test_traces.py::test_what_is_written_is_read",
)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(LONG):
            item.add_marker("long")
        elif item.nodeid.startswith(SLOW):
            item.add_marker("slow")
