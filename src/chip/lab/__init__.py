"""What needs a device: calibrate, profile, run, capture, replay, and kernels of our own."""
