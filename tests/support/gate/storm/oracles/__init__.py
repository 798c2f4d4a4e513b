"""What must hold. Each oracle is a function; its docstring says the invariant.

entries     after each entry of the log
fairness    before each fact, by a reference order beside the world
refusals    each is justified by the state, and no queue is beyond its limit
harm        an error in the code ends its caller's request and nothing else
ends        once, after the run
liveness    during the run, at each sample: no slot and no call waits longer than a stated bound
"""
