"""What CHIP knows, as rows: models, GPUs, operators, engines and hosts, for `chip list` and `chip serve`."""

from __future__ import annotations

from dataclasses import MISSING
from inspect import cleandoc
from statistics import median
from typing import Any

from chip import decoders
from chip import engines as runtimes
from chip import ops as operators
from chip.decoders import library, multimodal
from chip.hardware import gpus as hardware
from chip.hardware import hosts as known_hosts
from chip.predictor import basis, validated_runs
from chip.types import HardwareSpec


def models() -> list[dict[str, Any]]:
    return [
        {
            "name": name, "architecture": d.architecture, "parameters": d.params(), "active": d.active_params(),
            "layers": d.layer_count, "hidden": d.hidden,
        }
        for name, d in ((n, library.find(n)) for n in library.names())
    ]  # fmt: skip


def gpus() -> list[dict[str, Any]]:
    return [_gpu(name, hardware.spec(name)) for name in hardware.spec_names()]


def _gpu(name: str, s: HardwareSpec) -> dict[str, Any]:
    return {
        "name": name,
        "title": s.title,
        "aliases": list(s.aliases),
        "memory_bytes": s.memory_bytes.value,
        "hbm_bytes_per_s": s.ceilings["hbm"].value,
        "matmul_16bit_flop_per_s": (s.ceilings.get("matmul_bf16") or s.ceilings["matmul_fp16"]).value,
        "measured": name in hardware.profile_names(),
        "rests_on": basis.of_gpu(hardware.find(name)),
        "too_old_for": [e for e in runtimes.names() if runtimes.get(e).too_old(s)],
    }


def ops() -> list[dict[str, Any]]:
    rows = []
    for name in operators.names():
        axes = operators.axes(operators.get(name))
        required = " ".join(n for n, f in axes.items() if f.default is MISSING)
        what = " ".join(doc_of(name).split("\n\n")[0].split())
        rows.append({"name": name, "axes": " ".join(axes), "required": required, "what": what})
    return rows


def doc_of(kind: str) -> str:
    """What an operator is: the docstring of its class."""
    return cleandoc(operators.get(kind).__doc__ or "")


def engines() -> list[dict[str, Any]]:
    return [{"name": n, "what": runtimes.get(n).TITLE} for n in runtimes.names()]


def hosts() -> list[dict[str, Any]]:
    """Those that predictions can be asked for by name."""
    rows = []
    for name in known_hosts.names():
        ns = known_hosts.find(name).launch_ns
        what = "of the bundled terms, in the middle of those measured: stands for a host that nobody measured"
        if ns:
            what = f"launched a small kernel in {ns / 1e3:.3g} us, beside the runs of an H200"
        rows.append({"name": name, "launch_ns": ns or None, "what": what})
    return rows


# Classes that transformers 5.22 does not have, and those of them that were written beside vLLM 0.26's own code
NOT_IN_TRANSFORMERS = (
    "ArcticForCausalLM", "BailingMoeForCausalLM", "BailingMoeV2ForCausalLM", "BailingMoeV2_5ForCausalLM",
    "ChatGLMForConditionalGeneration", "ChatGLMModel", "DeciLMForCausalLM", "DeepseekForCausalLM",
    "ExaoneForCausalLM", "ExaoneMoEForCausalLM", "Fairseq2LlamaForCausalLM", "GritLM", "IQuestCoderForCausalLM",
    "IQuestLoopCoderForCausalLM", "InternLM2ForCausalLM", "InternLM3ForCausalLM", "LongcatFlashNgramForCausalLM",
    "MiMoForCausalLM", "MiMoV2ForCausalLM", "MiniCPMForCausalLM", "MiniMaxM3SparseForCausalLM",
    "MistralLarge3ForCausalLM", "MolmoForCausalLM", "NemotronHPuzzleForCausalLM", "OrionForCausalLM",
    "OuroForCausalLM", "PanguEmbeddedForCausalLM", "PanguProMoEV2ForCausalLM", "PanguUltraMoEForCausalLM",
    "Param2MoEForCausalLM", "PhiMoEForCausalLM", "Plamo2ForCausalLM", "Plamo3ForCausalLM", "Rnj1ForCausalLM",
    "SarvamMLAForCausalLM", "SarvamMoEForCausalLM", "SolarForCausalLM", "Step1ForCausalLM", "Step3TextForCausalLM",
    "Step3p5ForCausalLM", "TeleChat2ForCausalLM", "TeleChat3ForCausalLM", "TeleFLMForCausalLM",
)  # fmt: skip
WRITTEN_AS_VLLM = (
    *("BailingMoeV2_5ForCausalLM", "ChatGLMForConditionalGeneration", "ChatGLMModel", "DeciLMForCausalLM"),
    *("IQuestLoopCoderForCausalLM", "LongcatFlashNgramForCausalLM", "MiMoV2ForCausalLM", "MiniMaxM3SparseForCausalLM"),
    *("MolmoForCausalLM", "NemotronHPuzzleForCausalLM", "OuroForCausalLM", "PanguProMoEV2ForCausalLM"),
    *("Plamo2ForCausalLM", "Step3TextForCausalLM"),
)
ROOFLINE = {"deepseek_v4": "compressed caches", "hybrid": "states", "inkling": "convolutions"}  # that nobody measured
OF_PARAMETERS = ("standard", "latent", "gemma4", "looped", "puzzle", *ROOFLINE)  # families of rows


def architectures() -> list[dict[str, Any]]:
    """Every class that is answered, what its description is held against, and how far off recorded runs of vLLM were;
    then those whose language part is."""
    off, rows = _errors(), []
    for name, family in sorted(decoders.architectures().items()):
        held_against = "parameters of transformers" if family in OF_PARAMETERS else "transformers, operator by operator"
        if name in NOT_IN_TRANSFORMERS:
            held_against = "vLLM's code, by reading" if name in WRITTEN_AS_VLLM else "nothing: not in transformers"
        unmeasured = f"; {ROOFLINE[family]} rest on the roofline" if family in ROOFLINE else ""
        rows.append({"name": name, "family": family, "held_against": held_against + unmeasured, "error": off.get(name)})
    served = {row["name"] for row in rows}
    for name, language in multimodal.LANGUAGE.items():
        if name in served:
            continue
        of_class = f"as {language}" if language else "by its section's class or type"
        error = off.get(language) or off.get(name)
        told = f"the language part {of_class}"
        rows.append({"name": name, "family": "multimodal", "held_against": told, "error": error})
    return rows


def _errors() -> dict[str, str]:
    """Class -> the median errors of recorded runs under vLLM: time to first token, and per output token."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for held in validated_runs.settings():
        if held.engine != "vllm" or held.model not in library.names():
            continue
        both = found.setdefault(library.find(held.model).architecture, ([], []))
        for words in (line.split(",") for line in held.lines if line.endswith(validated_runs.OURS)):
            for errors, word in zip(both, words[4:6]):
                errors += [abs(float(word))] if word else []
    return {
        name: f"TTFT {median(ttft):.1f} %, TPOT {median(tpot):.1f} %"
        for name, (ttft, tpot) in found.items()
        if ttft and tpot
    }


ROWS = {"architectures": architectures, "models": models, "gpus": gpus, "ops": ops, "engines": engines, "hosts": hosts}
