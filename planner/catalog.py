"""A name or a path -> a validated input. The only module that opens input files (with documents, checkpoint, hub)."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner import checkpoint, hub
from planner.calibration import Calibration
from planner.calibration_run import CalibrationRun
from planner.documents import load_mapping, validate
from planner.engine_inputs import Engine
from planner.errors import InputError, nearest
from planner.input_types import Input
from planner.inputs import Accelerator, Failures, Model, Parallelism, Price, PriceList, PriceRow, Scenario
from planner.origin import Origin
from planner.prices import lowest_price, named_price
from planner.printable import shown
from planner.workload_inputs import Workload

DEFAULT_ENGINE = "vllm-0.33"
DEFAULT_FAILURES = "llama-3-training"
FOLDERS = {
    "model": "model_configs",
    "accelerator": "profiles/accelerators",
    "engine": "profiles/engines",
    "workload": "profiles/workloads",
    "price": "profiles/prices",
    "calibration": "profiles/calibrations",
    "failure": "profiles/failures",
}
KINDS: dict[str, type[Input]] = {
    "model": Model,
    "accelerator": Accelerator,
    "engine": Engine,
    "workload": Workload,
    "price": Price,
    "calibration": Calibration,
    "failure": Failures,
}
PARTS = ("model", "accelerator", "engine", "workload", "price")
"""Kinds of which a scenario always has one, by name or in full."""
MAX_CALIBRATION_BYTES = 16 * 2**20
"""Of a file: a run's holds every raw point."""
MOST_NAMED = 8
"""Rows of a price list that one message names."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.+_-]{0,99}")
_SUFFIXES = (".yaml", ".yml", ".json")


def bundled() -> Path:
    """The folder that holds model_configs/ and profiles/: inside a wheel, or the checkout."""
    package = Path(__file__).parent
    inside = package / "_bundled"
    return inside if inside.is_dir() else package.parent


def names(kind: str) -> list[str]:
    """Shipped names of a kind, sorted."""
    return sorted(path.stem for path in (bundled() / FOLDERS[kind]).glob("*.yaml"))


def load_model(ref: str, base: Path = Path(), hub_cache: Path | None = None) -> Model:
    """A model by shipped name, YAML file, vendor config.json, checkpoint directory or Hugging Face id."""
    return validate(Model, *_model_fields(ref, base, hub_cache))


def load_accelerator(ref: str, base: Path = Path()) -> Accelerator:
    """An accelerator by shipped name or YAML file."""
    path = _path_of("accelerator", ref, base)
    return validate(Accelerator, load_mapping(path), Origin(str(path)))


def load_calibration(ref: str, base: Path = Path()) -> Calibration:
    """A calibration by shipped name or path; of a path, a CalibrationRun where the file holds a run.

    raises: InputError with the nearest names, or with every problem of the file
    """
    path = _path_of("calibration", ref, base)
    fields = load_mapping(path, MAX_CALIBRATION_BYTES)
    return validate(CalibrationRun if "environment" in fields else Calibration, fields, Origin(str(path)))


def load_failures(ref: str, base: Path = Path()) -> Failures:
    """How often devices fail, by shipped name or file."""
    path = _path_of("failure", ref, base)
    return validate(Failures, load_mapping(path), Origin(str(path)))


def load_scenario(
    fields: dict[str, Any],
    origin: Origin,
    overrides: Mapping[str, Any],
    *,
    base: Path = Path(),
    hub_cache: Path | None = None,
) -> Scenario:
    """A scenario with every name resolved and every override applied.

    fields: a scenario file's mapping, or {} where flags say everything
    overrides: dotted path -> value, from flags; a later one wins
    base: the folder that relative paths in `fields` start from
    raises: InputError with every problem found
    """
    flags = Origin("command line")
    fields = dict(fields)
    for kind in PARTS:
        if kind in overrides:
            fields[kind] = overrides[kind]
    _require(fields, origin)
    bases = {kind: Path() if kind in overrides else base for kind in PARTS}
    parts: dict[str, tuple[dict[str, Any], Origin]] = {}
    assumed: list[str] = []
    problems: list[str] = []
    failed: set[str] = set()
    if "engine" not in fields:
        fields["engine"] = DEFAULT_ENGINE
        assumed.append("engine")
    for kind in PARTS:
        if kind in fields and not (kind == "price" and isinstance(fields[kind], str)):
            try:
                where = flags if kind in overrides else origin
                parts[kind] = _part(kind, fields[kind], where, bases[kind], hub_cache)
            except InputError as error:
                problems.extend(error.problems)
                failed.add(kind)
    rest = {name: value for name, value in fields.items() if name not in PARTS}
    settings = {path: value for path, value in overrides.items() if path not in PARTS}
    for path, value in settings.items():
        if path.split(".")[0] not in failed:
            _override(path, value, rest, parts, flags)
    _forget_assumed(parts, settings)
    origin = origin.with_flags((), settings)
    resolved = _validated(parts, settings, problems)
    if "price" not in resolved:
        wanted = fields.get("price")
        price_base = Path() if "price" in overrides else base
        resolved["price"] = _looked_up_price(wanted, resolved["accelerator"], rest, origin, price_base)
        assumed.extend(() if wanted else ("price",))
    assumed.extend(name for name in ("spares", "hours_per_month") if name not in rest)
    if isinstance(rest.get("commitment"), dict):
        start = _start("commitment.price", overrides, base)
        rest["commitment"] = _priced(rest["commitment"], resolved["accelerator"], start)
    _fill_by_name(rest, resolved["workload"], overrides, base)
    rest.setdefault("name", f"{resolved['model'].name} on {resolved['accelerator'].name}")
    return validate(Scenario, {**rest, **resolved, "assumed": tuple(assumed)}, origin)


def _forget_assumed(parts: Mapping[str, tuple[dict[str, Any], Origin]], settings: Mapping[str, Any]) -> None:
    """A workload's assumptions that overrides replace are none of its profile's any more."""
    fields = parts["workload"][0] if "workload" in parts else {}
    given = {path.split(".")[1] for path in settings if path.startswith("workload.")}
    if given and isinstance(fields.get("assumed"), list):
        fields["assumed"] = [name for name in fields["assumed"] if name not in given]


def _validated(
    parts: Mapping[str, tuple[dict[str, Any], Origin]], settings: Mapping[str, Any], problems: list[str]
) -> dict[str, Any]:
    """Each part as its kind of input.

    raises: InputError with the problems known already, and those of the parts
    """
    resolved: dict[str, Any] = {}
    for kind, (part, where) in parts.items():
        if kind == "model":
            part["origin"] = part["origin"].with_flags(("model", "config"), settings)
        try:
            resolved[kind] = validate(KINDS[kind], part, where.with_flags((kind,), settings))
        except InputError as error:
            problems.extend(error.problems)
    if problems:
        raise InputError(*problems)
    return resolved


def _start(field: str, overrides: Mapping[str, Any], base: Path) -> Path:
    """Where a path in this field starts from: the working directory if a flag gave it, by itself or within its part."""
    return Path() if field in overrides or field.split(".")[0] in overrides else base


def _fill_by_name(rest: dict[str, Any], workload: Workload, overrides: Mapping[str, Any], base: Path) -> None:
    """Kernel constants and failure rates that a scenario names, loaded; an availability without a rule gets one."""
    if isinstance(rest.get("calibration"), str):
        rest["calibration"] = load_calibration(rest["calibration"], _start("calibration", overrides, base))
    if "spares" not in rest and workload.objectives.availability is not None:
        rest["spares"] = {"failures": DEFAULT_FAILURES}
    spares = rest.get("spares")
    if isinstance(spares, dict) and isinstance(spares.get("failures"), str):
        rest["spares"] = {
            **spares,
            "failures": load_failures(spares["failures"], _start("spares.failures", overrides, base)),
        }


def load_scenario_file(path: Path, overrides: Mapping[str, Any], hub_cache: Path | None = None) -> Scenario:
    """A scenario from its file; relative paths in it start at its folder."""
    fields = load_mapping(path)
    return load_scenario(fields, Origin(str(path)), overrides, base=path.parent, hub_cache=hub_cache)


def load_engine(ref: str, base: Path = Path()) -> Engine:
    """A serving engine's profile by shipped name or YAML file."""
    path = _path_of("engine", ref, base)
    return validate(Engine, load_mapping(path), Origin(str(path)))


