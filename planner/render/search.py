"""A search on a terminal or as Markdown: the cheapest candidates, the Pareto front, and why others were rejected."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from planner.render import markdown
from planner.render.choice import named, shape
from planner.render.parts import WARNINGS, Part
from planner.render.regret import regret_lines, regret_tables
from planner.render.tables import show_usd
from planner.render.text import filled_table
from planner.report import Range
from planner.report_mix import MixPlan
from planner.search_report import Candidate, Rejected, SearchFacts, SearchResult, SpaceFacts
from planner.units import counted, show_seconds

DEFAULT_TOP = 10
JOINED = ("seqs", "used")
"""Headings of columns in which one line may show several values."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How much of a search is drawn."""

    top: int = DEFAULT_TOP
    """Candidates, and members of the Pareto front."""
    rejected: bool = False
    """Every rejected choice instead of one of each kind."""


@dataclass(frozen=True, slots=True)
class _Line:
    """Candidates that differ in max_num_seqs alone, in figures that show the same."""

    rank: int
    """Of the first of them, from 1."""
    alike: tuple[Candidate, ...]
    """By max_num_seqs."""

    @property
    def candidate(self) -> Candidate:
        """The one of the smallest max_num_seqs."""
        return self.alike[0]

    @property
    def pareto(self) -> bool:
        """Whether one of them is on the Pareto front."""
        return any(each.pareto for each in self.alike)

    def each(self, show: Callable[[Candidate], str]) -> str:
        """What differs between them; of many, the first and the last."""
        found = list(dict.fromkeys(map(show, self.alike)))
        return ", ".join(found) if len(found) < 3 else f"{found[0]} to {found[-1]}"


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    show: Callable[[_Line], str]
    right: bool = True


def draw(result: SearchResult, shown: Shown, *, brief: bool) -> RenderableType:
    """A search for a terminal."""
    parts: list[RenderableType] = [Text(result.scenario.title, style="bold"), Text(subject(result), style="dim")]
    parts.append(Text(counts(result)))
    for part in search_parts(result, shown, brief=brief):
        heading = "bold cyan" if part.rows else "yellow" if part.heading == WARNINGS else "bold"
        parts.append(Text(f"\n{part.heading}", style=heading))
        if part.rows:
            parts += [filled_table(part.heads, part.rows), *(Text(line, style="dim") for line in part.lines)]
        else:
            style = "dim" if part.heading == "Assumes" else ""
            parts += [Padding(Text(line, style=style), (0, 0, 0, 2)) for line in part.lines]
    return Group(*parts)


def draw_markdown(result: SearchResult, shown: Shown) -> str:
    """A search as GitHub-flavoured Markdown."""
    opening = markdown.opening(result.scenario.title, subject(result))
    parts = markdown.parts(search_parts(result, shown, brief=False))
    return "\n".join([*opening, markdown.plain(counts(result)), *parts, ""])


def search_parts(result: SearchResult, shown: Shown, *, brief: bool) -> Iterator[Part]:
    """The tables of candidates and of regret, and what is said beside them."""
    columns = _columns(result)
    for heading, found, more in _tables(result, shown):
        yield Part(heading, _heads(columns), list(_rows(columns, found)), [more] if more else [])
    yield from regret_tables(result, shown.top)
    yield from _remarks(result, shown, brief=brief)


def fleet_text(candidate: Candidate) -> str:
    """'5 replicas x TP8 = 40 h100-sxm'; more billed devices than used ones are told."""
    choice, billed = candidate.choice, candidate.billed_devices
    replicas = counted(candidate.active_replicas + candidate.spare_replicas, "replica")
    idle = f" ({billed:,} billed)" if billed != candidate.devices else ""
    return f"{replicas} x {shape(choice)} = {candidate.devices:,} {choice.accelerator}{idle}"


def subject(result: SearchResult) -> str:
    """What is served and within which limits."""
    facts, engines = result.scenario, result.space.engines
    load = f"{facts.concurrency:,} concurrent" if facts.concurrency is not None else ""
    arrivals = f"{facts.arrivals_per_s} requests a second" if facts.arrivals_per_s is not None else ""
    parts = [facts.model, facts.workload, *(engines if len(engines) == 1 else ())]
    parts += [counted(facts.context_tokens, "token"), load, arrivals, *_limits(facts)]
    return " · ".join(part for part in parts if part)


