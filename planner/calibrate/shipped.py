"""The calibrations that ship with planner: their names, loading one, writing one."""

from pathlib import Path

from planner.calibration import Calibration
from planner.catalog import bundled
from planner.documents import load_mapping, to_yaml, validate
from planner.errors import InputError, nearest
from planner.origin import Origin

FOLDER = "profiles/calibrations"


def calibration_names() -> list[str]:
    """Shipped calibrations, sorted."""
    return sorted(path.stem for path in (bundled() / FOLDER).glob("*.yaml"))


def load_calibration(ref: str) -> Calibration:
    """A calibration by shipped name or path.

    raises: InputError with the nearest names, or with every problem of the file
    """
    if "/" in ref or ref.endswith((".yaml", ".yml", ".json")):
        return _read(Path(ref))
    return shipped_calibration(ref)


def shipped_calibration(name: str) -> Calibration:
    """A calibration by shipped name only, as tables that strangers wrote may name it.

    raises: InputError with the nearest names
    """
    known = calibration_names()
    if name not in known:
        raise InputError(f"calibration {name!r} is not shipped{nearest(name, known)}")
    return _read(bundled() / FOLDER / f"{name}.yaml")


def _read(path: Path) -> Calibration:
    return validate(Calibration, load_mapping(path), Origin(str(path)))


def calibration_yaml(calibration: Calibration) -> str:
    """YAML with a line or two per set of constants or errors."""
    return to_yaml(calibration.model_dump(mode="json", exclude_defaults=True), flow_leaves=True)
