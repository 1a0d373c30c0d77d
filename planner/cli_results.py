"""Results written in the format that was asked for."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType

from planner import saved
from planner.console import Format, emit, format_of, prints_text
from planner.render import markdown, text
from planner.saved import Result

if TYPE_CHECKING:
    from planner.render.search import Shown
    from planner.search_report import SearchResult

PIPE_WIDTH = 120


def write(
    result: Result,
    asked: Format | None,
    output: Path | None,
    *,
    force: bool,
    brief: bool = False,
    shown: "Shown | None" = None,
) -> None:
    """A result, to a terminal as wide as it is, to a pipe, or to a file.

    asked: its format; None: by the output's name
    shown: how much of a search is drawn; None: the default
    """
    if prints_text(asked, output) and sys.stdout.isatty():
        console = Console()
        text.write(_drawn(result, console.width, shown, brief=brief), console)
        return
    emit(_formatted(result, format_of(asked, output), shown, brief=brief), output, force=force)


def _formatted(result: Result, form: Format, shown: "Shown | None", *, brief: bool) -> str:
    if form is Format.yaml:
        return saved.to_yaml(result)
    if form is Format.json:
        return saved.to_json(result)
    if form is Format.markdown:
        return _search_markdown(result, shown) if result.kind == "planner search" else markdown.draw(result)
    if form is Format.html:
        from planner.render import html  # as below

        return html.draw(result, shown)
    return text.plain(_drawn(result, PIPE_WIDTH, shown, brief=brief), PIPE_WIDTH)


def _drawn(result: Result, width: int, shown: "Shown | None", *, brief: bool) -> RenderableType:
    if result.kind == "planner search":
        from planner.render.search import Shown, draw  # not needed by any other command's start-up

        return draw(result, shown or Shown(), brief=brief)
    return text.draw(result, width, brief=brief)


def _search_markdown(result: "SearchResult", shown: "Shown | None") -> str:
    from planner.render.search import Shown, draw_markdown

    return draw_markdown(result, shown or Shown())
