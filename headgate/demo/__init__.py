"""The demo plays one workload twice against the local stack: without headgate's policies, then with them."""
