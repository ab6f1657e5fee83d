"""From operators to times: estimators, their composition into steps and requests, memory, answers as JSON."""

from chip.callable_module import make_callable

make_callable(__name__, "predict")  # chip.predict(...)
