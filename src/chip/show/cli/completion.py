"""Print a script that completes chip's commands, options, models, GPUs and engines in a shell.

Load it once in a session, or in the file that the shell reads at its start. SHELL is bash, zsh or fish.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from chip import engines
from chip.decoders import library
from chip.hardware import gpus
from chip.show import cli

HELP = "a script that completes commands, options and names in bash, zsh or fish"
EPILOG = """\
  chip completion bash > ~/.local/share/bash-completion/completions/chip
  eval "$(chip completion zsh)"           # in ~/.zshrc, after compinit
  chip completion fish | source
"""
NAMES: dict[str, Callable[[], tuple[str, ...]]] = {
    "model": lambda: tuple(library.names()),
    "gpu": gpus.spec_names,
    "engine": lambda: tuple(engines.names()),
}
# The words of a command line so far go to `chip completion --words`, which prints what may follow.
SCRIPTS = {
    "bash": """\
_chip() {
    local IFS=$'\\n'
    COMPREPLY=($(compgen -W "$(chip completion --words "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)" \\
        -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _chip chip
""",
    "zsh": """\
#compdef chip
_chip() {
    local -a found
    found=("${(@f)$(chip completion --words "${(@)words[2,CURRENT-1]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -a found; fi
    _files
}
compdef _chip chip
""",
    "fish": """\
complete -c chip -a '(chip completion --words (commandline -opc)[2..] 2>/dev/null)'
""",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", nargs="?", help="bash, zsh or fish")
    parser.add_argument("--words", nargs=argparse.REMAINDER, help="print what may follow these words; for the scripts")


def run(args: argparse.Namespace) -> int:
    if args.words is not None:
        print("\n".join(following(args.words)))
        return 0
    if args.shell not in SCRIPTS:
        print(f"chip completion: SHELL must be one of {', '.join(SCRIPTS)}, got {args.shell!r}", file=sys.stderr)
        return 2
    script = SCRIPTS[args.shell]
    print(json.dumps({"shell": args.shell, "script": script}) if args.json else script, end="\n" if args.json else "")
    return 0


def following(words: list[str]) -> list[str]:
    """What may come after `words`, the command line without `chip` and without the word that is being typed."""
    if not words:
        return [*cli.commands(), "--help", "--version"]
    if words[0] not in cli.commands():
        return []
    options = cli.parser(words[0])._option_string_actions
    last = options.get(words[-1]) if len(words) > 1 else None
    if last is not None and last.nargs != 0:  # its value
        return list(last.choices or _names(last.dest))
    places = [a for a in cli.parser(words[0])._actions if not a.option_strings]
    return [*options, *(name for a in places for name in a.choices or _names(a.dest))]


def _names(dest: str) -> tuple[str, ...]:
    return NAMES[dest]() if dest in NAMES else ()
