"""What a search starts from: a scenario, and a space whose names are resolved, each file read once."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner import catalog
from planner.documents import load_mapping, validate
from planner.engine_inputs import Engine
from planner.errors import InputError
from planner.inputs import Accelerator, Price, Scenario
from planner.origin import Origin
from planner.prices import lowest_price, named_price
from planner.search import SERVES
from planner.space import DEGREES, Offer, Space

FLAGS = Origin("command line")
UNUSED_PRICE = {"usd_per_hour": 1, "source": "not used: each device has its own"}


def load_search(
    path: Path | None,
    overrides: Mapping[str, Any],
    choices: Mapping[str, Sequence[Any] | None],
    hub_cache: Path | None = None,
) -> tuple[Scenario, Space]:
    """A scenario, and what is tried in place of its own values.

    path: a scenario file; None: overrides say everything
    overrides: dotted path -> value, the same for every choice; a price is that of every device
    choices: values to try, by Space's names, and accelerators and engines as names or paths; without accelerators the
        scenario's own, and every priced one that the engines' rules are of
    raises: InputError with every problem found
    """
    fields, origin, base = (load_mapping(path), Origin(str(path)), path.parent) if path else ({}, FLAGS, Path())
    gpus, engines = choices.get("accelerators") or (), choices.get("engines") or ()
    _check_overrides(overrides, engines)
    own_gpu = not gpus and "accelerator" in fields
    fixed = dict(overrides)
    if not own_gpu:
        fixed["accelerator"] = (*gpus, *catalog.names("price"))[0]
    if engines:
        fixed["engine"] = engines[0]
    asked = overrides.get("price", fields.get("price"))
    listed = asked is None or isinstance(asked, str)
    scenario = catalog.load_scenario(
        fields, origin, fixed | ({"price": UNUSED_PRICE} if listed else {}), base=base, hub_cache=hub_cache
    )
    served = [scenario.engine, *_each(catalog.load_engine, engines[1:])]
    found = _accelerators(gpus, scenario.accelerator if own_gpu else None, served)
    _check_told_apart("--gpu", found)
    _check_told_apart("--engine", served)
    price_of = None if "price" in overrides else _name_of(fields.get("accelerator"), base)
    given = asked if listed else scenario.price
    offers = [_offer(gpu, given if price_of in (None, gpu.name) else None) for gpu in found]
    if isinstance(asked, str) and all(offer.price is None and not offer.listed for offer in offers):
        raise InputError(*(offer.unpriced for offer in offers))
    return scenario, _space(scenario, offers, served, choices)


def _check_overrides(overrides: Mapping[str, Any], engines: Sequence[str]) -> None:
    """Refuse to change one device's or engine's figures where several are tried."""
    for field in overrides:
        part = field.split(".")[0]
        if part == "accelerator" or field.startswith("price.") or (part == "engine" and engines):
            flag = {"accelerator": "--gpu", "price": "--price", "engine": "--engine"}[part]
            raise InputError(f"--set {field}: a search takes it from {flag}, which accepts a file with other figures")


def _check_told_apart(flag: str, parts: Sequence[Accelerator | Engine]) -> None:
    """Refuse two that differ under one name: a result names them, and could not say which is which."""
    by_name = {part.name: part for part in parts}
    mixed = dict.fromkeys(part.name for part in parts if part != by_name[part.name])
    if mixed:
        raise InputError(*(f"{flag}: two that differ are both named {name}: name one otherwise" for name in mixed))


def _each(load: Any, names: Iterable[str]) -> list[Any]:
    """Every one loaded.

    raises: InputError with the problems of all
    """
    found: list[Any] = []
    problems: list[str] = []
    for name in dict.fromkeys(names):
        try:
            found.append(load(name))
        except InputError as error:
            problems.extend(error.problems)
    if problems:
        raise InputError(*problems)
    return found


def _accelerators(gpus: Sequence[str], own: Accelerator | None, engines: Sequence[Engine]) -> list[Accelerator]:
    if gpus:
        return _each(catalog.load_accelerator, gpus)
    shipped = _each(catalog.load_accelerator, catalog.names("price"))
    others = [gpu for gpu in shipped if own is None or gpu.name != own.name]
    return [*([own] if own else ()), *(gpu for gpu in others if any(_serves(engine, gpu) for engine in engines))]


def _serves(engine: Engine, gpu: Accelerator) -> bool:
    return engine.kind not in SERVES or gpu.vendor in SERVES[engine.kind]


def _name_of(accelerator: object, base: Path) -> str | None:
    """The name of a scenario file's accelerator; None where it has none."""
    if isinstance(accelerator, str):
        return catalog.load_accelerator(accelerator, base).name
    return str(accelerator.get("name")) if isinstance(accelerator, dict) else None


def _offer(gpu: Accelerator, asked: Price | str | None) -> Offer:
    """An accelerator at the price that is asked for, or at its listed ones."""
    if isinstance(asked, Price):
        return Offer(accelerator=gpu, price=asked)
    try:
        listed = catalog.load_prices(gpu)
        if asked is None:
            lowest_price(gpu.name, listed, together=1)  # so that one without a dated price is refused once
            return Offer(accelerator=gpu, listed=listed)
        return Offer(accelerator=gpu, price=named_price(asked, gpu.name, listed))
    except InputError as error:
        return Offer(accelerator=gpu, unpriced="; ".join(error.problems))


def _space(
    scenario: Scenario, offers: Sequence[Offer], engines: Sequence[Engine], choices: Mapping[str, Sequence[Any] | None]
) -> Space:
    """Choices that were given, else the usual degrees beside the scenario's own, and its own of everything else."""
    ranks, options = scenario.parallelism, scenario.engine_options
    usual: dict[str, Iterable[Any] | None] = {
        "tp": sorted({*DEGREES, ranks.tp}),
        "pp": sorted({1, ranks.pp}),
        "dp": sorted({1, ranks.dp}),
        "ep": None,
        "kv_dtypes": [scenario.kv_cache.dtype],
        "max_num_batched_tokens": [options.max_num_batched_tokens],
        "max_num_seqs": [options.max_num_seqs],
    }
    tried = {name: choices.get(name) or values for name, values in usual.items()}
    return validate(Space, {"offers": tuple(offers), "engines": tuple(engines), **tried}, FLAGS)
