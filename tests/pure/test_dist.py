"""What is handed out can be built again: the same files give the same bytes, whoever packs them and when."""

import io
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import dist


def packed(names, mtime, uid, mode):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uid, info.uname, info.mode = len(name), mtime, uid, f"user{uid}", mode
            tar.addfile(info, io.BytesIO(name.encode()))
    return out.getvalue()


def test_order_time_owner_and_umask_do_not_matter():
    one = dist.packed_again(packed(["a/b", "a/c"], 1, 0, 0o664), 1_700_000_000)
    two = dist.packed_again(packed(["a/c", "a/b"], 2, 1000, 0o600), 1_700_000_000)
    assert one == two
    with tarfile.open(fileobj=io.BytesIO(one)) as tar:
        assert [(m.name, m.mtime, m.uid, m.mode) for m in tar] == [
            ("a/b", 1_700_000_000, 0, 0o644), ("a/c", 1_700_000_000, 0, 0o644),
        ]  # fmt: skip
        assert tar.extractfile("a/b").read() == b"a/b"
    other = dist.packed_again(packed(["a/b", "a/d"], 1, 0, 0o664), 1_700_000_000)
    assert other != one
