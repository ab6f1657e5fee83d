"""Shell completion: what may follow a command line, and scripts that a shell can read."""

import json
import shutil
import subprocess

import pytest

from chip.decoders import library
from chip.hardware import gpus as hardware
from chip.show import cli
from chip.show.cli.completion import SCRIPTS, following


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ([], ["predict", "validate", "completion", "--version"]),
        (["predict"], ["--gpu", "--breakdown", "llama-3.1-8b"]),
        (["predict", "gpt2", "--gpu"], hardware.spec_names()),
        (["predict", "gpt2", "--engine"], ["vllm", "hf-eager", "hf-graph"]),
        (["list"], ["models", "gpus", "--json"]),
    ],
)
def test_what_may_follow(words, some):
    assert set(some) <= set(following(words))


def test_a_value_that_is_free_offers_nothing():
    assert following(["predict", "gpt2", "--batch"]) == []
    assert following(["nosuch"]) == []


def test_an_option_that_takes_no_value_offers_the_others():
    assert {"--gpu", *library.names()} <= set(following(["predict", "--json"]))


def test_words_may_be_options(capsys):
    assert cli.main(["completion", "--words", "predict", "gpt2", "--engine"]) == 0
    assert "vllm" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("shell", list(SCRIPTS))
def test_scripts_are_read_by_their_shell(shell, capsys, tmp_path):
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert cli.main(["completion", shell, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["script"] == script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script)
    subprocess.run([shell, "-n", tmp_path / "script"], check=True)


def test_bash_completes(tmp_path):
    """As bash itself does it: the function is called with the words so far."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    (tmp_path / "chip").write_text('#!/bin/sh\n[ "$2" = --words ] && printf "h100\\nh200\\nl4\\n"\n')
    (tmp_path / "chip").chmod(0o755)
    asked = 'COMP_WORDS=(chip predict gpt2 --gpu h); COMP_CWORD=4; _chip; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", f"{SCRIPTS['bash']}\n{asked}"], capture_output=True, text=True, env={"PATH": f"{tmp_path}:/bin"}
    )
    assert done.stdout == "h100 h200\n", done.stderr


def test_another_shell_is_refused_in_one_line(capsys):
    assert cli.main(["completion", "csh"]) == 2
    assert capsys.readouterr().err == "chip completion: SHELL must be one of bash, zsh, fish, got 'csh'\n"
