"""The HF model that a session runs: from a config with random weights made on the device, or from files."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chip import engines
from chip.decoders import describe, library
from chip.decoders.decoder import Decoder
from chip.dtypes import Precision, precision
from chip.lab.measure.device import open_device, reason_of
from chip.lab.run import Job
from chip.predictor import memory
from chip.types import ChipError, Scenario, install
from chip.units import gib

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SPREAD = 0.02  # of random weights: never zeros, which draw less power and so run faster


def libraries() -> tuple[Any, Any]:
    """torch and transformers, or how to get them."""
    try:
        import torch
        import transformers
    except ImportError as e:
        raise ChipError(f"running a model needs {e.name}: {install('measure')}") from None
    logging.getLogger("transformers").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers


def build(job: Job) -> Any:
    """The model of a job on its device, ready for inference."""
    torch, _ = libraries()
    if job.dtype not in DTYPES:
        raise ChipError(f"--dtype {job.dtype}: torch runs {', '.join(DTYPES)} here")
    refuse_model(job.config, job.model, job.dtype, job.device, job.folder is not None)
    dtype = getattr(torch, DTYPES[job.dtype])
    with _one_line(job, torch):
        model = from_files(job, dtype) if job.folder else from_config(job.config, dtype, job.device)
    return model.eval()


def from_config(raw: Mapping[str, Any], dtype: Any, device: str) -> Any:
    """Random weights, drawn on the device: matrices and biases normal, norms one."""
    torch, transformers = libraries()
    from transformers.initialization import no_init_weights

    config = _config(transformers, raw)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device), no_init_weights():
            model = _with_attention(
                lambda how: transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False, **how)
            )
    finally:
        torch.set_default_dtype(before)
    model.tie_weights()  # which `no_init_weights` leaves out too: a head of its own would take memory for nothing
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.data = p.data.to(dtype)
            if p.dim() > 1 or name.endswith("bias"):
                p.normal_(0, SPREAD)
            else:
                p.fill_(1.0)
    return model


def from_files(job: Job, dtype: Any) -> Any:
    """A local folder with safetensors, as its owner saved it."""
    _, transformers = libraries()
    load = transformers.AutoModelForCausalLM.from_pretrained
    fixed = {"dtype": dtype, "local_files_only": True, "trust_remote_code": job.trust_remote_code}
    model, loading = _with_attention(lambda how: load(job.folder, output_loading_info=True, **fixed, **how))
    if missing := sorted(loading["missing_keys"]):
        raise ChipError(f"{job.folder}: the weights lack {missing[0]} and {len(missing) - 1} more; is a file missing?")
    return model.to(job.device)


def _config(transformers: Any, raw: Mapping[str, Any]) -> Any:
    plain = {k: v for k, v in raw.items() if k != "quantization_config"}  # a checkpoint's format, not the model
    if "text_config" in plain:  # a multimodal model: its language part
        plain = dict(plain["text_config"])
    if "model_type" not in plain:
        raise ChipError("config: field 'model_type' is missing")
    return transformers.AutoConfig.for_model(**plain)


def _with_attention(make: Any) -> Any:
    """sdpa where the family has it, else transformers' own eager attention."""
    try:
        return make({"attn_implementation": "sdpa"})
    except ValueError as e:
        if "scaled_dot_product_attention" not in str(e):
            raise
        return make({"attn_implementation": "eager"})


@contextmanager
def _one_line(job: Job, torch: Any) -> Iterator[None]:
    where = job.folder or job.model
    try:
        yield
    except (ChipError, KeyboardInterrupt):
        raise
    except torch.OutOfMemoryError:
        raise ChipError(f"{where}: out of memory while loading on {job.device}; choose a smaller model") from None
    except Exception as e:  # transformers, safetensors and torch fail in many ways
        raise ChipError(f"{where}: cannot be loaded ({reason_of(e)})") from None


def no_kernel(e: BaseException) -> bool:
    """Whether an sdpa backend refused; torch's words differ by device."""
    return any(words in str(e) for words in ("No available kernel", "No viable backend"))


def locate(name: str, weights: str) -> tuple[Path, str, Path | None]:
    """(config file, title, folder of the weights or None) that MODEL stands for. `weights`: random, files or auto."""
    config, title = library.locate(name)
    if weights == "random":
        return config, title, None
    hub = title == name and "/" in name and not Path(name).exists()
    folder = _download(name) if hub else config.parent if config.name == "config.json" else None
    if folder is not None and any(folder.glob("*.safetensors")):
        return config, title, folder
    if weights == "files":
        raise ChipError(f"{name}: no *.safetensors beside its config.json; leave --weights out for random ones")
    return config, title, None


def _download(repo: str) -> Path:
    """A hub repository's weights and tokenizer; HF_HUB_OFFLINE keeps to what is cached."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, allow_patterns=["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]))
    except Exception as e:  # not found, gated, offline, no network, no space
        raise ChipError(f"{repo}: weights could not be had from the hub ({reason_of(e)}); --weights random") from None


# -- room on a CPU: a GPU says itself that it has none; where a machine's memory ends, its kernel kills somebody ------
def refuse_model(config: Mapping[str, Any], name: str, dtype: str, device: str, from_files: bool) -> None:
    """Before its weights are made or loaded."""
    known = _known(config, name, dtype, device, from_files)
    if known is None:
        return
    weight_bytes, free_bytes = known[0].weight_bytes(known[1]), open_device(device).free_bytes()
    if weight_bytes > free_bytes:
        raise ChipError(
            f"{name}: its weights take {gib(weight_bytes)} in {dtype}, and {gib(free_bytes)} of this machine's memory "
            "are free; choose a smaller model" + ("" if dtype == "bf16" or from_files else ", or --dtype bf16")
        )


def refuse_point(job: Job, engine: str, s: Scenario) -> None:
    """Before a point, with the weights in memory."""
    known = _known(job.config, job.model, job.dtype, job.device, job.folder is not None)
    if known is None:
        return
    try:
        e = engines.get(engine)
        needs = memory.needs(known[0], s, e, known[1], 0.0, e.options((), 0.0))
    except ChipError:  # an engine that is not predicted
        return
    more_bytes, free_bytes = needs["kv_bytes"] + needs["activation_bytes"], open_device(job.device).free_bytes()
    if more_bytes > free_bytes:
        raise ChipError(
            f"{s.name} takes {gib(more_bytes)} beside the weights, and {gib(free_bytes)} of this machine's memory are "
            "free; choose a smaller batch or shorter prompts"
        )


def _known(
    config: Mapping[str, Any], name: str, dtype: str, device: str, from_files: bool
) -> tuple[Decoder, Precision] | None:
    """The model as torch runs it; None on a GPU, where the system does not tell what is free, and of a model that CHIP
    does not know. Random weights drop a config's quantisation."""
    if device != "cpu" or sys.platform != "linux":
        return None
    try:
        plain = {k: v for k, v in config.items() if from_files or k != "quantization_config"}
        model = describe(plain, name, name)
        return model, precision(model.dtype if from_files and model.quantization else dtype)
    except ChipError:
        return None
