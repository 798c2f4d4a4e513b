"""instructor: objects from text, by a tool and by a schema, whole and in parts."""

from __future__ import annotations

import instructor
from openai import OpenAI
from pydantic import BaseModel
from steps import MODEL, run

MESSAGES = [{"role": "user", "content": "Extract: Jason is 25 years old."}]


class User(BaseModel):
    name: str
    age: int


def extraction() -> None:
    client = instructor.from_provider(f"openai/{MODEL}")
    assert isinstance(client.chat.completions.create(response_model=User, messages=MESSAGES), User)


async def asynchronous_extraction() -> None:
    client = instructor.from_provider(f"openai/{MODEL}", async_client=True)
    assert isinstance(await client.chat.completions.create(response_model=User, messages=MESSAGES), User)


def second_turn() -> None:
    client = instructor.from_provider(f"openai/{MODEL}")
    user, completion = client.chat.completions.create_with_completion(response_model=User, messages=MESSAGES)
    assert isinstance(user, User)
    message = completion.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "saved"} for call in message.tool_calls or ()]
    turn = [*MESSAGES, message.model_dump(), *results]
    turn.append({"role": "user", "content": "Extract: Anna is 31 years old."})
    assert isinstance(client.chat.completions.create(response_model=User, messages=turn), User)


def json_schema() -> None:
    client = instructor.from_openai(OpenAI(), mode=instructor.Mode.JSON_SCHEMA)
    assert isinstance(client.chat.completions.create(model=MODEL, response_model=User, messages=MESSAGES), User)


def partial_object() -> None:
    client = instructor.from_provider(f"openai/{MODEL}")
    parts = list(client.chat.completions.create_partial(response_model=User, messages=MESSAGES))
    assert isinstance(parts[-1].age, int)


run(extraction, asynchronous_extraction, second_turn, json_schema, partial_object)
