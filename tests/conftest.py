"""Settings of all tests: one thread a process, few examples of each property, short garbage collections, and which
worker runs which files."""

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import Phase, settings

# Workers fill the cores already: threads of torch that wait for each other there take several times as long
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Two workers and dozens of commands import the same modules: compiled once, whatever the environment says
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# On a busy machine any example may take long. `make campaign` tries many more
# Without `explain`, which traces every line after a failure: CPython 3.11 was seen to hang in that
PHASES = [phase for phase in Phase if phase != Phase.explain]
settings.register_profile(
    "suite", deadline=None, max_examples=int(os.environ.get("CHIP_EXAMPLES", "30")), phases=PHASES
)
settings.load_profile("suite")
# Files that share an expensive fixture (a browser, a report, modules of families, parsed sources) run in one worker
GROUPS = {
    "a browser": "report readme_tables",
    "the runs": "doc_figures model_accuracy native_records quantised_records simulate validate vllm_records",
    "the records": "leave_one_out operator_accuracy",
    "the source": "architecture names security",
    "the families": "run_families families_against_hf launches_against_hf meta_forward bundled_configs "
    "build_ops build_quantised",
}
GROUP = {file: group for group, files in GROUPS.items() for file in files.split()}
# The longest start first, so that no worker ends with one of them while the others are idle
LONGEST = """a browser, the families, the runs, triton_interpreter, docs, calibrate_engine, replay, rows_against_hf,
profile, serve_plan, interpolate, campaign, serve_fuzz, cli_faults, lab_cpu, the records, serve_sweep, one_answer, plan,
traffic, run_text, vllm_runs, api, simulate, fit, cli_lines, serve_crew, jobs, the source, make_quantised, native"""
FIRST = {group.strip(): place for place, group in enumerate(LONGEST.split(","))}
gc.disable()  # while modules are imported and tests collected: nothing of that is garbage
# chip.lab.run.session unfreezes at its end, after which each collection would search all modules again. The garbage
# that tiny models of tests leave behind is small
unfreeze, gc.unfreeze = gc.unfreeze, lambda: None


def group_of(nodeid: str) -> str:
    path = Path(nodeid.split("::")[0])
    file = path.stem.removeprefix("test_")
    return "a browser" if path.parent.name == "browser" else GROUP.get(file, file)


def needs_torch(nodeid: str) -> bool:
    return Path(nodeid.split("::")[0]).parent.name == "device"


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: FIRST.get(group_of(item.nodeid), len(FIRST)))


def pytest_collection_finish():
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        """A worker goes on with what needs torch, or with what does not, as long as there is some: each of them then
        imports torch's and transformers' parts, or reads the bundled data, but hardly any both."""

        def _split_scope(self, nodeid):
            return group_of(nodeid)

        def _assign_work_unit(self, node):
            on_device = self.nodes.index(node) % 2 == 0
            fitting = (s for s, tests in self.workqueue.items() if needs_torch(next(iter(tests))) == on_device)
            self.workqueue.move_to_end(next(fitting, next(iter(self.workqueue))), last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False  # it starts with the files of most tests, which take a moment each
    return ByGroup(config, log)


def pytest_unconfigure():
    unfreeze()  # some libraries warn of objects that are left at the end of the process


@pytest.fixture(scope="module", autouse=True)
def imported_modules_are_no_garbage():
    """`gc.collect()` before a measurement walks all that torch and transformers have made: 0.2 s and more."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def everything(tmp_path_factory):
    """The summary of all bundled results and of made-up ones of every kind; to be read only."""
    import samples  # of tests/pure

    from chip.hardware import gpus
    from chip.show.report import sources

    folder = samples.write_all(tmp_path_factory.mktemp("results"))
    h200 = Path(__file__).parents[1] / "results" / "h200"
    (folder / "h200.json").write_bytes((h200 / "calibration-1.json").read_bytes())  # a file that is there twice
    return sources.gather([h200, gpus.POINTS / "h200", folder], "All")
