"""Artifacts drawn: what the JSON says, as pictures and pages. Nothing here measures or predicts."""
