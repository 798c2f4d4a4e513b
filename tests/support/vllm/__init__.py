"""Support for tests/vllm: a whole vLLM in this process, and our schedulers in vLLM without a model.

vLLM reads these variables when it is imported, so they are set before any module here imports it.
"""

import os

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
