"""The calibrations that ship with planner: their names, loading one, writing one."""

from pathlib import Path

from planner.calibration import Calibration
from planner.calibration_run import CalibrationRun
from planner.catalog import bundled
from planner.documents import load_mapping, to_yaml, validate
from planner.errors import InputError, nearest
from planner.origin import Origin

FOLDER = "profiles/calibrations"
MAX_CALIBRATION_BYTES = 16 * 2**20
"""Of a file: a run's holds every raw point."""


def calibration_names() -> list[str]:
    """Shipped calibrations, sorted."""
    return sorted(path.stem for path in (bundled() / FOLDER).glob("*.yaml"))


def load_calibration(ref: str) -> Calibration:
    """A calibration by shipped name or path; of a path, a CalibrationRun where the file holds a run.

    raises: InputError with the nearest names, or with every problem of the file
    """
    is_path = "/" in ref or ref.endswith((".yaml", ".yml", ".json"))
    if is_path or (ref not in calibration_names() and Path(ref).is_file()):
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
    fields = load_mapping(path, MAX_CALIBRATION_BYTES)
    return validate(CalibrationRun if "environment" in fields else Calibration, fields, Origin(str(path)))


def calibration_yaml(calibration: Calibration) -> str:
    """YAML with a line or two per set of constants or errors."""
    return to_yaml(calibration.model_dump(mode="json", exclude_defaults=True), flow_leaves=True)
