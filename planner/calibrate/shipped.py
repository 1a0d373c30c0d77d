"""The calibrations that ship with planner: their names, loading one, writing one."""

from pathlib import Path

import yaml

from planner.calibration import Calibration
from planner.catalog import bundled
from planner.documents import NUMBER, NUMBER_TAG, load_mapping, validate
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


class _Dumper(yaml.CSafeDumper):
    """Quotes text that planner's own reader would take for a number, beside what YAML 1.1 would."""


_Dumper.add_implicit_resolver(NUMBER_TAG, NUMBER, list("-+0123456789"))


def calibration_yaml(calibration: Calibration) -> str:
    """YAML with a line or two per set of constants or errors."""
    dumped: str = yaml.dump(
        calibration.model_dump(mode="json", exclude_defaults=True),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=116,
        default_flow_style=None,
    )
    return dumped
