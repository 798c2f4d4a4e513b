"""LlamaIndex: chat, streams, structured output and a FunctionAgent with a tool and a memory."""

from __future__ import annotations

from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCallResult
from llama_index.core.llms import ChatMessage
from llama_index.core.workflow import Context
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from steps import API_KEY, BASE_URL, MODEL, run


class Album(BaseModel):
    """An album and its artist."""

    name: str
    artist: str


def _model() -> OpenAILike:
    return OpenAILike(
        model=MODEL, api_base=BASE_URL, api_key=API_KEY, is_chat_model=True, is_function_calling_model=True
    )


def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


def chat() -> None:
    assert _model().chat([ChatMessage(role="user", content="Who is Paul Graham?")]).message.content


def second_turn() -> None:
    messages = [ChatMessage(role="user", content="Who is Paul Graham?")]
    for question in ("Where does he live?", ""):
        answer = _model().chat(messages).message
        assert answer.content
        messages += [answer, ChatMessage(role="user", content=question)]


def streamed() -> None:
    parts = list(_model().stream_chat([ChatMessage(role="user", content="Who is Paul Graham?")]))
    assert len(parts) > 1
    assert parts[-1].message.content


def completion() -> None:
    model = OpenAILike(model=MODEL, api_base=BASE_URL, api_key=API_KEY, max_tokens=20)
    assert model.complete("Paul Graham is ").text


def structured_output() -> None:
    model = _model().as_structured_llm(Album)
    assert isinstance(model.chat([ChatMessage(role="user", content="Name an album.")]).raw, Album)


async def agent() -> None:
    made = FunctionAgent(tools=[multiply], llm=_model(), system_prompt="You multiply two numbers.")
    handler = made.run("What is 1234 * 4567?")
    events = [event async for event in handler.stream_events()]
    assert (await handler).response.content
    assert [event.tool_name for event in events if isinstance(event, ToolCallResult)] == ["multiply"]
    assert any(isinstance(event, AgentStream) and event.delta for event in events)


async def second_turn_of_an_agent() -> None:
    made = FunctionAgent(tools=[multiply], llm=_model(), system_prompt="You multiply two numbers.")
    context = Context(made)
    for question in ("What is 2 * 3?", "And 4 * 5?"):
        answer = await made.run(question, ctx=context)
        assert [call.tool_name for call in answer.tool_calls] == ["multiply"]
        assert answer.response.content


run(chat, second_turn, streamed, completion, structured_output, agent, second_turn_of_an_agent)