def _limits(facts: SearchFacts) -> Iterator[str]:
    times = (("p95 TTFT", facts.ttft_p95_limit_s), ("p95 of gaps", facts.itl_p95_limit_s))
    yield from (f"{name} within {show_seconds(float(limit))}" for name, limit in times if limit is not None)
    shares = (("success", facts.success_share_limit), ("availability", facts.availability_limit))
    yield from (f"{name} of {float(share) * 100:.6g} %" for name, share in shares if share is not None)


def counts(result: SearchResult) -> str:
    """How many choices serve the load, and how many do not."""
    merged = f", {result.merged:,} the same as another" if result.merged else ""
    found = len(result.candidates)
    verdict = f"{f'{found:,}' if found else 'none'} serve{'' if found > 1 else 's'} the load"
    return f"{counted(result.tried, 'choice')}: {verdict}, {len(result.rejected):,} rejected{merged}"


def _tables(result: SearchResult, shown: Shown) -> Iterator[tuple[str, Sequence[_Line], str]]:
    """(heading, lines, what is left out) of each table of candidates."""
    lines = _lines(result)
    front = [line for line in lines if line.pareto]
    tables = [("Cheapest first (* on the Pareto front)", lines)]
    if any(line.pareto for line in lines[shown.top :]):
        tables.append(("Pareto front: nothing is cheaper, and as fast in TPOT and p95 TTFT", front))
    for heading, found in tables:
        if found:
            left = len(found) - shown.top
            yield heading, found[: shown.top], f"and {left:,} more: --top {len(found)} prints all" if left > 0 else ""


def _lines(result: SearchResult) -> list[_Line]:
    """Candidates by rank; those that differ in max_num_seqs alone and show the same figures are one line."""
    columns = [column for column in _columns(result) if column.heading not in JOINED]
    found: dict[tuple[str, ...], list[int]] = {}
    for i, each in enumerate(result.candidates):
        alone = _Line(i + 1, (each,))
        found.setdefault(tuple(column.show(alone) for column in columns), []).append(i)
    same = ((ranks[0] + 1, [result.candidates[i] for i in ranks]) for ranks in found.values())
    return [_Line(rank, tuple(sorted(alike, key=lambda each: each.choice.max_num_seqs or 0))) for rank, alike in same]


def _columns(result: SearchResult) -> list[_Column]:
    """What tells candidates apart, and their figures."""
    columns = [_Column("fleet", lambda line: fleet_text(line.candidate), right=False), *_varied(result.space)]
    columns.append(_Column("a month", lambda line: show_usd(line.candidate.monthly_usd)))
    if any(each.per_1000_successful_usd is not None for each in result.candidates):
        columns.append(_Column("per 1,000", lambda line: _shown(line.candidate.per_1000_successful_usd, show_usd)))
    return [
        *columns,
        _Column("TPOT", lambda line: _shown(line.candidate.tpot_s, _best)),
        _Column("p95 TTFT", lambda line: _shown(line.candidate.ttft_p95_s, _best)),
        _Column("used", lambda line: line.each(lambda each: _shown(each.utilisation, "{:.0%}".format))),
        _Column("binds", lambda line: line.candidate.binding_limit, right=False),
    ]


def _varied(space: SpaceFacts) -> Iterator[_Column]:
    if len(space.engines) > 1:
        yield _Column("engine", lambda line: line.candidate.choice.engine, right=False)
    if len(space.kv_dtypes) > 1:
        yield _Column("cache", lambda line: line.candidate.choice.kv_dtype, right=False)
    if len(space.max_num_batched_tokens) > 1:
        yield _Column("batched", lambda line: _shown(line.candidate.choice.max_num_batched_tokens, "{:,}".format))
    if len(space.max_num_seqs) > 1:
        yield _Column("seqs", lambda line: line.each(lambda each: _shown(each.choice.max_num_seqs, "{:,}".format)))


def _shown(value: Any, show: Callable[[Any], str]) -> str:
    return "-" if value is None else show(value)


def _best(time: Range) -> str:
    return show_seconds(time.best)


def _rows(columns: Sequence[_Column], lines: Sequence[_Line]) -> Iterator[list[str]]:
    """Rank and mark, then the cells, of each line."""
    for line in lines:
        yield [f"{line.rank:,}{' *' if line.pareto else ''}", *(column.show(line) for column in columns)]


