#!/bin/sh
# The handler of headgate-front: the Lambda Web Adapter starts it and sends it each request over HTTP.
exec python3 -m uvicorn functions.http_api.app:app \
  --host 127.0.0.1 --port "${AWS_LWA_PORT:-8080}" --lifespan on --no-access-log --log-level warning
