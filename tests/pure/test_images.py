"""An image beside each prompt: its tokens, its encoder's time, and the encoder's weights in memory."""

import json

import pytest
from published_models import PUBLISHED

import chip
from chip.decoders import describe
from chip.show import cli
from chip.types import ChipError

SEES = PUBLISHED["Qwen/Qwen3-VL-8B-Instruct"][1]


def test_an_image_adds_its_tokens_and_its_encoders_time():
    plain, longer, seen = (
        chip.predict(SEES, output=8, **more) for more in ({}, {"prompt": 2048}, {"image_tokens": 1024})
    )
    roles = {line.role: line for line in seen.prefill.lines}
    encoder_s = sum(
        line.seconds for role, line in roles.items() if role.startswith(("encoder", "projector", "patches"))
    )
    assert encoder_s > 1e-3
    assert seen.ttft_s == pytest.approx(longer.ttft_s + encoder_s)
    assert seen.tpot_s == pytest.approx(longer.tpot_s) != plain.tpot_s
    assert roles["encoder_attention"].flops == pytest.approx(27 * 4 * 16 * 4096**2 * 72), "four patches a token"
    assert any("4096 patches, whose encoder takes" in note for note in seen.notes)


def test_an_encoder_weighs_what_its_makers_built():
    """Qwen3-VL-8B: 27 layers of 1,152, and four projections of four patches into 4,096."""
    encoder = describe(SEES, "it", "it").encoder
    assert encoder.params == pytest.approx(0.576e9, rel=0.03)
    text = {k: v for k, v in SEES.items() if k != "vision_config"}
    with_it, without = (chip.predict(raw, output=2).memory["weights_bytes"] for raw in (SEES, text))
    assert with_it - without == pytest.approx(2 * encoder.params)


def test_what_is_not_known_of_an_encoder_is_said():
    raw = {**SEES, "vision_config": {"model_type": "odd"}}
    assert describe(raw, "it", "it").encoder is None
    found = chip.predict(raw, image_tokens=100)
    assert any("gives no sizes of an encoder" in note for note in found.notes)
    with pytest.raises(ChipError, match="image_tokens must be"):
        chip.predict(SEES, image_tokens=-1)


def test_the_command_line_and_python_agree(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SEES))
    assert cli.main(["predict", str(path), "--image-tokens", "256", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ttft_ms"] == pytest.approx(
        1e3 * chip.predict(SEES, image_tokens=256).ttft_s, rel=1e-3
    )
