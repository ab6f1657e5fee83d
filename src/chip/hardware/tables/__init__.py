"""Measurements of GPUs by others, brought into CHIP's own files of points.

points_csv: the file of one operator kind on one GPU. thin: fewer points where the surface is smooth.
quantised: products that stand there as formats of plain ones.
aiconfigurator: the tables of NVIDIA's package aiconfigurator-core; aiconfigurator_rows: what a row of them means.
"""
