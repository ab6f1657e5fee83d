import io
import sys

import pytest
from round_profiles import round_profile, write_profile

from chip.show import cli


@pytest.fixture(scope="session")
def round_gpu(tmp_path_factory):
    return write_profile(tmp_path_factory.mktemp("gpu") / "round.json", round_profile())


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a command: (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def call(*words, stdin=None):
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            code = cli.main([str(w) for w in words])
        except SystemExit as e:
            code = e.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def refused(run):
    """Run a command that must fail: the one line it tells."""

    def call(*words):
        code, out, err = run(*words)
        assert code == 2
        assert out == ""
        assert err.count("\n") == 1
        assert err.endswith("\n")
        assert "Traceback" not in err
        return err.rstrip("\n")

    return call
