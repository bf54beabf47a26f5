"""The command line: one file a command. Whatever the package refuses is one plain line on stderr and exit code 2.

Exit codes: 0 done; 1 a result that is wrong; 2 refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from .._version import __version__
from ..errors import DGNumbaError
from . import bench, cache, convert, demo, gemm, info, profile, quantize, trace, tune, warmup

app = typer.Typer(name="dgnumba", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None)
COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "info": info.info,
    "gemm": gemm.gemm,
    "convert": convert.convert,
    "quantize": quantize.quantize,
    "trace": trace.trace,
    "bench": bench.bench,
    "tune": tune.tune,
    "warmup": warmup.warmup,
    "profile": profile.profile,
    "cache": cache.cache,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"dgnumba {__version__}")
        raise typer.Exit


@app.callback()
def _dgnumba(
    version: Annotated[bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version, and leave.")] = False,
) -> None:
    """Block-scaled FP8 matrix products: on a Hopper GPU, on any CPU, or in an emulator that steps the GPU's kernel."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``dgnumba`` with these arguments, by default the process's own; exits."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="dgnumba")
    except DGNumbaError as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except MemoryError as error:
        message = f"not enough memory: {error}"
    print("dgnumba:", "; ".join(line.strip() for line in message.splitlines()), file=sys.stderr)
    sys.exit(2)


__all__ = ["COMMANDS", "app", "main"]
