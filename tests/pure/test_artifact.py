"""The file format: whole files or none, appended lines that survive a kill at any byte, strangers refused."""

import json
import os
import stat
import sys

import pytest

from chip.files import artifact, output
from chip.types import ChipError

SCHEMA = "chip.thing/2"


def refusal(call, *args):
    with pytest.raises(ChipError) as told:
        call(*args)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_written_and_read_again(tmp_path):
    path = tmp_path / "new" / "folder" / "it.json"
    made = artifact.new(SCHEMA, {"x": [1, 2.5, "ü"]}, {"gpu": "it"}, ["0123456789abcdef"])
    artifact.write(path, made)
    assert artifact.read(path, SCHEMA) == made
    assert json.loads(path.read_text())["id"] == made.id
    assert made.made.endswith("Z")


def test_id_is_of_the_content_alone():
    one = artifact.new(SCHEMA, {"a": 1, "b": 2}, {"host": "one"})
    same = artifact.Artifact(SCHEMA, {"b": 2, "a": 1}, {"host": "other"}, ("x",), "yesterday")
    assert one.id == same.id
    assert len(one.id) == 16
    assert one.id != artifact.new(SCHEMA, {"a": 1, "b": 3}, {}).id
    assert one.id != artifact.new("chip.other/2", {"a": 1, "b": 2}, {}).id


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failing):
    path = tmp_path / "it.json"
    output.write(path, "old", output.ANY)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    line = refusal(output.write, path, "new", output.ANY)
    assert line == f"{path}: cannot be written (No space left on device); the old file, if any, is untouched"
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["it.json"]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "it.json"
    output.write(path, "old", output.ANY)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        output.write(path, "new", output.ANY)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["it.json"]


