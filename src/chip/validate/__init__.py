"""Prediction x Run -> Validation: how far predictions are from what was measured, by class, with and without stages.

points: what is compared; classes: which errors belong together; provenance: what a prediction rests on, so that a run
it was made from is refused; judge: files of runs -> points; peers: other predictors' recorded answers.
"""
