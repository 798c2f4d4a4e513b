"""The gate's processes: which one decides, how commands reach it, and what follows when a process or network fails.

replica        a copy of the shard's state that can append to the log
leader         the replica that decides for the other processes, many commands an entry
sessions       the leader's connections
presence       which processes and workers the leader hears
link           a process's way to the shard: through the leader, or alone by its own append
gate_process   a process that listens, and leads or follows
"""
