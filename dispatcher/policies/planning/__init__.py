"""Planning: which model each worker serves next, and which request groups, in which order (QLM under BWFQ). Pure."""
