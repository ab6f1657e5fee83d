"""From a recorded step to kernels that can be run again: who launched what, unique kernels, tiers, matrix products."""
