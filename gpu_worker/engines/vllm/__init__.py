"""The engine on vLLM: our scheduler, waiting queue and KV connector inside it."""
