"""How long each engine step takes, from tables that are filled as steps are asked for.

Every entry is priced by roofline.py, so a step here is serving.step_of's within the error of linear interpolation.
"""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TypeVar

from planner.kernel_times import Meter, Terms
from planner.roofline import Prompt, Step
from planner.serving import Replica

EXACT_TOKENS = 256
"""Steps of up to so many tokens are priced one by one; of more, at multiples of a grid."""
TOKEN_GRID = 64
CONTEXT_GRID = 512
"""Between these lengths of context a decode's attention is linear."""
EVEN_CELLS = 5
"""Cells of a grid whose number has so many binary digits are of its own width, those of each further one twice as wide:
no wider than a sixteenth of what they stand for."""
MOST_ENTRIES = 2**17
"""Of a table; when it is full it starts anew."""

Line = tuple[float, float]
"""Of times that grow evenly with a number: at none of it [s], and for each of it [s]."""

K = TypeVar("K")
V = TypeVar("V")


class Table(dict[K, V]):
    """Times by what they depend on, each computed when it is first asked for."""

    def __init__(self, compute: Callable[[K], V]) -> None:
        super().__init__()
        self.compute = compute

    def __missing__(self, key: K) -> V:
        found = self.compute(key)
        if len(self) >= MOST_ENTRIES:
            self.clear()
        self[key] = found
        return found


