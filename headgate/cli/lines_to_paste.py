"""The lines that a user pastes into a shell to call the local stack with OpenAI's and AWS's clients."""

from __future__ import annotations

import json
import shlex

from headgate.local.options import Addresses
from headgate.local.seed import CREDENTIALS

VARIABLES = ("AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
DEFAULT_ORDER, DEFAULT_POOL = "bwfq", "default"


def lines_to_paste(addresses: Addresses, order: str, slo_classes: str = "") -> str:
    """Return the lines, for the first tenant. The commands need the gate's order, pools and SLO classes."""
    key = next(iter(addresses.api_keys.values()))
    variables = {name: CREDENTIALS[name] for name in VARIABLES}
    if order != DEFAULT_ORDER:
        variables["HEADGATE_ORDER"] = order
    if len(addresses.pools) > 1:
        pools = {name: {"models": [model]} for name, model in addresses.pools.items()}
        variables["HEADGATE_POOLS"] = f"'{json.dumps(pools, separators=(',', ':'))}'"
    elif DEFAULT_POOL not in addresses.pools:
        (variables["HEADGATE_POOL"],) = addresses.pools
    if slo_classes:
        variables["HEADGATE_SLO_CLASSES"] = shlex.quote(slo_classes)
    aws = " ".join(f"{name}={value}" for name, value in variables.items())
    body = json.dumps({"model": addresses.model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 32})
    return f"""
Paste into a shell, for OpenAI's SDKs and for curl:

export OPENAI_BASE_URL={addresses.openai_base_url} OPENAI_API_KEY={key}
curl {addresses.openai_base_url}/chat/completions -H 'Authorization: Bearer {key}' \
-H 'Content-Type: application/json' -d '{body}'

For AWS's SDKs and headgate's commands (tenants, top, usage):

export AWS_ENDPOINT_URL={addresses.aws_endpoint_url} {aws}
headgate invoke "What is a headgate?" --lambda --key {key} --model {addresses.model} --max-tokens 32
"""
