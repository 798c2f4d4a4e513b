"""The demo: one workload, played twice against the local stack, without headgate's policies and with them."""