def load_prices(gpu: Accelerator) -> tuple[PriceRow, ...]:
    """The shipped price list of an accelerator.

    raises: InputError where there is none
    """
    path = bundled() / FOLDERS["price"] / f"{gpu.name}.yaml"
    if not _NAME.fullmatch(gpu.name) or not path.is_file():
        raise InputError(
            f"accelerator {gpu.name} has no listed price, and an unpriced device is not free: give --price with the "
            "dollars per device-hour, or price in the scenario; planner catalog prices lists those that are known"
        )
    return validate(PriceList, load_mapping(path), Origin(str(path))).prices


def find_scenario(ref: str) -> Path:
    """The scenario file that an argument names."""
    path = Path(ref)
    if path.suffix not in _SUFFIXES and not os.path.exists(path):
        raise InputError(
            f"{ref}: no such file; a scenario (planner schema scenario) or a saved report is a YAML or JSON file"
        )
    return path


def _require(fields: Mapping[str, Any], origin: Origin) -> None:
    flag = {"model": "--model", "accelerator": "--gpu", "workload": "--workload"}
    missing = [kind for kind in flag if kind not in fields]
    if missing:
        raise InputError(*(f"{origin.at(kind)}: missing; name it there or with {flag[kind]}" for kind in missing))


def _part(
    kind: str, value: object, origin: Origin, base: Path, hub_cache: Path | None
) -> tuple[dict[str, Any], Origin]:
    """The fields of one referenced input, and where they are written."""
    if isinstance(value, dict):
        where = origin.within(kind)
        return ({**value, "origin": where.within("config")} if kind == "model" else dict(value)), where
    if kind == "price" and isinstance(value, int | float) and not isinstance(value, bool):
        return {"usd_per_hour": value, "source": "given, per device-hour"}, origin
    if not isinstance(value, str):
        raise InputError(f"{origin.at(kind)}: a name, a path or a mapping is needed, not {shown(value)}")
    if kind == "model":
        return _model_fields(value, base, hub_cache)
    path = _path_of(kind, value, base)
    return load_mapping(path), Origin(str(path))


