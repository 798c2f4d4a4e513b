"""The OpenAI Agents SDK with its default settings: it uses the Responses API. Only its tracing is off."""

from __future__ import annotations

from agents import Agent, OpenAIChatCompletionsModel, Runner, SQLiteSession, function_tool
from openai import AsyncOpenAI
from pydantic import BaseModel
from steps import MODEL, run

QUESTION = "What is the weather in Tokyo?"


class CalendarEvent(BaseModel):
    name: str
    participants: list[str]


@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"The weather in {city} is sunny."


async def hello() -> None:
    agent = Agent(name="Assistant", instructions="You are a helpful assistant", model=MODEL)
    assert (await Runner.run(agent, "Write a haiku about recursion in programming.")).final_output


async def tool() -> None:
    agent = Agent(name="Weather", instructions="You report the weather.", tools=[get_weather], model=MODEL)
    result = await Runner.run(agent, QUESTION)
    assert [item.type for item in result.new_items].count("tool_call_output_item") == 1
    assert result.final_output


async def second_turn() -> None:
    agent = Agent(name="Assistant", instructions="Reply very concisely.", model=MODEL)
    first = await Runner.run(agent, "In which city is the Golden Gate Bridge?")
    items = [*first.to_input_list(), {"role": "user", "content": "In which state is it?"}]
    assert (await Runner.run(agent, items)).final_output


async def second_turn_of_a_session() -> None:
    agent, session = Agent(name="Weather", tools=[get_weather], model=MODEL), SQLiteSession("conversation")
    for question in (QUESTION, "And in Rome?"):
        result = await Runner.run(agent, question, session=session)
        assert "tool_call_output_item" in [item.type for item in result.new_items]
        assert result.final_output


async def handoff() -> None:
    history = Agent(
        name="History Tutor", handoff_description="For historical questions", instructions="Explain.", model=MODEL
    )
    triage = Agent(name="Triage Agent", instructions="Find the right tutor.", handoffs=[history], model=MODEL)
    result = await Runner.run(triage, "Who was the first president of the United States?")
    assert result.last_agent is history
    assert result.final_output


async def streamed() -> None:
    agent = Agent(name="Weather", tools=[get_weather], model=MODEL)
    result = Runner.run_streamed(agent, QUESTION)
    kinds = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
    assert "response.output_text.delta" in kinds
    assert result.final_output


async def structured_output() -> None:
    agent = Agent(name="Calendar", instructions="Extract events.", output_type=CalendarEvent, model=MODEL)
    result = await Runner.run(agent, "Alice and Bob are going to a science fair on Friday.")
    assert isinstance(result.final_output, CalendarEvent)


async def chat_completions() -> None:
    model = OpenAIChatCompletionsModel(model=MODEL, openai_client=AsyncOpenAI())
    result = await Runner.run(Agent(name="Weather", tools=[get_weather], model=model), QUESTION)
    assert "tool_call_output_item" in [item.type for item in result.new_items]
    assert result.final_output


run(
    hello, tool, second_turn, second_turn_of_a_session, handoff, streamed, structured_output, chat_completions,
)  # fmt: skip
