"""Model families: each file here lists its MODEL_TYPES and turns a vendor config into blocks.

There is no central table: a new family is one new file with MODEL_TYPES and `blocks(config) -> Stack`.
"""

import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from planner.blocks import Stack
from planner.errors import InputError, nearest
from planner.origin import Origin
from planner.vendor_config import VendorConfig

SECTIONS = ("vision_config", "audio_config", "text_config", "thinker_config", "encoder", "talker_config")
"""Sections by which a config shows towers beside, or around, its text model; a family lists the ones it reads in a
SECTIONS of its own, and any other is refused."""
TOWER_SECTIONS = ("vision_config", "audio_config")
"""Sections without which an engine still builds the tower, from the class's defaults."""


def resolve(fields: Mapping[str, Any], origin: Origin) -> Stack:
    """The blocks of a model config.

    fields: the vendor's config.json
    origin: where it was read, for messages
    raises: InputError with every problem found; for an unknown model_type, with the nearest known names
    """
    config = VendorConfig(fields, origin)
    family = _family(config)
    stack: Stack | None = None
    try:
        stack = family.blocks(config)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        config.raise_problems()
        raise
    config.raise_problems()
    unstated = (name for name in dict.fromkeys(config.absent_sections) if name in TOWER_SECTIONS)
    notes = (f"the config has no {name}: its tower is counted from the class's defaults" for name in unstated)
    return replace(stack, notes=(*stack.notes, *notes)) if stack.towers else stack


def _family(config: VendorConfig) -> ModuleType:
    model_type = config.fields.get("model_type")
    if not isinstance(model_type, str):
        raise InputError(f"{config.origin.at('model_type')}: missing; planner tells model families by it")
    family = _namesake(model_type) or _searched(model_type, config.origin)
    unread = set(SECTIONS) - set(getattr(family, "SECTIONS", ()))
    for section in sorted(unread):
        if isinstance(config.fields.get(section), Mapping):
            config.problem(section, f"{model_type!r} with this section is more than planner knows of the family")
    return family


def _namesake(model_type: str) -> ModuleType | None:
    """The family whose file is named after the model_type: found without importing all the others."""
    if not model_type.isidentifier() or find_spec(f"{__name__}.{model_type}") is None:
        return None
    module = import_module(f"{__name__}.{model_type}")
    return module if model_type in getattr(module, "MODEL_TYPES", ()) else None


def _searched(model_type: str, origin: Origin) -> ModuleType:
    families = known_families()
    if model_type not in families:
        raise InputError(
            f"{origin.at('model_type')}: {model_type!r} is not a model family that planner knows"
            f"{nearest(model_type, families)}. It is refused rather than guessed; CONTRIBUTING.md shows "
            "how to add a family (one file of 15-60 lines)"
        )
    return families[model_type]


@cache
def known_families() -> dict[str, ModuleType]:
    """model_type -> the family's module; two files that claim one model_type are an error."""
    families: dict[str, ModuleType] = {}
    for info in pkgutil.iter_modules(__path__):
        if info.name.startswith("_"):
            continue
        module = import_module(f"{__name__}.{info.name}")
        for model_type in module.MODEL_TYPES:
            if model_type in families:
                raise RuntimeError(f"{model_type} is claimed by {families[model_type].__name__} and {info.name}")
            families[model_type] = module
    return families
