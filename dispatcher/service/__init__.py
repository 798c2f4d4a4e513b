"""The processes of the gate. One of them leads and decides for the others; any other can take over.

gate/replica    a copy of the shard's state that can append to the log
gate/leader     decides for the connected processes; one log entry holds many commands
gate/courier    the leader's connections to its clients, and the news that it sends
gate/presence   finds the processes and workers that send no messages to the leader any more
gate/process    a process that listens on a port, and leads or follows
link            how a front, worker or function sends commands: to the leader, or by its own append
"""