def _path_of(kind: str, ref: str, base: Path) -> Path:
    """The file that a name or a path means.

    raises: InputError with the nearest shipped names
    """
    if "/" in ref or ref.endswith(_SUFFIXES):
        return base / ref
    shipped = bundled() / FOLDERS[kind] / f"{ref}.yaml"
    if _NAME.fullmatch(ref) and shipped.is_file():
        return shipped
    if os.path.exists(base / ref):
        return base / ref
    raise InputError(f"{kind} {ref!r} is unknown: neither shipped nor a file{nearest(ref, names(kind))}")


def _model_fields(ref: str, base: Path, hub_cache: Path | None) -> tuple[dict[str, Any], Origin]:
    if hub.HUB_ID.fullmatch(ref) and not os.path.exists(base / ref) and not ref.endswith(_SUFFIXES):
        directory = hub.checkpoint_directory(ref, hub_cache)
        return _checkpoint_fields(directory, ref, f"huggingface.co/{ref}")
    path = _path_of("model", ref, base)
    if os.path.isdir(path):
        return _checkpoint_fields(path, path.resolve().name, str(path))
    fields = load_mapping(path)
    if "config" in fields:
        return {**fields, "origin": Origin(str(path), ("config",))}, Origin(str(path))
    if path.suffix == ".json" or "model_type" in fields:
        name = path.resolve().parent.name if path.name == "config.json" else path.stem
        return _vendor_fields(fields, None, name or path.stem, str(path), path), Origin(str(path))
    raise InputError(
        f"{path}: has neither a config field (planner's own model YAML) nor model_type (a vendor's config.json)"
    )


