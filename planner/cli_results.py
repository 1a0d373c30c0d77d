"""Results written in the format that was asked for."""

import sys
from pathlib import Path

from rich.console import Console, RenderableType

from planner import saved
from planner.console import Format, emit
from planner.render import markdown, search, text
from planner.render.search import Shown
from planner.saved import Result
from planner.search_report import SearchResult

PIPE_WIDTH = 120


def write(
    result: Result, form: Format, output: Path | None, *, force: bool, brief: bool = False, shown: Shown | None = None
) -> None:
    """A result, to a terminal as wide as it is, to a pipe, or to a file.

    shown: how much of a search is drawn; None: the default
    """
    shown = shown or Shown()
    if form is Format.text and output is None and sys.stdout.isatty():
        console = Console()
        text.write(_drawn(result, console.width, shown, brief=brief), console)
        return
    emit(_formatted(result, form, shown, brief=brief), output, force=force)


def _formatted(result: Result, form: Format, shown: Shown, *, brief: bool) -> str:
    if form is Format.yaml:
        return saved.to_yaml(result)
    if form is Format.json:
        return saved.to_json(result)
    if form is Format.markdown:
        return search.markdown(result, shown) if isinstance(result, SearchResult) else markdown.draw(result)
    return text.plain(_drawn(result, PIPE_WIDTH, shown, brief=brief), PIPE_WIDTH)


def _drawn(result: Result, width: int, shown: Shown, *, brief: bool) -> RenderableType:
    if isinstance(result, SearchResult):
        return search.draw(result, shown, brief=brief)
    return text.draw(result, width, brief=brief)
