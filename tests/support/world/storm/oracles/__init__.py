"""What must hold. Each oracle is a function; its docstring says the invariant.

entries     after each entry of the log
facts       before each fact, by a reference order beside the world; each refusal is justified by the state
ends        once, after the run
liveness    during the run, at each sample: no slot and no call waits longer than a stated bound
"""
