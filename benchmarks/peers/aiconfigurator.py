"""Ask aiconfigurator 0.12.0, through its SDK's InferenceSession in static mode, on its measured tables.

- Its own `aiconfigurator cli estimate --estimate-mode static` gives the same answers, more slowly.
- Static mode is one batch: all prompts prefilled together, then all outputs decoded together.
- Models outside its bundle are given as a folder with a config.json; no hub is asked.
- Engines it has no tables for are asked as vLLM.
"""

import functools
import json
import logging
import pathlib
import sys
import tempfile
import warnings

from asking import config_of, serve

sys.path.pop(0)  # this file's own name would shadow the package

BUNDLED = {"llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B"}
SYSTEMS = {"h200": "h200_sxm", "h100": "h100_sxm"}
ENGINES = ("vllm", "sglang", "trtllm")


def load():
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    from aiconfigurator.sdk.backends.factory import get_backend
    from aiconfigurator.sdk.config import ModelConfig, RuntimeConfig
    from aiconfigurator.sdk.inference_session import InferenceSession
    from aiconfigurator.sdk.models import get_model
    from aiconfigurator.sdk.perf_database import get_database, get_latest_database_version

    @functools.cache
    def session(model, gpu, engine):
        system = SYSTEMS[gpu]
        tables = get_database(system, engine, get_latest_database_version(system, engine))
        with tempfile.TemporaryDirectory() as folder:
            if model not in BUNDLED:
                pathlib.Path(folder, "config.json").write_text(json.dumps(config_of(model)))
            path = BUNDLED.get(model, folder)
            built = InferenceSession(get_model(path, ModelConfig(), engine), tables, get_backend(engine))
            _run(built, {"batch": 1, "prompt": 128, "output": 2})  # reads what it needs of the folder
            return built

    def _run(built, scenario):
        runtime = RuntimeConfig(batch_size=scenario["batch"], isl=scenario["prompt"], osl=scenario["output"])
        return built.run_static(runtime_config=runtime, mode="static").get_result_dict()

    def answer(scenario):
        engine = scenario.get("engine", "vllm")
        engine = engine if engine in ENGINES else "vllm"
        result = _run(session(scenario["model"], scenario["gpu"], engine), scenario)
        return result["ttft"], result["tpot"]

    return answer


if __name__ == "__main__":
    serve(load)
