"""What the engines of HF transformers share: its modules kernel by kernel, and what single families do otherwise."""
