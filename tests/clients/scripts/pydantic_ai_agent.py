"""pydantic-ai: agents with a tool, a history and structured output, over both of OpenAI's APIs."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ToolReturnPart
from steps import MODEL, run

CHAT, RESPONSES = f"openai-chat:{MODEL}", f"openai-responses:{MODEL}"
QUESTION = "What is the weather in Paris?"


class CityLocation(BaseModel):
    city: str
    country: str


def _agent_with_tool(model: str) -> Agent:
    agent = Agent(model, instructions="Be concise.")

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        return f"It is sunny in {city}."

    return agent


def hello() -> None:
    assert Agent(f"openai:{MODEL}", instructions="Be concise.").run_sync("Where does hello world come from?").output


def chat() -> None:
    assert Agent(CHAT, instructions="Be concise.").run_sync("Where does hello world come from?").output


def tool() -> None:
    _check_two_turns(CHAT)


def tool_over_responses() -> None:
    _check_two_turns(RESPONSES)


def _check_two_turns(model: str) -> None:
    agent = _agent_with_tool(model)
    first = agent.run_sync(QUESTION)
    second = agent.run_sync("And in Rome?", message_history=first.all_messages())
    for result in (first, second):
        parts = [part for message in result.new_messages() for part in message.parts]
        assert [part.tool_name for part in parts if isinstance(part, ToolReturnPart)] == ["get_weather"]
        assert result.output


async def streamed() -> None:
    async with _agent_with_tool(CHAT).run_stream(QUESTION) as result:
        assert [text async for text in result.stream_text()][-1]


def structured_output_by_tool() -> None:
    agent = Agent(CHAT, output_type=CityLocation)
    assert isinstance(agent.run_sync("Where were the olympics held in 2012?").output, CityLocation)


def structured_output_by_schema() -> None:
    agent = Agent(CHAT, output_type=NativeOutput(CityLocation))
    assert isinstance(agent.run_sync("Where were the olympics held in 2012?").output, CityLocation)


def structured_output_over_responses() -> None:
    agent = Agent(RESPONSES, output_type=CityLocation)
    assert isinstance(agent.run_sync("Where were the olympics held in 2012?").output, CityLocation)


run(
    hello, chat, tool, tool_over_responses, streamed, structured_output_by_tool, structured_output_by_schema,
    structured_output_over_responses,
)  # fmt: skip
