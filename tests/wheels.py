"""planner as it is installed: its wheel, built once for all who ask, with the simulated engine compiled."""

import os
import subprocess
import sys
import tarfile
import zipfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.scenarios import ROOT

NOT_COMPILED = {"HATCH_BUILD_NO_HOOKS": "true"}


def build(target: str, source: Path, directory: Path, environment: dict[str, str]) -> Path:
    """The one file that hatchling builds."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=300, env={**os.environ, **environment})
    (built,) = directory.iterdir()
    return built


@cache
def _kept() -> TemporaryDirectory[str]:
    """Until this process ends."""
    return TemporaryDirectory()


def _new(name: str) -> Path:
    directory = Path(_kept().name, name)
    directory.mkdir()
    return directory


@cache
def unpacked_sdist() -> Path:
    """The checkout's."""
    directory = _new("unpacked")
    with tarfile.open(build("sdist", ROOT, _new("sdist"), {})) as archive:
        archive.extractall(directory, filter="data")
    (top,) = directory.iterdir()
    return top


@cache
def wheel() -> Path:
    """Built from the sdist, and compiled where there is a compiler."""
    return build("wheel", unpacked_sdist(), _new("wheel"), {})


@cache
def installed() -> Path:
    """The folder in which that wheel is unzipped."""
    directory = _new("installed")
    with zipfile.ZipFile(wheel()) as archive:
        archive.extractall(directory)  # noqa: S202 - our own
    return directory


def run(*arguments: str, folders: tuple[Path, ...], timeout: float = 60) -> str:
    """What Python prints that runs elsewhere and imports from these folders first; stderr must be empty."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, *arguments]
    with TemporaryDirectory() as elsewhere:
        result = subprocess.run(
            command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=timeout
        )
    assert (result.returncode, result.stderr) == (0, ""), result.stdout + result.stderr
    return result.stdout
