"""The API fuzzed from its own OpenAPI description: whatever is sent, no 5xx, and every answer is as described."""

import json
import os
import threading
from contextlib import suppress

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is in the dev extra")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from schemathesis import checks  # noqa: E402

from chip.models import hub, library  # noqa: E402
from chip.serve import api, server  # noqa: E402
from chip.serve.openapi import document  # noqa: E402
from chip.types import ChipError  # noqa: E402

CONFIGS = [json.loads((library.CONFIGS / f"{n}.json").read_text()) for n in ("gpt2", "qwen3-0.6b", "gemma-3-1b")]
CHECKS = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
)
schema = schemathesis.openapi.from_dict(document())
schema.config.phases.coverage.enabled = "CHIP_EXAMPLES" in os.environ  # every bound of every field: most of the time
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.lists(st.text(max_size=9), max_size=3),
    st.just({}),
)


@pytest.fixture(scope="module")
def url():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")  # made-up ids are nobody else's business
        hub.answers.cache_clear()
        yield from served()
    hub.answers.cache_clear()


def served():
    with server.Server(("127.0.0.1", 0), 30.0) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.url.rstrip("/")
        made.shutdown()


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_as_described(case, url):
    case.call_and_validate(base_url=url, checks=CHECKS)


@settings(max_examples=60, deadline=None)
@given(config=st.sampled_from(CONFIGS), wrong=st.fixed_dictionaries({}, optional={k: JUNK for c in CONFIGS for k in c}))
def test_configs_with_fields_gone_wrong(config, wrong):
    """A config of the hub with some fields replaced by anything is answered or refused by name."""
    with suppress(ChipError):
        assert json.loads(api.predict({"config": {**config, **wrong}}))["ttft_ms"] > 0
