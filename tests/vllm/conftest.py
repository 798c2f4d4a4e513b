"""Without vLLM these tests are not collected: their modules import it."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vllm") else ["*"]
