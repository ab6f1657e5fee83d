"""Why a step took as long as it did: sum of the kernels against the whole, operator by operator, run against run."""
