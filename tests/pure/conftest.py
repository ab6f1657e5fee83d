from pathlib import Path

import pytest
import samples
from round_profiles import round_profile, write_profile

from chip import hardware
from chip.report import sources

H200 = Path(__file__).parents[2] / "results" / "h200"


@pytest.fixture(scope="session")
def round_gpu(tmp_path_factory):
    return write_profile(tmp_path_factory.mktemp("gpu") / "round.json", round_profile())


@pytest.fixture(scope="session")
def everything(tmp_path_factory):
    """The summary of all bundled results and of made-up ones of every kind; to be read only."""
    folder = samples.write_all(tmp_path_factory.mktemp("results"))
    return sources.gather([H200, hardware.PROFILES, hardware.POINTS / "h200", folder], "All")
