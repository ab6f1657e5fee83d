import pytest
from round_profiles import round_profile, write_profile


@pytest.fixture(scope="session")
def round_gpu(tmp_path_factory):
    return write_profile(tmp_path_factory.mktemp("gpu") / "round.json", round_profile())
