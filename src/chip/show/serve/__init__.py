"""The explorer: predictions as a small HTTP API on this machine, and the page that asks it. Standard library only."""
