"""An image beside each prompt: its tokens are those of the prompt, its encoder runs before them."""

from __future__ import annotations

from chip.predictor.phase import Line, Phase
from chip.predictor.prediction import Prediction
from chip.predictor.steps import StepModel


def with_image(p: Prediction, steps: StepModel, tokens: int) -> Prediction:
    """With the encoder's time before the first token. `tokens`: of the image beside each prompt."""
    encoder = p.decoder.encoder if p.decoder else None
    if encoder is None:
        told = "the config gives no sizes of an encoder: neither its time nor its memory is counted"
        return p._replace(notes=[*p.notes, f"an image of {tokens} tokens beside each prompt; {told}"])
    lines, s = [], p.scenario
    for role, calls, op in encoder.ops(tokens, s.batch, s.tp, steps.operators.precision.activation):
        t = steps.estimator.time(op)
        times = calls * t.seconds, calls * t.low_s, calls * t.high_s
        work = calls * t.flops, calls * t.bytes, calls * t.joules
        lines.append(Line(role, op.kind, calls, *times, t.bound, t.source, *work))
    low_s, high_s = sum(line.low_s for line in lines), sum(line.high_s for line in lines)
    before = p.prefill
    prefill = Phase([*before.lines, *lines], before.low_s + low_s, before.high_s + high_s)
    prefill.early_tokens, prefill.early_s = before.early_tokens, before.early_s
    told = (
        f"an image of {tokens} tokens beside each prompt: {tokens * encoder.merge} patches, whose encoder takes "
        f"{sum(line.seconds for line in lines) * 1e3:.3g} ms of the time to first token"
    )
    return p._replace(prefill=prefill, notes=[*p.notes, told])