def _checkpoint_fields(directory: Path, name: str, source: str) -> tuple[dict[str, Any], Origin]:
    config, quant = checkpoint.read_config(directory)
    path = directory / "config.json"
    fields = _vendor_fields(config, quant, name, source, path)
    weights = checkpoint.read_weights(directory, config)
    return (fields | {"weights": weights} if weights else fields), Origin(str(path))


def _vendor_fields(
    config: dict[str, Any], quant: dict[str, Any] | None, name: str, source: str, path: Path
) -> dict[str, Any]:
    return {
        "name": name[:200],
        "config": config,
        "hf_quant_config": quant,
        "source": source,
        "origin": Origin(str(path)),
    }


def _override(
    path: str,
    value: Any,
    rest: dict[str, Any],
    parts: dict[str, tuple[dict[str, Any], Origin]],
    flags: Origin,
) -> None:
    """Set one dotted path in place, in the part that its first name means."""
    first, *inner = path.split(".")
    if first in PARTS and first not in parts:
        parts[first] = ({}, flags.within(first))
    target, keys = (parts[first][0], inner) if first in PARTS else (rest, [first, *inner])
    if not keys or not all(keys) or (first, *inner[:1]) == ("model", "origin"):
        raise InputError(f"--set {path}: a path of field names is needed, such as workload.concurrency")
    for i, key in enumerate(keys[:-1]):
        child = target.get(key)
        if child is not None and not isinstance(child, dict):
            raise InputError(f"--set {path}: {'.'.join(keys[: i + 1])} is not a mapping here")
        target[key] = dict(child or {})
        target = target[key]
    target[keys[-1]] = value


def _looked_up_price(wanted: object, gpu: Accelerator, rest: Mapping[str, Any], origin: Origin, base: Path) -> Price:
    """The price that a scenario names, or the lowest dated on-demand one of an instance that holds its devices.

    wanted: None, or a reference as in load_price
    """
    if wanted is not None and not isinstance(wanted, str):
        raise InputError(f"{origin.at('price')}: provider/instance[/term] or a mapping is needed, not {shown(wanted)}")
    if wanted:
        return load_price(wanted, gpu, base)
    ranks = validate(Parallelism, rest.get("parallelism") or {}, origin.within("parallelism"))
    return lowest_price(gpu.name, load_prices(gpu), ranks.tp * ranks.dp)


def _priced(commitment: dict[str, Any], gpu: Accelerator, base: Path) -> dict[str, Any]:
    """A commitment with its price looked up where it is a reference, as price itself may be."""
    price = commitment.get("price")
    if isinstance(price, str):
        return {**commitment, "price": load_price(price, gpu, base)}
    if isinstance(price, int | float) and not isinstance(price, bool):
        return {**commitment, "price": {"usd_per_hour": price, "source": "given, per device-hour"}}
    return commitment


def load_price(ref: str, gpu: Accelerator, base: Path = Path()) -> Price:
    """A price of an accelerator by reference.

    ref: provider/instance[/term] of the shipped list; FILE.yaml, which holds one price; or
        FILE.yaml#provider/instance[/term] of a price list of one's own
    raises: InputError with what is listed
    """
    file, _, row = ref.partition("#")
    if not file.endswith(_SUFFIXES):
        return named_price(ref, gpu.name, load_prices(gpu))
    fields, origin = load_mapping(base / file), Origin(str(base / file))
    if "prices" not in fields:
        if row:
            raise InputError(f"{file} holds one price and no list: {row!r} cannot be looked up in it")
        return validate(Price, fields, origin)
    listed = validate(PriceList, fields, origin)
    if listed.accelerator != gpu.name:
        raise InputError(f"{origin.at('accelerator')}: these are prices of {listed.accelerator}, not of {gpu.name}")
    if not row:
        known = ", ".join(f"{file}#{each.provider}/{each.instance}" for each in listed.prices[:MOST_NAMED])
        raise InputError(f"{file} is a list of prices, and which is meant must be said: {known or 'it is empty'}")
    return named_price(row, f"{gpu.name} in {file}", listed.prices)
