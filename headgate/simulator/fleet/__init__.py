"""A fleet of simulated workers that load one model at a time, and the planners that decide which one."""
