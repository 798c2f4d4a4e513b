"""LangChain: a chat model with tools and structured output, and `create_agent`."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, Field
from steps import MODEL, run

QUESTION = {"role": "user", "content": "What is the weather in San Francisco?"}


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is always sunny in {city}!"


class Movie(BaseModel):
    """A movie with details."""

    title: str = Field(description="The title of the movie")
    year: int = Field(description="The year of its release")


def chat_model() -> None:
    answer = init_chat_model(f"openai:{MODEL}").invoke("Why do parrots talk?")
    assert answer.content
    assert answer.usage_metadata["output_tokens"] > 0


def streamed() -> None:
    pieces = [chunk.text for chunk in ChatOpenAI(model=MODEL).stream("Why do parrots talk?")]
    assert len([piece for piece in pieces if piece]) > 1


def bound_tools() -> None:
    answer = ChatOpenAI(model=MODEL).bind_tools([get_weather]).invoke([QUESTION])
    assert [call["name"] for call in answer.tool_calls] == ["get_weather"]


def structured_output() -> None:
    model = ChatOpenAI(model=MODEL).with_structured_output(Movie)
    assert isinstance(model.invoke("Details of the movie Inception"), Movie)


def agent() -> None:
    made = create_agent(f"openai:{MODEL}", tools=[get_weather], system_prompt="You are a helpful assistant")
    _check_turn(made.invoke({"messages": [QUESTION]}), tools=1)


def second_turn_of_an_agent() -> None:
    made = create_agent(ChatOpenAI(model=MODEL), tools=[get_weather], checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    _check_turn(made.invoke({"messages": [QUESTION]}, config), tools=1)
    _check_turn(made.invoke({"messages": [{"role": "user", "content": "And in Rome?"}]}, config), tools=2)


def streamed_agent() -> None:
    made = create_agent(f"openai:{MODEL}", tools=[get_weather])
    chunks = [chunk for chunk, _ in made.stream({"messages": [QUESTION]}, stream_mode="messages")]
    assert any(chunk.type == "tool" for chunk in chunks)
    assert chunks[-1].type != "tool"


def agent_with_structured_output() -> None:
    made = create_agent(f"openai:{MODEL}", tools=[], response_format=Movie)
    answer = made.invoke({"messages": [{"role": "user", "content": "Details of the movie Inception"}]})
    assert isinstance(answer["structured_response"], Movie)


def _check_turn(state: dict[str, Any], *, tools: int) -> None:
    """Check that so many tool results are there, and that the last message is the model's text."""
    assert len([message for message in state["messages"] if message.type == "tool"]) == tools
    assert state["messages"][-1].type == "ai"
    assert state["messages"][-1].content


def responses_api() -> None:
    assert ChatOpenAI(model=MODEL, use_responses_api=True).bind_tools([get_weather]).invoke([QUESTION]).tool_calls


def embeddings() -> None:
    # Without this setting the client fetches OpenAI's tokenizer from the internet.
    client = OpenAIEmbeddings(model=MODEL, check_embedding_ctx_length=False)
    assert len(client.embed_documents(["Hi there!", "What is your name?"])) == 2


run(
    chat_model, streamed, bound_tools, structured_output, agent, second_turn_of_an_agent, streamed_agent,
    agent_with_structured_output, responses_api, embeddings,
)  # fmt: skip
