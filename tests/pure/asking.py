"""Questions to the predictor, and every number of an answer, for tests of predictions."""

from chip.predictor import request
from chip.predictor.stages import ALL, Stage
from chip.question import Question

BARE = Stage.MEASURED  # measured ceilings and nothing else: what can be computed by hand
TIMES = ("ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_s")


def answer(model="llama-3.1-8b", gpu="a100", **asked):
    return request.answer({"model": model, "gpu": gpu, **asked})


def predict(decoder, gpu, engine, s, stage=ALL, interval_scale=0.0, **more):
    return request.predict(Question.of(decoder, gpu, engine, s, **more), s, stage, interval_scale)


def setting(decoder, gpu, engine, dtype="bf16", tp=1, stage=ALL, kv_dtype="", **more):
    return request.setting(Question(decoder, gpu, engine, dtype, kv_dtype, tp, **more), stage)


def numbers(value):
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return [value] if isinstance(value, (int, float)) and not isinstance(value, bool) else []
    return [n for v in value for n in numbers(v)]
