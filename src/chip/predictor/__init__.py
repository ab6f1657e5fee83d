"""From operators to times: estimators, their composition into steps and requests, memory, answers as JSON."""
