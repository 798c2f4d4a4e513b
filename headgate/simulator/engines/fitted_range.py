"""Notes the batches and prompts of a run, to say where it leaves the range that its profile was fitted to."""

from __future__ import annotations

from headgate.simulator.engines.interface import SimulatedEngine
from headgate.simulator.engines.profile import FittedOn
from headgate.simulator.requests import SimRequest


class RangeNotes:
    """What a profile was used for, on one engine or on all workers of a fleet, beyond the log that it was fitted to."""

    def __init__(self, fitted_on: FittedOn) -> None:
        self._fitted_on = fitted_on
        self._batch_max = 0
        self._requests = self._outside = 0
        self._least, self._most = fitted_on.input_tokens_min, fitted_on.input_tokens_max
        self._shortest, self._longest = self._least, self._most

    def note_prompt(self, input_tokens: int) -> None:
        """Note a request that an engine gets."""
        self._requests += 1
        if not self._least <= input_tokens <= self._most:
            self._outside += 1
            self._shortest, self._longest = min(self._shortest, input_tokens), max(self._longest, input_tokens)

    def note_batch(self, requests: int) -> None:
        """Note how many requests run at once on an engine."""
        if requests > self._batch_max:
            self._batch_max = requests

    def sentences(self) -> tuple[str, ...]:
        """Return a sentence for each range that the run left."""
        fitted_on, found = self._fitted_on, []
        if self._batch_max > fitted_on.batch_max:
            found.append(
                f"{self._batch_max} requests ran at once, and the profile was fitted to at most {fitted_on.batch_max} "
                f"({fitted_on.log}): its step times are a guess there."
            )
        if self._outside:
            found.append(
                f"{self._outside:,} of {self._requests:,} prompts are outside {fitted_on.input_tokens_min} to "
                f"{fitted_on.input_tokens_max} tokens, to which the profile was fitted ({fitted_on.log}): they have "
                f"{self._shortest} to {self._longest}."
            )
        return tuple(found)


class RangeWatch:
    """drive.EngineLike: the engine, with notes of what it serves."""

    def __init__(self, engine: SimulatedEngine, notes: RangeNotes) -> None:
        self._engine = engine
        self._notes = notes
        self.next_s = engine.next_s
        """The time of the engine's next event; infinity without one. It is asked for more often than all else."""

    @property
    def now_s(self) -> float:
        return self._engine.now_s

    def submit(self, request: SimRequest, at_s: float) -> bool:
        self._notes.note_prompt(request.arrival.input_tokens)
        return self._engine.submit(request, at_s)

    def advance(self, until_s: float) -> list[SimRequest]:
        """Advance the engine. It returns whenever requests end, so that the batch was largest just before."""
        ended = self._engine.advance(until_s)
        self._notes.note_batch(self._engine.running + len(ended))
        return ended
