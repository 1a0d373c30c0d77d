"""Names and patterns of modules, as quantised checkpoints list the ones they leave alone.

Patterns are strangers' text: they are bounded in length and in what they repeat, so that no match takes long.
"""

import re
import warnings
from functools import cache, lru_cache
from typing import NamedTuple

from planner.errors import InputError

MAX_PATTERN = 300
MAX_REPEATS = 3
_REPEAT = re.compile(r"[*+{]|(?<!\()\?")
_UNBOUNDED = re.compile(r"\)[*+{]")
"""A repeated group can take exponential time to match, and no module pattern needs one."""
_TOWER_LAYER = re.compile(r"(\b(?:blocks|layers|deepstack_merger_list))\\?\.(?:\d+|\*|\\d\+)(?=\\?\.|$)")
"""A layer's number below a tower's name: towers' tensors are named without it."""
_LAYER = re.compile(
    r"^(re:)?\^?(?:\.\*|\*)?(?:\\?\.)?(?:(?:model|language_model|backbone|transformer|decoder)\\?\.)*(?:layers|h)\\?\."
    r"(?P<index>\d+\*?|\*|\.\*|\.\+|\\d\+|\[0-9\]\+|\((?:\?:)?\d+(?:\|\d+)*\))"
    r"(?:\\?\.(?P<local>.*))?$"
)
"""A name or pattern within the decoder's layers: which layers, and what in them."""
_EXPERT = re.compile(r"^(.*\bexperts)\\?\.(?:\d+|\.?\*|\\d\+)(?:\\?\..*)?$")
"""Modules of single experts: the engine joins all experts of a layer in one module."""


class ModuleNames(NamedTuple):
    """Module names and patterns without their layers, by the layers they mean."""

    everywhere: tuple[str, ...]
    single: dict[str, set[str]]
    """Layer number, or number and '*' for all that begin with it, and what is named there."""

    def of(self, layer: int) -> tuple[str, ...]:
        """Those that hold in one layer."""
        number = str(layer)
        keys = (number, *(f"{number[:end]}*" for end in range(1, len(number) + 1)))
        here = {name for key in keys for name in self.single.get(key, ())}
        return (*self.everywhere, *sorted(here)) if here else self.everywhere


@lru_cache(maxsize=64)
def by_layer(names: tuple[str, ...]) -> ModuleNames:
    """Names and patterns of modules, told apart by the layers they mean.

    raises: InputError for a pattern too long to be one
    """
    everywhere: dict[str, None] = {}
    single: dict[str, set[str]] = {}
    for name in names:
        if len(name) > MAX_PATTERN:
            raise InputError(f"quantization_config: {name[:80]!r}... is too long for a module's name or pattern")
        found = _LAYER.match(name)
        regex = "re:" if name.startswith("re:") else ""
        local = _EXPERT.sub(r"\1", (found["local"] or (".*" if regex else "*")) if found else name.removeprefix("re:"))
        local = "lm_head" if local.endswith(".lm_head") else local
        index = found["index"] if found else "*"
        if not index[0].isdigit() and index[0] != "(":
            everywhere[f"{regex}{local}"] = None
            continue
        for number in re.findall(r"\d+\*?", index):
            single.setdefault(number, set()).add(f"{regex}{local}")
    return ModuleNames(tuple(everywhere), single)


@lru_cache(maxsize=4096)
def named_by(module: str, names: tuple[str, ...]) -> bool:
    """True if any of the names or patterns means the module, whatever its layer."""
    return any(_matches(name, module) for name in by_layer(names).everywhere)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    """A module pattern: 're:' is a regular expression, '*' any text, else a name."""
    text = _TOWER_LAYER.sub(r"\1", text)
    if not text.startswith("re:"):
        first, *rest = (re.escape(part) for part in text.split("*"))
        *middle, last = rest or [""]
        # each middle part where it first occurs, for good: no pattern can take long
        return re.compile(first + "".join(f"(?>.*?{part})" for part in middle) + (".*" + last if rest else ""))
    if len(text) > MAX_PATTERN or _UNBOUNDED.search(text) or len(_REPEAT.findall(text)) > MAX_REPEATS:
        raise InputError(f"quantization_config: {text[:80]!r} repeats too much for a pattern of module names")
    try:
        with warnings.catch_warnings(action="ignore"):  # about doubtful forms, which are a stranger's to write
            return re.compile(text[3:])
    except (re.error, OverflowError) as error:
        raise InputError(f"quantization_config: {text!r} is not a regular expression: {error}") from error


def _matches(pattern: str, module: str) -> bool:
    """True if the pattern names the module, one of its parents, or a last part of it."""
    compiled = _pattern(pattern)
    parts = ("layers", *module.split("."))  # for patterns that begin before what is in a layer
    return any(
        compiled.fullmatch(".".join(parts[start:stop]))
        for start in range(len(parts))
        for stop in range(start + 1, len(parts) + 1)
    )
