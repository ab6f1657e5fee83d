"""Live traffic: a workload, the engine's scheduler, the time of each step, percentiles; and plans of what to buy."""
