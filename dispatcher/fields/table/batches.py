"""The tables of `POST /v1/batches` and of one line of a batch's input file. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.fields.kinds import Field, Kind
from dispatcher.fields.shapes.containers import Entries
from dispatcher.fields.shapes.scalars import Anything, Text, Word
from dispatcher.fields.table.ours import refused
from dispatcher.model.requests import Endpoint

RESPONSES = "/v1/responses"
ENDPOINTS: Mapping[str, Endpoint] = {
    "/v1/chat/completions": Endpoint.CHAT,
    "/v1/completions": Endpoint.COMPLETION,
    "/v1/embeddings": Endpoint.EMBEDDINGS,
    RESPONSES: Endpoint.CHAT,
}
"""The paths that the lines of a batch may have, and what a line is submitted as."""
METADATA_MAX, METADATA_KEY_CHARS_MAX, METADATA_CHARS_MAX = 16, 64, 512
WINDOW_HOURS_MAX = 24
CUSTOM_ID_CHARS_MAX = 512

_KEPT = "The service keeps all files for the same time, and each file object says until when."

BATCH: Mapping[str, Field] = {
    "input_file_id": Field(Kind.READ, Text(128, 1), required=True),
    "endpoint": Field(Kind.READ, Word(tuple(ENDPOINTS)), "The path of all lines.", required=True),
    "completion_window": Field(
        Kind.READ,
        Text(3, 2, r"([1-9]|1[0-9]|2[0-4])h", f"a number of hours from 1h to {WINDOW_HOURS_MAX}h"),
        "OpenAI knows 24h only.",
        required=True,
    ),
    "metadata": Field(
        Kind.READ, Entries(Text(METADATA_CHARS_MAX), METADATA_MAX, Text(METADATA_KEY_CHARS_MAX, 1)), neutral=({},)
    ),
    "output_expires_after": refused(_KEPT),
}

LINE: Mapping[str, Field] = {
    "custom_id": Field(Kind.READ, Text(CUSTOM_ID_CHARS_MAX, 1), "Different in every line.", required=True),
    "method": Field(Kind.READ, Word(("POST",)), required=True),
    "url": Field(Kind.READ, Text(128), "The endpoint of the batch.", required=True),
    "body": Field(Kind.READ, Anything(), "The request's body, an object without `stream`.", required=True),
}