def test_text_that_cannot_be_encoded_leaves_nothing_behind(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        output.write(tmp_path / "it.json", "\ud800", output.ANY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_a_written_file_can_be_read_by_others_as_any_other_file(tmp_path):
    (tmp_path / "plain").write_text("")
    output.write(tmp_path / "it.json", "", output.ANY)
    assert stat.S_IMODE((tmp_path / "it.json").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refusal(output.write, tmp_path / "file" / "it.json", "x", output.ANY)
    assert "cannot append" in refusal(artifact.append, tmp_path / "file" / "it.jsonl", {}, SCHEMA)


def test_what_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(artifact, "MAX_BYTES", 1 << 20)
    path = tmp_path / "it.json"
    path.write_text("[" + " " * ((1 << 20) - 2) + "]")
    assert artifact.read_json(path) == []
    path.write_text("[" + " " * ((1 << 20) - 1) + "]")
    assert refusal(artifact.read_json, path) == f"{path}: is larger than 1 MiB, the most that is read of such a file"


def test_files_that_are_no_artifact(tmp_path):
    path = tmp_path / "it.json"
    read = (artifact.read, path, SCHEMA)
    assert refusal(*read) == f"{path}: no such file"
    whole = {"schema": SCHEMA, "data": {}, "environment": {}, "inputs": []}
    for text, line in {
        "": "is not JSON or is cut short (line 1: Expecting value)",
        '{"schema": "chip.th': "is not JSON or is cut short (line 1: Unterminated string starting at)",
        "{\n}}": "is not JSON or is cut short (line 2: Extra data)",
        "[" * 100_000: "is not JSON or is cut short (too deeply nested)",
        "9" * 5000: "is not JSON or is cut short (a number too long)",
        "-" + "9" * 20: "is not JSON or is cut short (a number too long)",
        "1e400": "is not JSON or is cut short (a number too large)",
        "NaN": "is not JSON or is cut short (NaN is not a number)",
        "[-Infinity]": "is not JSON or is cut short (-Infinity is not a number)",
        "[]": "expected an object with a schema",
        "{}": "has no schema; expected chip.thing/2",
        '{"schema": 3}': "has no schema; expected chip.thing/2",
        '{"schema": "chip.thing"}': "has no schema; expected chip.thing/2",
        json.dumps({**whole, "schema": "chip.other/2"}): "is a chip.other file; expected chip.thing",
        json.dumps({**whole, "schema": "chip.thing/3"}): "schema chip.thing/3 is newer than this chip reads",
        json.dumps({**whole, "schema": "chip.thing/x"}): "schema chip.thing/x is newer than this chip reads",
        json.dumps({**whole, "schema": "chip.thing/²"}): "schema chip.thing/² is newer than this chip reads",
        json.dumps({**whole, "inputs": {}}): "environment must be an object and inputs a list",
        json.dumps({**whole, "environment": []}): "environment must be an object and inputs a list",
        **{
            json.dumps({k: v for k, v in whole.items() if k != gone}): f"field {gone!r} is missing"
            for gone in ("data", "environment", "inputs")
        },
    }.items():
        path.write_text(text, encoding="utf-8")
        assert refusal(*read).startswith(f"{path}: {line}"), text[:80]


def test_an_older_version_is_read(tmp_path):
    path = tmp_path / "it.json"
    artifact.write(path, artifact.new("chip.thing/1", 3, {}))
    assert artifact.read(path, SCHEMA).data == 3


def test_a_file_cut_at_any_byte_is_refused(tmp_path):
    path = tmp_path / "it.json"
    artifact.write(path, artifact.new(SCHEMA, {"x": [1, 2]}, {}))
    text = path.read_text()
    for cut in range(len(text.rstrip())):
        path.write_text(text[:cut])
        assert "is not JSON or is cut short" in refusal(artifact.read, path, SCHEMA)


def test_folders_and_bytes(tmp_path):
    assert refusal(artifact.read_json, tmp_path).startswith(f"{tmp_path}: ")
    (tmp_path / "it").write_bytes(b"\xff\xfe\x00")
    assert refusal(artifact.read_json, tmp_path / "it") == f"{tmp_path / 'it'}: is not text"
    assert "no such file" in refusal(artifact.read_json, tmp_path / "nul\0byte")
    assert "cannot be read" in refusal(artifact.read_json, tmp_path / ("x" * 5000))


RECORDS = [{"schema": SCHEMA, "text": "ü\n"}, {"n": 1}, {"n": 2, "samples": [1, 2, 3]}]


def test_lines_survive_a_kill_at_any_byte(tmp_path):
    """Whatever byte a run was killed at, the whole lines before it are kept and the next append goes on from them."""
    path = tmp_path / "it.jsonl"
    for record in RECORDS:
        artifact.append(path, record, SCHEMA)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = RECORDS[: whole[:cut].count(b"\n")]
        assert artifact.read_lines(path) == kept
        artifact.append(path, {"again": cut}, SCHEMA)
        assert artifact.read_lines(path) == [*kept, {"again": cut}]


def test_a_long_broken_line_is_dropped(tmp_path):
    path = tmp_path / "it.jsonl"
    head = {"schema": SCHEMA}
    artifact.append(path, head, SCHEMA)
    with open(path, "ab") as f:
        f.write(b'{"x": "' + b"y" * 200_000)
    artifact.append(path, {"n": 2}, SCHEMA)
    assert artifact.read_lines(path) == [head, {"n": 2}]
    path.write_bytes(b'{"schema":"chip.thing/2","x":"' + b"z" * 200_000)
    artifact.append(path, {"n": 3}, SCHEMA)
    assert artifact.read_lines(path) == [{"n": 3}]


def test_lines_of_a_file_that_is_not_there_or_not_ours(tmp_path):
    assert artifact.read_lines(tmp_path / "none") == []
    (tmp_path / "it").write_text('{"n": 1}\nnot json\n{"n": 2}\n')
    assert refusal(artifact.read_lines, tmp_path / "it") == f"{tmp_path / 'it'}: line 2 is not JSON"
    (tmp_path / "it").write_bytes(b"\xff\xfe\n")
    assert "is not text" in refusal(artifact.read_lines, tmp_path / "it")
    assert refusal(artifact.read_lines, tmp_path) == f"{tmp_path}: is a folder, a file was expected"
