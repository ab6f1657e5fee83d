"""The command line: one file a command. Commands parse, call and print, no more.

stdout is the answer, stderr is talk. Exit codes: 0 done, 1 done but something in it failed, 2 bad input,
3 a fault of chip's own, 130 interrupted.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from chip import __version__
from chip.files import output
from chip.show import garbage
from chip.show.cli.streams import discard, standard_streams
from chip.types import ChipError, install

COMMANDS = (
    "predict", "simulate", "plan", "estimate", "list", "show", "calibrate", "profile", "fit", "roofline", "bench",
    "compare", "validate", "capture", "replay", "explain", "kernels", "report", "serve", "lab", "completion",
    "generate", "import",
)  # fmt: skip
FAULT = 3  # exit code
OPTIONAL = dict.fromkeys(("torch", "transformers", "numpy", "scipy", "tqdm", "pynvml", "safetensors"), "measure")
OPTIONAL |= {"triton": "kernels"}  # module -> the extra that brings it
ABOUT = """\
CHIP tells how fast a language model will run on a GPU before it runs, and why it ran as fast as it did after.

  chip predict llama-3.1-8b --gpu h200 --batch 8 --prompt 1024 --output 128
  chip estimate linear m=8 n=4096 k=4096 --gpu h200
"""


class StoreOnce(argparse._StoreAction):
    """An option that takes one value refuses to be given twice, instead of ignoring the first."""

    given = False

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *rest: Any) -> None:
        if self.given and self.option_strings:
            hint = getattr(self.type, "once", "give it once")
            parser.error(f"{self.option_strings[-1]} is given twice; {hint}")
        self.given = True
        super().__call__(parser, namespace, *rest)


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one line, with the nearest option named."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.register("action", None, StoreOnce)
        self.register("action", "store", StoreOnce)

    def error(self, message: str) -> NoReturn:
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            word = (message.removeprefix(prefix).split() or [""])[0].split("=")[0]
            hint = self._hint(word)
            message = f"no option or argument {word!r}; {hint}"
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(2)

    def _hint(self, word: str) -> str:
        if "--engine-setting" in self._option_string_actions:
            from chip.show.cli import options

            if of_engine := options.hint(word):
                return of_engine
        near = get_close_matches(word, self._option_string_actions, 1)
        return f"did you mean {near[0]}?" if near else f"see `{self.prog} --help`"


def commands() -> list[str]:
    return [*COMMANDS]


def command(name: str) -> ModuleType:
    return import_module(f"chip.show.cli.{name}")


def parser(name: str) -> Parser:
    module = command(name)
    built = Parser(
        prog=f"chip {name}",
        description=module.__doc__,
        epilog=f"examples:\n{module.EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.configure(built)
    if "--json" not in built._option_string_actions:
        built.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return built


def main(argv: Sequence[str] | None = None) -> int:
    gc.set_threshold(garbage.THRESHOLD)
    try:
        with standard_streams():
            try:
                return _main([*(sys.argv[1:] if argv is None else argv)])
            finally:
                sys.stdout.flush()  # here, where a reader that left can still be dealt with
    except BrokenPipeError:  # it had enough (`| head`)
        discard(sys.stdout)
        return 0
    except OSError as e:  # files are dealt with below: this is standard output itself, on a full disk for instance
        discard(sys.stdout)
        print(f"chip: standard output cannot be written ({e.strerror})", file=sys.stderr)
        return 1
    except ChipError as e:
        print(f"chip: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before a command began, or while the last of its output was written
        print("chip: interrupted", file=sys.stderr)
        return 130


def _main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"chip {__version__}")
        return 0
    name = words[0]
    if name not in commands():
        near = get_close_matches(name, commands(), 1)
        hint = f"did you mean {near[0]}?" if near else f"commands: {', '.join(commands())}"
        print(f"chip: no command {name!r}; {hint}", file=sys.stderr)
        return 2
    try:
        return _run(name, words[1:])
    except OSError as e:
        if e.filename is None:  # a stream, not a file
            raise
        print(f"chip {name}: {told(e)}", file=sys.stderr)
        return 2
    except (ChipError, RecursionError, MemoryError, ImportError) as e:
        print(f"chip {name}: {told(e)}", file=sys.stderr)
        return 2
    except Exception as e:
        if os.environ.get("CHIP_TRACEBACK"):
            raise
        print(f"chip {name}: {told(e)}", file=sys.stderr)
        return FAULT
    except KeyboardInterrupt:
        print(f"chip {name}: interrupted; what was written is kept", file=sys.stderr)
        return 130


def _run(name: str, words: list[str]) -> int:
    module, known = command(name), parser(name)
    args = known.parse_args(words)
    if hasattr(module, "outputs"):
        output.check_all(module.outputs(args), _inputs(known, args))
    return int(module.run(args))


def _inputs(known: Parser, args: argparse.Namespace) -> Iterator[str]:
    """Every word that may name a file that the command reads."""
    for action in known._actions:
        value = getattr(args, action.dest, None)
        for word in [value] if isinstance(value, (str, Path)) else value if isinstance(value, Sequence) else ():
            if isinstance(word, (str, Path)) and action.type is not output.path:
                yield from {str(word), *str(word).split(",")}


def told(e: Exception) -> str:
    """One line for whoever asked, whatever went wrong."""
    if isinstance(e, ChipError):
        return str(e)
    if isinstance(e, OSError):
        return f"{str(e.filename)[:300]}: {e.strerror}" if e.filename is not None else str(e.strerror or e)
    if isinstance(e, RecursionError):
        return "the input is nested too deeply"
    if isinstance(e, MemoryError):
        return "out of memory; ask for something smaller"
    missing = e.name.split(".")[0] if isinstance(e, ImportError) and e.name else ""
    if missing in OPTIONAL:
        return f"this needs {missing}: {install(OPTIONAL[missing])}"
    text = next(iter(str(e).splitlines()), "")
    return f"a fault of chip's own ({type(e).__name__}: {text[:160]}); please report it, with CHIP_TRACEBACK=1 set"


def overview() -> str:
    rows = "\n".join(f"  {n:<10} {command(n).HELP}" for n in commands())
    return f"{ABOUT}\ncommands (each has --help and --json):\n{rows}\n"
