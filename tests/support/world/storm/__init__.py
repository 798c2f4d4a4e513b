"""The gate in virtual time under every fault that one seed draws, with oracles for safety and liveness.

weather        what goes wrong in a run, and how often, drawn from the seed
world          log, store, network and clocks; the gate processes, fronts and workers, all of production code
disturbances   kills, pauses, partitions, clock jumps, torn snapshots, expired entries, changed tenants
callers        requests with and without idempotency keys; callers that leave, repeat, or wait for nothing
thrown_errors  errors at the points of a seed in decide, encode, fold and operations
scale          hours as seconds, and in some seeds bounds that are small
reach          which functions of the gate a storm reaches
records        what happened: the log with its whole history, executions, and what the callers got
oracles        what must hold, each a function
simulation     one seed from start to end
bugs           seeded bugs that the oracles must find

Nothing fails after the end of the trouble. What is left must then come to its end within a bound.
"""