class StepTimes:
    """Step times of one data-parallel rank of a replica, the other ranks taken to do as much."""

    def __init__(self, replica: Replica, seconds_of: Callable[[Terms], float] = attrgetter("seconds")) -> None:
        """seconds_of: how long kernels take together that take these terms
        raises: ValueError for pipeline stages, whose steps overlap
        """
        if replica.work.ranks.pp > 1:
            raise ValueError("steps of pipeline stages overlap")
        self.replica, self._seconds_of = replica, seconds_of
        self._ranks = replica.work.ranks.dp
        self._overlapped = replica.steps_in_flight > 1
        self._shared, self._everywhere = Table(self._shared_s), Table(self._everywhere_s)
        self._ends = Table(self._end_s)
        self._prompts = Table(self._prompt_line)
        self._prompt_points = Table(self._prompt_point_s)
        self._launches_s = replica.times.launched_s(0.0, replica.work.kernels)
        self._attention, self._beside = (
            Table(partial(self._attention_line, Table(partial(self._attention_s, beside_prompts=beside_prompts))))
            for beside_prompts in (False, True)
        )
        self._decodes = Table(self._decode_line)

    def decode(self, batch: int, kv_tokens: int) -> tuple[float, float]:
        """(a step of decodes alone [s], what the next one takes more [s]), as run.Times asks for it."""
        start, slope, least = self._decodes[batch, kv_tokens // (CONTEXT_GRID * batch)]
        seconds = start + slope * kv_tokens
        return (seconds, slope * batch) if seconds > least else (least, 0.0)

    def _decode_line(self, place: tuple[int, int]) -> tuple[float, float, float]:
        """A decode step of a batch between two lengths of context: by cached tokens of all, and at least so long."""
        batch, _ = place
        start, slope = self._attention[place]
        outputs, host, least = self._ends[batch]
        return self._shared[batch] + outputs + host + start, slope, least

    def mixed(self, batch: int, kv_tokens: int, prompts: list[tuple[int, int]], everywhere: int | None = None) -> float:
        """A step of prompts, with decodes or alone [s], as run.Times asks for it."""
        tokens, attention = batch, 0.0
        if batch:
            start, slope = self._beside[batch, kv_tokens // (CONTEXT_GRID * batch)]
            attention = start + slope * kv_tokens
        for new, prior in prompts:
            tokens += new
            start, slope = self._prompts[new, prior.bit_length()]
            attention += start + slope * prior
        outputs, host, least = self._ends[batch + len(prompts)]
        device = self._shared[tokens] + outputs + attention
        if everywhere is not None:
            device += self._everywhere[everywhere] - self._everywhere[tokens * self._ranks]
        seconds = (device if device > self._launches_s else self._launches_s) + host
        return seconds if seconds > least else least

    def _attention_line(self, points: Table[tuple[int, int], float], place: tuple[int, int]) -> Line:
        """Attention of a batch of decodes in a cell of contexts, by cached tokens of all.

        points: the same at lengths of context that are multiples of CONTEXT_GRID
        """
        batch, cell = place
        low, width = _cell(cell, 1)
        first, last = points[batch, low], points[batch, low + width]
        slope = (last - first) / (width * CONTEXT_GRID * batch)
        return first - slope * low * CONTEXT_GRID * batch, slope

    def _attention_s(self, place: tuple[int, int], *, beside_prompts: bool) -> float:
        batch, cell = place
        return self._mixers_s(Step(batch, float(cell * CONTEXT_GRID), beside_prompts=beside_prompts))

    def _shared_s(self, tokens: int) -> float:
        """What depends on the number of tokens alone, where each rank has as many."""
        between = _between(self._shared, tokens)
        return self._shared_at(tokens, tokens * self._ranks) if between is None else between

    def _everywhere_s(self, everywhere: int) -> float:
        """The same of one token, by the tokens of all ranks: experts grow with these, and nothing else does."""
        between = _between(self._everywhere, everywhere)
        return self._shared_at(1, everywhere) if between is None else between

    def _shared_at(self, tokens: int, everywhere: int) -> float:
        meter = Meter()
        self.replica.prices.shared(meter, tokens, everywhere)
        return self._seconds_of(meter.terms())

    def _end_s(self, outputs: int) -> tuple[float, float, float]:
        """(output head [s], what the host's work adds [s], what it and the streaming of tokens take at least [s])."""
        meter, times = Meter(), self.replica.times
        self.replica.prices.outputs(meter, outputs)
        added = 0.0 if self._overlapped else times.hosted_s(0.0, outputs, overlapped=False)
        least = max(times.hosted_s(0.0, outputs, overlapped=True), times.server_token_s * outputs)
        return self._seconds_of(meter.terms()), added, least

    def _prompt_line(self, place: tuple[int, int]) -> Line:
        """Attention of so many new tokens after cached ones whose number has so many binary digits, by that number.

        A chunk that is not short lies between chunks of the grid's lengths.
        """
        new, octave = place
        low, width = _cell(new, TOKEN_GRID)
        if 0 < low < new:
            (start, slope), (more, steeper) = self._prompts[low, octave], self._prompts[low + width, octave]
            share = (new - low) / width
            return start + (more - start) * share, slope + (steeper - slope) * share
        if not octave:
            return self._prompt_points[new, 0], 0.0
        near, far = 1 << octave - 1, 1 << octave
        first, last = self._prompt_points[new, near], self._prompt_points[new, far]
        slope = (last - first) / (far - near)
        return first - slope * near, slope

    def _prompt_point_s(self, place: tuple[int, int]) -> float:
        new, prior = place
        return self._mixers_s(Step(0, 0.0, (Prompt(new, prior),)))

    def _mixers_s(self, step: Step) -> float:
        meter = Meter()
        self.replica.prices.mixers(meter, step)
        return self._seconds_of(meter.terms())


def _between(table: Table[int, float], tokens: int) -> float | None:
    """The time between those of two numbers of the grid; None where it is priced by itself."""
    low, width = _cell(tokens, TOKEN_GRID)
    if low == tokens or tokens <= EXACT_TOKENS:
        return None
    first, last = table[low], table[low + width]
    return first + (last - first) * (tokens - low) / width


def _cell(number: int, grid: int) -> tuple[int, int]:
    """(where the cell begins that a number lies in, its width): wider ones for larger numbers."""
    width = grid << max(0, (number // grid).bit_length() - EVEN_CELLS)
    return number // width * width, width
