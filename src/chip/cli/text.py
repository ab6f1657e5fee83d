"""Numbers and tables as `chip.units` formats them, under the name the commands know."""

from chip.units import SI, duration, gib, number, percent, si, table

__all__ = ["SI", "duration", "gib", "number", "percent", "si", "table"]