def _heads(columns: Sequence[_Column]) -> list[tuple[str, bool]]:
    """(heading, whether its cells stand at the right) of each column, the rank before them."""
    return [("", False), *((column.heading, column.right) for column in columns)]


def _remarks(result: SearchResult, shown: Shown, *, brief: bool) -> Iterator[Part]:
    """What is said beside the tables."""
    sections = [
        ("The least regretted", list(regret_lines(result))),
        ("The cheapest", list(_in_full(result.candidates[:1]))),
        ("The cheapest with predicted speed", list(_in_full(_cheapest_predicted(result.candidates)))),
        ("Mixed by size of request", list(_mixed(result, result.mix)) if result.mix else []),
        (WARNINGS, [*_unsure(result.candidates), *result.warnings]),
        ("Rejected", list(_rejected(result, every=shown.rejected))),
        ("Assumes", [] if brief else list(result.assumptions)),
    ]
    yield from (Part(heading, lines=lines) for heading, lines in sections if lines)


def _mixed(result: SearchResult, mix: MixPlan) -> Iterator[str]:
    """What a mix comes to beside the best single type and the cheapest candidate, and what each of its types serves."""
    candidates = result.candidates
    if candidates and candidates[0].monthly_usd < mix.monthly_usd:
        less = show_usd(candidates[0].monthly_usd)
        yield f"number 1 of the cheapest serves all sizes in one fleet for less: {less} a month; apart they come to:"
    alone = "no single type serves all sizes"
    if mix.best_single is not None and mix.best_single_monthly_usd is not None:
        alone = f"{mix.best_single} alone: {show_usd(mix.best_single_monthly_usd)}"
    if len(mix.parts) == 1 and mix.best_single is not None:
        yield f"no mix of these is cheaper than {alone} a month, each size of request apart"
        return
    yield f"{show_usd(mix.monthly_usd)} a month; {alone}"
    for part in mix.parts:
        yield f"{counted(part.active_replicas, 'active replica')} of {part.choice}: {', '.join(part.serves)}"
    if result.scenario.availability_limit is not None:
        yield "each type has the spares with which enough of all of them at once work as long as is asked for"


def _cheapest_predicted(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """The first whose speed is predicted, unless it is the first of all."""
    known = [i for i, each in enumerate(candidates) if each.tpot_s]
    return [candidates[i] for i in known[:1] if i > 0]


def _in_full(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Price, times with their ranges, and what binds."""
    for each in candidates:
        yield f"{fleet_text(each)}, of which {counted(each.spare_replicas, 'spare replica')}: {each.price}"
        times = (("TPOT", each.tpot_s), ("p95 TTFT", each.ttft_p95_s), ("p95 of gaps", each.itl_p95_s))
        shown = [f"{name} {_range(time)}" for name, time in times if time]
        if shown:
            yield f"{', '.join(shown)}: by {each.calibration}"
        yield f"binds: {each.binding_limit}: {each.binding_reason}"


def _range(time: Range) -> str:
    return f"{show_seconds(time.best)} ({show_seconds(time.low)} to {show_seconds(time.high)})"


def _unsure(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Devices whose speed rests on another's constants, or is not predicted."""
    lent = dict.fromkeys(each.choice.accelerator for each in candidates if each.stood_in)
    if lent:
        yield f"nobody measured {', '.join(lent)}: other devices' kernel constants stand in, on their datasheet peaks"
    unknown = dict.fromkeys(each.choice.accelerator for each in candidates if each.tpot_s is None)
    if unknown:
        yield f"speed is not predicted, and memory alone sizes the fleet, of {', '.join(unknown)}"


def _rejected(result: SearchResult, *, every: bool) -> Iterator[str]:
    """Every rejected choice, or of each kind how many there are and the first."""
    if every:
        yield from (f"{named(result.space, each.choice)}: {each.limit}: {each.reason}" for each in result.rejected)
        return
    kinds: dict[str, list[Rejected]] = {}
    for each in result.rejected:
        kinds.setdefault(each.limit, []).append(each)
    for limit, found in kinds.items():
        yield f"{len(found):,} by {limit}, such as {named(result.space, found[0].choice)}: {found[0].reason}"
