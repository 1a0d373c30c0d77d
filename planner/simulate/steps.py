"""How long each engine step takes, from tables that are filled as steps are asked for.

Every entry is priced by roofline.py, so a step here is serving.step_of's within the error of linear interpolation.
"""

from collections.abc import Callable
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
MOST_ENTRIES = 2**17
"""Of a table; when it is full it starts anew."""

K = TypeVar("K")


class Table(dict[K, float]):
    """Times by what they depend on, each computed when it is first asked for."""

    def __init__(self, compute: Callable[[K], float]) -> None:
        super().__init__()
        self.compute = compute

    def __missing__(self, key: K) -> float:
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
        self._shared = Table(self._shared_s)
        self._outputs = Table(self._outputs_s)
        self._prompts = Table(self._prompt_s)
        self._least = Table(self._least_s)
        self._launches_s = replica.times.launched_s(0.0, replica.work.kernels)
        self._attention: dict[tuple[int, int, bool], tuple[float, float]] = {}
        self._decodes: dict[tuple[int, int], tuple[float, float]] = {}

    def decode(self, batch: int, kv_tokens: int) -> tuple[float, float]:
        """(a step of decodes alone [s], what each further cached token adds to it [s]).

        batch: requests that decode, at least one
        kv_tokens: cached tokens of all of them
        """
        cell = batch, kv_tokens // (CONTEXT_GRID * batch)
        found = self._decodes.get(cell)
        if found is None:
            found = self._decodes[cell] = self._decode_line(*cell)
        start, slope = found
        return start + slope * kv_tokens, slope

    def _decode_line(self, batch: int, cell: int) -> tuple[float, float]:
        """A decode step between two lengths of context: (at no cached tokens [s], for each of them [s])."""
        low, high = cell * CONTEXT_GRID * batch, (cell + 1) * CONTEXT_GRID * batch
        device = self._shared[batch] + self._outputs[batch]
        start, slope = self._attention_line(batch, cell, mixed=False)
        first, last = (self._hosted(device + start + slope * each, batch) for each in (low, high))
        slope = (last - first) / (high - low)
        return first - slope * low, slope

    def mixed(self, batch: int, kv_tokens: int, prompts: list[tuple[int, int]]) -> float:
        """A step of prompts, with decodes or alone [s].

        batch: requests that decode; none where decodes wait
        kv_tokens: cached tokens of all of them
        prompts: (new tokens, cached ones before them) of each chunk
        """
        tokens, attention = batch, 0.0
        if batch:
            start, slope = self._attention_line(batch, kv_tokens // (CONTEXT_GRID * batch), mixed=True)
            attention = start + slope * kv_tokens
        for prompt in prompts:
            tokens += prompt[0]
            attention += self._prompts[prompt]
        outputs = batch + len(prompts)
        device = self._shared[tokens] + self._outputs[outputs] + attention
        return self._hosted(max(device, self._launches_s), outputs)

    def _hosted(self, device_s: float, outputs: int) -> float:
        """With the host's work, and no faster than the server streams the tokens."""
        if self._overlapped:
            return max(device_s, self._least[outputs])
        return max(self.replica.times.hosted_s(device_s, outputs, overlapped=False), self._least[outputs])

    def _least_s(self, outputs: int) -> float:
        times = self.replica.times
        return max(times.hosted_s(0.0, outputs, overlapped=True), times.server_token_s * outputs)

    def _attention_line(self, batch: int, cell: int, *, mixed: bool) -> tuple[float, float]:
        """Attention of decodes between two lengths of context: (at no cached tokens [s], for each of them [s]).

        mixed: prompts share their step
        """
        found = self._attention.get((batch, cell, mixed))
        if found is None:
            steps = (Step(batch, float(at * CONTEXT_GRID), beside_prompts=mixed) for at in (cell, cell + 1))
            first, last = (self._mixers_s(step) for step in steps)
            slope = (last - first) / (CONTEXT_GRID * batch)
            found = self._attention[batch, cell, mixed] = first - slope * cell * CONTEXT_GRID * batch, slope
        return found

    def _shared_s(self, tokens: int) -> float:
        """What depends on the number of tokens alone, beyond EXACT_TOKENS between numbers of the grid."""
        low, over = divmod(tokens, TOKEN_GRID)
        if over and tokens > EXACT_TOKENS:
            first, last = self._shared[low * TOKEN_GRID], self._shared[(low + 1) * TOKEN_GRID]
            return first + (last - first) * over / TOKEN_GRID
        meter = Meter()
        self.replica.prices.shared(meter, tokens, tokens * self._ranks)
        return self._seconds_of(meter.terms())

    def _outputs_s(self, outputs: int) -> float:
        meter = Meter()
        self.replica.prices.outputs(meter, outputs)
        return self._seconds_of(meter.terms())

    def _prompt_s(self, prompt: tuple[int, int]) -> float:
        """Attention of a prompt; with nothing cached, between lengths of the grid."""
        new, prior = prompt
        low, over = divmod(new, TOKEN_GRID)
        if low and over and not prior:
            first, last = self._prompts[low * TOKEN_GRID, 0], self._prompts[(low + 1) * TOKEN_GRID, 0]
            return first + (last - first) * over / TOKEN_GRID
        return self._mixers_s(Step(0, 0.0, (Prompt(new, prior),)))

    def _mixers_s(self, step: Step) -> float:
        meter = Meter()
        self.replica.prices.mixers(meter, step)
        return self._seconds_of(meter.terms())
