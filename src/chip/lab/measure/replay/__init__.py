"""Running recorded kernels again, each alone: on random data, in a process of its own."""
