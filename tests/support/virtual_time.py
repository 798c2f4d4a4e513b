"""Virtual time for tests: the simulator's own loop."""

from headgate.simulator.virtual_time import START, LoopClock, VirtualTimeLoop, run

__all__ = ["START", "LoopClock", "VirtualTimeLoop", "run"]
