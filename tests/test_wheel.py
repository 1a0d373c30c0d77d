"""The wheel: what it contains, the same when built by way of the sdist, and that it works outside the checkout."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from planner import __version__, catalog

ROOT = Path(__file__).parent.parent


def build(target: str, source: Path, directory: Path) -> Path:
    """The one file that hatchling builds."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=60)
    (built,) = directory.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))) as archive:
        archive.extractall(directory, filter="data")
    (top,) = directory.iterdir()
    return top


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def data_files(root: Path) -> set[str]:
    folders = ("model_configs", "profiles")
    return {str(path.relative_to(root)) for folder in folders for path in (root / folder).rglob("*.yaml")}


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(wheel: Path) -> None:
    names = set(contents(wheel))
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "planner").rglob("*.py")}
    data = {f"planner/_bundled/{name}" for name in data_files(ROOT)}
    info = {name for name in names if name.startswith(f"llm_serving_planner-{__version__}.dist-info/")}
    assert len(data) > 80
    assert names == modules | data | info | {"planner/py.typed"}
    assert {name.rpartition("/")[2] for name in info} >= {"METADATA", "RECORD", "entry_points.txt", "LICENSE", "NOTICE"}


def test_the_sdist_builds_the_same_wheel(wheel: Path, unpacked_sdist: Path, tmp_path: Path) -> None:
    assert contents(build("wheel", unpacked_sdist, tmp_path)) == contents(wheel)


def test_the_sdist_can_run_the_tests(unpacked_sdist: Path) -> None:
    needed = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py")} | data_files(ROOT)
    needed |= {str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.yaml")}
    needed |= {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "oracles").rglob("*.*") if path.is_file()}
    assert {name for name in needed if not (unpacked_sdist / name).is_file()} == set()


def test_an_unzipped_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)  # noqa: S202 - our own

    def run(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(installed)}
        command = [sys.executable, *arguments]
        result = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=30)
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout

    assert run("-c", "import planner; print(planner.__file__)").startswith(str(installed))
    for kind in catalog.FOLDERS:
        listed = run("-m", "planner", "catalog", kind).splitlines()[1:]
        name = 2 if kind == "price" else 0  # prices stand by term and dollars
        assert sorted({line.split()[name] for line in listed}) == catalog.names(kind)
    arguments = ("estimate", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--workload", "chat")
    by_module = run("-m", "planner", *arguments)
    assert "Binds: " in by_module
    assert run("-c", "from planner.cli import main; main()", *arguments) == by_module
