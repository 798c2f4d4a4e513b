"""Every name of vLLM that our code uses: the list that the version check reads (compatibility.py). Pure.

Most are not public API, so a release of vLLM may remove any of them. The test of this list (test_vllm_names.py)
compares it with our sources: a use that is not listed fails there, and so does an entry without a use.

A call is written with the arguments that we pass, as in Python: those after `*` by name. A hook is a method of vLLM's
that a class of ours replaces, with the arguments that vLLM passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class VllmPart(StrEnum):
    """What needs a name. A server without swap starts on a vLLM that lacks a name of the swap."""

    SCHEDULER = "scheduler"
    SWAP = "swap"
    STATISTICS = "statistics"
    TENANTS = "tenants"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class VllmName:
    """A class or function of a module. `call`: the arguments that we pass to it; None: it is not called.

    `attributes`: what we read or set on the class or on its instances. `calls`, `hooks`: its methods.
    """

    part: VllmPart
    module: str
    name: str
    call: str | None = None
    attributes: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()


TESTED_VERSIONS = ("0.32",)
"""The releases of vLLM that tests/vllm runs."""

_SCHED, _CONFIG = "vllm.v1.core.sched", "vllm.config"
_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base"
_CACHE = "vllm.v1.kv_cache_interface"

VLLM_NAMES: tuple[VllmName, ...] = (
    # The scheduler and its queue.
    VllmName(
        VllmPart.SCHEDULER,
        f"{_SCHED}.scheduler",
        "Scheduler",
        attributes=(
            *("vllm_config", "scheduler_config", "policy", "kv_holding_waiting", "waiting", "running", "requests"),
            *("pause_state", "prev_step_scheduled_req_ids", "connector", "kv_cache_manager", "deferred_frees"),
            *("block_size", "max_model_len", "max_num_active_reqs", "max_num_scheduled_tokens", "lora_config"),
            *("need_mamba_block_aligned_split", "max_num_encoder_input_tokens", "encoder_cache_manager"),
            *("num_prefill_lookahead", "finished_recving_kv_req_ids", "_inflight_prefills", "requires_kv_delivery"),
            *("num_waiting_for_streaming_input", "num_lookahead_tokens"),
        ),
        calls=(
            "finish_requests(request_ids, finished_status)",
            "_preempt_request(request, timestamp, drop_stale_output)",
        ),
        hooks=(
            "schedule(throttle_prefills)",
            "update_from_output(scheduler_output, model_runner_output)",
            "add_request(request)",
            "has_requests()",
            "_preempt_request(request, timestamp, drop_stale_output)",
            "_free_request(request, delay_free_blocks)",
            "_reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)",
            "reset_prefix_cache(reset_running_requests, reset_connector)",
        ),
    ),
    VllmName(VllmPart.SCHEDULER, f"{_SCHED}.async_scheduler", "AsyncScheduler"),
    VllmName(VllmPart.SCHEDULER, f"{_SCHED}.interface", "PauseState", attributes=("UNPAUSED",)),
    VllmName(VllmPart.SCHEDULER, f"{_SCHED}.request_queue", "SchedulingPolicy", attributes=("FCFS",)),
    VllmName(VllmPart.SCHEDULER, f"{_SCHED}.request_queue", "create_request_queue", call="(policy)"),
    VllmName(
        VllmPart.SCHEDULER,
        f"{_SCHED}.request_queue",
        "RequestQueue",
        hooks=(
            "add_request(request)",
            "pop_request()",
            "peek_request()",
            "prepend_request(request)",
            "prepend_requests(requests)",
            "remove_request(request)",
            "remove_requests(requests)",
        ),
    ),
    # A request.
    VllmName(
        VllmPart.SCHEDULER,
        "vllm.v1.request",
        "Request",
        attributes=(
            *("request_id", "client_index", "status", "priority", "sampling_params", "structured_output_request"),
            *("max_tokens", "num_tokens", "num_prompt_tokens", "num_output_tokens", "num_computed_tokens"),
            *("num_tokens_with_spec", "num_output_placeholders", "num_stale_output_tokens", "drop_stale_output"),
            *("num_preemptions", "prefill_stats", "resumable", "trace_headers", "pooling_params"),
            *("lora_request", "is_prefill_chunk", "has_encoder_inputs", "mm_features", "cache_salt", "block_hashes"),
        ),
        calls=("get_num_encoder_embeds(input_id)", "update_block_hashes()"),
    ),
    VllmName(
        VllmPart.SCHEDULER,
        "vllm.v1.core.encoder_cache_manager",
        "EncoderCacheManager",
        attributes=("num_freeable_slots", "cached"),
    ),
    VllmName(
        VllmPart.SCHEDULER,
        "vllm.multimodal.inputs",
        "MultiModalFeatureSpec",
        attributes=("identifier", "mm_position"),
    ),
    VllmName(VllmPart.SCHEDULER, "vllm.multimodal.inputs", "PlaceholderRange", attributes=("offset", "length")),
    VllmName(
        VllmPart.SCHEDULER,
        "vllm.v1.request",
        "RequestStatus",
        attributes=("FINISHED_ABORTED", "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"),
    ),
    VllmName(VllmPart.SCHEDULER, "vllm.sampling_params", "SamplingParams", attributes=("logprobs", "extra_args")),
    VllmName(VllmPart.SCHEDULER, "vllm.pooling_params", "PoolingParams", attributes=("extra_kwargs",)),
    VllmName(
        VllmPart.SCHEDULER, "vllm.v1.structured_output.request", "StructuredOutputRequest", attributes=("grammar",)
    ),
    VllmName(
        VllmPart.SCHEDULER,
        "vllm.v1.metrics.stats",
        "PrefillStats",
        attributes=("num_local_cached_tokens", "num_external_cached_tokens"),
    ),
    # A step's input and output.
    VllmName(
        VllmPart.SCHEDULER,
        f"{_SCHED}.output",
        "SchedulerOutput",
        attributes=("num_scheduled_tokens", "scheduled_new_reqs", "scheduled_cached_reqs"),
    ),
    VllmName(VllmPart.SCHEDULER, f"{_SCHED}.output", "NewRequestData", attributes=("req_id", "num_computed_tokens")),
    VllmName(
        VllmPart.SCHEDULER, f"{_SCHED}.output", "CachedRequestData", attributes=("req_ids", "num_computed_tokens")
    ),
    VllmName(
        VllmPart.SCHEDULER,
        "vllm.v1.outputs",
        "ModelRunnerOutput",
        attributes=("req_id_to_index", "sampled_token_ids"),
    ),
    VllmName(VllmPart.SCHEDULER, "vllm.v1.outputs", "LogprobsLists", call="(ids, logprobs, ranks)"),
    VllmName(
        VllmPart.SCHEDULER,
        "vllm.v1.engine",
        "EngineCoreOutput",
        call="(request_id, new_token_ids, *, new_logprobs, finish_reason, stop_reason)",
    ),
    VllmName(
        VllmPart.SCHEDULER, "vllm.v1.engine", "EngineCoreOutputs", call="()", attributes=("outputs", "scheduler_stats")
    ),
    VllmName(VllmPart.SCHEDULER, "vllm.v1.engine", "FinishReason", attributes=("ABORT",)),
    VllmName(VllmPart.SCHEDULER, "vllm.v1.metrics.stats", "SchedulerStats", attributes=("kv_connector_stats",)),
    # The configuration.
    VllmName(
        VllmPart.SCHEDULER,
        f"{_CONFIG}.vllm",
        "VllmConfig",
        attributes=(
            *("additional_config", "scheduler_config", "kv_transfer_config", "parallel_config", "model_config"),
            "diffusion_config",
        ),
    ),
    VllmName(
        VllmPart.SCHEDULER,
        f"{_CONFIG}.parallel",
        "ParallelConfig",
        attributes=("pipeline_parallel_size", "data_parallel_size", "data_parallel_index"),
    ),
    VllmName(VllmPart.SCHEDULER, f"{_CONFIG}.model", "ModelConfig", attributes=("is_encoder_decoder",)),
    VllmName(VllmPart.SCHEDULER, _CACHE, "KVCacheConfig", attributes=("kv_cache_groups",)),
    VllmName(
        VllmPart.SCHEDULER,
        f"{_CONFIG}.scheduler",
        "SchedulerConfig",
        attributes=("policy", "long_prefill_token_threshold", "async_scheduling"),
    ),
    VllmName(
        VllmPart.SCHEDULER,
        f"{_CONFIG}.kv_transfer",
        "KVTransferConfig",
        attributes=("kv_connector", "kv_connector_extra_config"),
    ),
    VllmName(
        VllmPart.SWAP,
        "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector",
        "MultiConnector",
        attributes=("sub_connectors",),
    ),
    # The KV cache.
    VllmName(
        VllmPart.SCHEDULER,
        "vllm.v1.core.kv_cache_manager",
        "KVCacheManager",
        attributes=("block_pool", "coordinator", "enable_caching", "max_model_len", "usage", "watermark_blocks"),
        calls=("get_computed_blocks(request)",),
    ),
    VllmName(
        VllmPart.SCHEDULER,
        "vllm.v1.core.kv_cache_coordinator",
        "KVCacheCoordinator",
        attributes=("single_type_managers",),
        calls=(
            "get_num_blocks_to_allocate(*, request_id, num_tokens, new_computed_blocks, num_encoder_tokens,"
            " total_computed_tokens, num_local_computed_tokens, num_tokens_main_model, apply_admission_cap,"
            " prefill_end)",
        ),
    ),
    VllmName(
        VllmPart.SCHEDULER,
        "vllm.v1.core.single_type_kv_cache_manager",
        "FullAttentionManager",
        attributes=("req_to_blocks",),
    ),
    VllmName(VllmPart.SCHEDULER, f"{_CONFIG}.lora", "LoRAConfig", attributes=("max_loras",)),
    VllmName(VllmPart.SCHEDULER, "vllm.lora.request", "LoRARequest", attributes=("lora_int_id",)),
    VllmName(VllmPart.SCHEDULER, "vllm.v1.core.kv_cache_manager", "KVCacheBlocks", attributes=("blocks",)),
    VllmName(
        VllmPart.SCHEDULER,
        "vllm.v1.core.kv_cache_utils",
        "KVCacheBlock",
        attributes=("block_id", "is_null", "ref_cnt"),
    ),
    VllmName(
        VllmPart.SCHEDULER,
        "vllm.v1.core.block_pool",
        "BlockPool",
        attributes=("num_gpu_blocks",),
        calls=("get_num_free_blocks()",),
    ),
    VllmName(VllmPart.SCHEDULER, "vllm.utils.math_utils", "cdiv", call="(a, b)"),
    VllmName(VllmPart.SCHEDULER, "vllm.logger", "init_logger", call="(name)"),
    # The swap.
    VllmName(
        VllmPart.SWAP,
        _CONNECTOR,
        "KVConnectorBase_V1",
        call="(vllm_config, role, kv_cache_config)",
        attributes=(
            *("_cache_hit_source", "requires_kv_delivery", "_kv_cache_config", "_kv_cache_manager"),
            "_kv_transfer_config",
        ),
        calls=("_get_connector_metadata()",),
        hooks=(
            "get_num_new_matched_tokens(request, num_computed_tokens)",
            "update_state_after_alloc(request, blocks, num_external_tokens)",
            "build_connector_meta(scheduler_output)",
            "request_finished(request, block_ids)",
            "reset_cache()",
            "register_kv_caches(kv_caches)",
            "handle_preemptions(kv_connector_metadata)",
            "start_load_kv(forward_context)",
            "wait_for_layer_load(layer_name)",
            "save_kv_layer(layer_name, kv_layer, attn_metadata)",
            "wait_for_save()",
        ),
    ),
    VllmName(
        VllmPart.SWAP,
        "vllm.distributed.kv_transfer.kv_connector.factory",
        "KVConnectorFactory",
        calls=("register_connector(name, module_path, class_name)",),
    ),
    VllmName(VllmPart.SWAP, _CONNECTOR, "KVConnectorMetadata"),
    VllmName(VllmPart.SWAP, _CONNECTOR, "KVConnectorRole"),
    VllmName(VllmPart.SWAP, "vllm.v1.request", "Request", attributes=("skip_reading_prefix_cache",)),
    VllmName(VllmPart.SWAP, "vllm.v1.core.kv_cache_manager", "KVCacheManager", calls=("get_block_ids(request_id)",)),
    VllmName(VllmPart.SWAP, "vllm.v1.core.kv_cache_manager", "KVCacheBlocks", calls=("get_block_ids()",)),
    VllmName(VllmPart.SWAP, _CACHE, "KVCacheSpec", attributes=("block_size",)),
    VllmName(VllmPart.SWAP, _CACHE, "FullAttentionSpec"),
    VllmName(VllmPart.SWAP, _CACHE, "MLAAttentionSpec"),
    VllmName(VllmPart.SWAP, _CACHE, "UniformTypeKVCacheSpecs", attributes=("kv_cache_specs",)),
    VllmName(
        VllmPart.SWAP,
        _CACHE,
        "KVCacheConfig",
        attributes=("num_blocks", "kv_cache_tensors", "kv_cache_groups", "hash_block_size", "needs_kv_cache_zeroing"),
    ),
    VllmName(VllmPart.SWAP, _CACHE, "KVCacheGroupSpec", attributes=("kv_cache_spec",)),
    VllmName(
        VllmPart.SWAP,
        _CACHE,
        "KVCacheTensor",
        attributes=("layers", "layer_stride", "block_stride", "offset", "host_resident"),
    ),
    VllmName(
        VllmPart.SWAP,
        f"{_CONFIG}.parallel",
        "ParallelConfig",
        attributes=(
            *("tensor_parallel_size", "pipeline_parallel_size"),
            *("decode_context_parallel_size", "prefill_context_parallel_size"),
        ),
    ),
    VllmName(VllmPart.SWAP, f"{_CONFIG}.kv_transfer", "KVTransferConfig", attributes=("kv_connector_extra_config",)),
    VllmName(VllmPart.SWAP, "vllm.v1.metrics.cache_hit_source", "CacheHitSource", attributes=("HOST",)),
    VllmName(VllmPart.SWAP, "vllm.v1.simple_kv_offload.cuda_mem_ops", "pin_tensor", call="(tensor)"),
    # Tenants on /metrics.
    VllmName(
        VllmPart.STATISTICS,
        "vllm.v1.metrics.loggers",
        "AggregateStatLoggerBase",
        hooks=(
            "__init__(vllm_config, engine_indexes)",
            "record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)",
            "log_engine_initialized()",
        ),
    ),
    # The tenants of a bare server.
    VllmName(
        VllmPart.TENANTS,
        "vllm.v1.engine.async_llm",
        "AsyncLLM",
        attributes=("engine_core",),
        hooks=("_add_request(request, prompt, parent_req, index, queue)",),
    ),
    VllmName(
        VllmPart.TENANTS,
        "vllm.v1.engine",
        "EngineCoreRequest",
        attributes=("trace_headers", "lora_request", "cache_salt"),
    ),
    VllmName(VllmPart.TENANTS, "vllm.lora.request", "LoRARequest", attributes=("lora_name",)),
    VllmName(VllmPart.TENANTS, "vllm.exceptions", "VLLMNotFoundError", call="(message)"),
    VllmName(
        VllmPart.TENANTS,
        "vllm.v1.engine.core_client",
        "AsyncMPClient",
        hooks=("add_request_async(request)",),
    ),
    # A worker's server.
    VllmName(VllmPart.WORKER, "vllm.platforms", "current_platform", calls=("is_cpu()",)),
    VllmName(VllmPart.WORKER, "vllm.entrypoints.launchers.api_server.entry", "main", call="()"),
    VllmName(VllmPart.WORKER, "vllm.v1.engine.async_llm", "AsyncLLM", attributes=("logger_manager",)),
    VllmName(VllmPart.WORKER, "vllm.v1.metrics.loggers", "StatLoggerManager", attributes=("stat_loggers",)),
)
