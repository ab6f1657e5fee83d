"""What needs a device: timers, probes, profiles. Everything here may import torch; nothing below may import this."""
