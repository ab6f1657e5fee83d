"""Collectors: one file for each kind of artifact, found by listing this folder. Each names the `SCHEMAS` it reads
(without version), its place in the `ORDER` of reading, and has `collect(opened, out)`, which adds rows and says how
many records there were. What it cannot make sense of it refuses whole, with a ChipError."""
