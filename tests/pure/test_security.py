"""What SECURITY.md promises of the code itself: nothing that is read is run."""

import ast

from source_trees import FILES, SRC, nodes

UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "joblib", "code", "xmlrpc"}
UNSAFE_CALLS = {"eval", "exec", "os.system", "os.popen", "torch.load", "numpy.load", "np.load"}
LOADERS = {"from_pretrained", "from_config"}


def calls(path):
    for node in nodes(path):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def test_nothing_that_runs_what_it_reads_is_imported():
    for path in FILES:
        for node in nodes(path):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {n.split(".")[0] for n in names} & UNSAFE_MODULES, path


def test_nothing_is_evaluated_and_no_shell_is_asked():
    seen = 0
    for path in FILES:
        for node, name in calls(path):
            seen += 1
            assert name not in UNSAFE_CALLS, f"{path}: {name}"
            for keyword in node.keywords:
                shell = keyword.arg == "shell" and ast.unparse(keyword.value) != "False"
                assert not shell, f"{path}: {name} asks a shell"
    assert seen > 5000


def test_code_of_a_model_is_run_only_where_asked_for():
    """Every loader of transformers says whether: without the word it asks on the terminal, and a pipe may answer."""
    seen = 0
    for path in FILES:
        for node, name in calls(path):
            if name.rpartition(".")[2] in LOADERS and "Auto" in name:
                seen += 1
                given = {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert "trust_remote_code" in given, f"{path}: {ast.unparse(node)}"
                assert given["trust_remote_code"] != "True", path
    assert seen >= 4


# -- every output goes through one writer (tests/pure/test_output.py asks every command)
WRITERS = {
    "files/output.py", "files/artifact.py",
    "lab/chain.py", "lab/measure/replay/pool.py",  # logs, which the writer began
    "lab/kernels/build.py",  # its cache
    "validate/unseen.py",  # a temporary folder
    "show/cli/streams.py", "forked.py", "lab/run/vllm_worker.py",  # streams and pipes
}  # fmt: skip
MAKES = {"write_text", "write_bytes", "rename", "copyfile", "copytree", "move"}
OPENS = {"w", "wb", "a", "ab", "a+b", "x", "r+", "w+"}


def test_nothing_is_written_but_by_the_writer():
    """`open` for writing, and what else makes or replaces a file by its name."""
    opened = {}
    for path in FILES:
        inside = path.relative_to(SRC).as_posix()
        for node, called in calls(path):
            mode = next((a.value for a in node.args if isinstance(a, ast.Constant) and a.value in OPENS), "")
            opens = mode and called in ("open", "io.open", "gzip.open")
            if opens or called.rpartition(".")[2] in MAKES or called == "os.replace":
                opened.setdefault(inside, []).append(ast.unparse(node))
    assert {"files/output.py", "files/artifact.py"} < set(opened)
    assert not {where: calls for where, calls in opened.items() if where not in WRITERS}


READERS = {
    *WRITERS,
    *("lab/kernels/catalog.py", "lab/run/__init__.py", "decoders/config.py", "simulator/workload.py"),  # chip's own
    *("show/webpage.py", "show/report/readme.py"),
    *("lab/measure/device.py", "lab/measure/energy.py", "lab/measure/replay/cudart.py"),  # the system's
    *("lab/measure/disturbance.py", "lab/run/text.py"),
    *("lab/measure/kineto.py", "lab/run/vllm_protocol.py"),  # a temporary file
    "files/identity.py",  # either end of a weight file
}


def test_nothing_is_read_but_by_the_reader():
    """Who opens a file by a name that somebody gave goes through `chip.artifact`, which bounds it."""
    opened = {}
    for path in FILES:
        inside = path.relative_to(SRC).as_posix()
        for node, called in calls(path):
            reads = called.rpartition(".")[2] in ("read_text", "read_bytes") and not called.startswith("artifact.")
            if reads or called in ("open", "io.open", "gzip.open", "os.open"):
                opened.setdefault(inside, []).append(ast.unparse(node))
    assert not {where: calls for where, calls in opened.items() if where not in READERS}
