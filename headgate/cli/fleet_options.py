"""Options of `headgate serve` and `headgate local`: the processes that both start on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

Port = Annotated[int, typer.Option(help="Port of the HTTP front, which speaks OpenAI's API; 0 takes a free port.")]
Fronts = Annotated[int, typer.Option(help="Number of HTTP fronts, on --port and the ports after it.")]
Workers = Annotated[int, typer.Option(help="Number of worker processes.")]
ENGINE_HELP = "Engine of the workers: vllm, openai, transformers, or modelled (needs no torch)."
Engine = Annotated[str, typer.Option(help=ENGINE_HELP)]
Url = Annotated[str | None, typer.Option(help="With --engine openai: URL of the server, ending in /v1.")]
ContextTokens = Annotated[int | None, typer.Option(help="With --engine openai: the context length of its model.")]
Model = Annotated[str | None, typer.Option(help="Folder of a Hugging Face model; default: a small one, built here.")]
Slots = Annotated[int, typer.Option(help="Requests that a worker takes at a time.")]
Order = Annotated[
    str, typer.Option(help="Order at the gate: bwfq, sfq, fcfs, ratio+wake or ratio (for guarantees only).")
]
Policy = Annotated[str, typer.Option(help="Order of the engine's queue: vtc, fcfs or tiered:vtc.")]
StartTimeout = Annotated[float, typer.Option(help="Seconds that each process may take to start.")]
