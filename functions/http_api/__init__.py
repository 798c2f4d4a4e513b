"""OpenAI's HTTP API as one ASGI app: in Lambda behind the Web Adapter, on Fargate, or under uvicorn."""
