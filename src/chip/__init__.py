"""CHIP: how fast a language model will run on a GPU before it runs, and why it ran as fast as it did after."""

__version__ = "0.1.0"
