"""What every command shares: formats, errors to exit codes, and the only writing to stdout and stderr.

With the cli modules, the only place that prints, reads the environment or exits.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from planner.errors import InputError, PlannerError
from planner.printable import escaped

if TYPE_CHECKING:
    from rich.progress import Progress

DONE, NOT_FEASIBLE = 0, 3


class Format(StrEnum):
    """How a result is written."""

    text = "text"
    markdown = "markdown"
    html = "html"
    yaml = "yaml"
    json = "json"


class PlannerGroup(TyperGroup):
    """Turns planner's own errors into one line each on stderr and their exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except PlannerError as error:
            for problem in error.problems:
                sys.stderr.write(f"planner: {escaped(problem)}\n")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            sys.stderr.write("planner: interrupted\n")
            raise typer.Exit(130) from None


FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How the result is written.")]
ResultFormatOption = Annotated[
    Format | None,
    typer.Option("--format", "-f", help="How the result is written; default: as the output's name ends, else text."),
]
OutputOption = Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file, whole or not at all.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite the output file if it exists.")]


BY_SUFFIX = {
    ".yaml": Format.yaml, ".yml": Format.yaml, ".json": Format.json, ".md": Format.markdown,
    ".markdown": Format.markdown, ".html": Format.html, ".htm": Format.html,
}  # fmt: skip


def format_of(asked: Format | None, output: Path | None) -> Format:
    """The format that was asked for, else that of the output's name, so that a saved .yaml can be read again."""
    name = output.name.lower() if output else ""
    return asked or next((form for suffix, form in BY_SUFFIX.items() if name.endswith(suffix)), Format.text)


def prints_text(asked: Format | None, output: Path | None) -> bool:
    """Whether the result goes to stdout as text."""
    return output is None and format_of(asked, output) is Format.text


def hub_cache() -> Path | None:
    """Where huggingface_hub keeps what it downloaded; None without a home directory."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"])
    try:
        home = Path(os.environ["HF_HOME"]) if "HF_HOME" in os.environ else Path.home() / ".cache" / "huggingface"
    except RuntimeError:  # no home directory
        return None
    return home / "hub"


def progress() -> "Progress":
    """A progress bar on stderr, gone when it is done; none where stderr is no terminal."""
    from rich.progress import Progress  # slow to import, and most commands show none

    return Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar over work that says (how many are done, of how many; None: not known)."""
    with progress() as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def stopping_when_terminated() -> Iterator[None]:
    """SIGTERM unwinds the command as an interrupt does, so that the processes that it started end with it."""

    def stop(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_rows_format(form: Format) -> None:
    """Refuse a format that no listing and no score has."""
    if form not in (Format.text, Format.json):
        raise InputError(f"--format: {form.value} is not offered here; accepted: text, json")


def check_output(output: Path | None, *, force: bool) -> None:
    """Refuse a file that must stay before any work is done for it."""
    if output is not None:
        from planner.output import check_free  # as in emit

        check_free(output, overwrite=force)


def emit_rows(fields: object, lines: Iterable[str], form: Format) -> None:
    """A listing or a score: its fields as JSON, or its lines."""
    check_rows_format(form)
    emit(
        json.dumps(fields, indent=2) + "\n" if form is Format.json else "".join(f"{escaped(line)}\n" for line in lines),
        None,
        force=False,
    )


def emit(content: str, output: Path | None, *, force: bool) -> None:
    """The result, to stdout or whole to a file."""
    if output is not None:
        from planner.output import write_whole  # tempfile is slow to import, and most runs print

        write_whole(output, content, overwrite=force)
        return
    try:
        sys.stdout.write(content)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains again at exit
        if not isinstance(error, BrokenPipeError):  # a reader such as head may have enough
            raise InputError(f"standard output: cannot be written: {error.strerror}") from error
