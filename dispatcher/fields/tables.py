"""The tables of all endpoints. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.fields.kinds import Field, FieldTable
from dispatcher.fields.table.batches import BATCH, LINE
from dispatcher.fields.table.chat import CHAT
from dispatcher.fields.table.completion import COMPLETION
from dispatcher.fields.table.embeddings import EMBEDDINGS
from dispatcher.fields.table.responses import RESPONSES
from dispatcher.model.requests import Endpoint

_INPUTS = frozenset({"messages", "prompt", "input"})


def _elsewhere(own: Mapping[str, Field], other: Mapping[str, Field]) -> dict[str, Field]:
    return {name: field for name, field in other.items() if name not in own and name not in _INPUTS}


CHAT_TABLE = FieldTable("POST /v1/chat/completions", CHAT, _elsewhere(CHAT, COMPLETION))
COMPLETION_TABLE = FieldTable("POST /v1/completions", COMPLETION, _elsewhere(COMPLETION, CHAT))
EMBEDDINGS_TABLE = FieldTable("POST /v1/embeddings", EMBEDDINGS)
RESPONSES_TABLE = FieldTable("POST /v1/responses", RESPONSES)
BATCH_TABLE = FieldTable("POST /v1/batches", BATCH)
LINE_TABLE = FieldTable("A line of a batch's input file", LINE)

TABLES: Mapping[Endpoint, FieldTable] = {
    Endpoint.CHAT: CHAT_TABLE,
    Endpoint.COMPLETION: COMPLETION_TABLE,
    Endpoint.EMBEDDINGS: EMBEDDINGS_TABLE,
}
ALL = (CHAT_TABLE, COMPLETION_TABLE, RESPONSES_TABLE, EMBEDDINGS_TABLE, BATCH_TABLE, LINE_TABLE)
