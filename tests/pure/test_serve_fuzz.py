"""The API fuzzed from its own OpenAPI description: whatever is sent, no 5xx, and every answer is as described."""

import json
import os
import threading
from contextlib import suppress
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chip.decoders import hub, library
from chip.show.serve import api, server
from chip.show.serve.openapi import document
from chip.types import ChipError

CONFIGS = [json.loads((library.CONFIGS / f"{n}.json").read_text()) for n in ("gpt2", "qwen3-0.6b", "gemma-3-1b")]
OPERATIONS = [(method, path) for path, methods in document()["paths"].items() for method in methods]
EXAMPLES = int(os.environ.get("CHIP_EXAMPLES", "12"))
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


@pytest.fixture(scope="module")
def described():
    """Its plugin for pytest is not used: every process would import it, and under pytest-xdist all operations have the
    name of one test, of which one is run."""
    import schemathesis

    return schemathesis.openapi.from_dict(document())


def sent_to(operation):
    """What the description allows, and what it does not where it limits anything."""
    from schemathesis import GenerationMode

    allowed = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    limited = operation.body or operation.query or operation.path_parameters
    return st.one_of(allowed, operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)) if limited else allowed


@pytest.mark.skipif(not find_spec("schemathesis"), reason="schemathesis is in the dev extra")
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_as_described(method, path, described, url):
    from schemathesis import checks

    held = (
        checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    )
    operation = described[path][method]

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=sent_to(operation))
    def answered(case):
        case.call_and_validate(base_url=url, checks=held)

    answered()


@settings(max_examples=60, deadline=None)
@given(config=st.sampled_from(CONFIGS), wrong=st.fixed_dictionaries({}, optional={k: JUNK for c in CONFIGS for k in c}))
def test_configs_with_fields_gone_wrong(config, wrong):
    """A config of the hub with some fields replaced by anything is answered or refused by name."""
    with suppress(ChipError):
        assert json.loads(api.predict({"config": {**config, **wrong}}))["ttft_ms"] > 0
