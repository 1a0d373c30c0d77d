"""The wheel: what it contains, the same by way of the sdist, that it works elsewhere, and what is compiled."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from hatch_build import COMPILED
from planner import __version__, catalog
from tests import wheels
from tests.scenarios import ORACLES, ROOT

compiles = pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler")
SIMULATE = ("simulate", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--workload", "chat", "--format", "yaml")
MADE = (*SIMULATE, "--arrivals", "30", "--requests", "2000", "--seed", "3")
SIMULATIONS = (
    (*MADE, "--fleet", "2", "--jobs", "2"),
    (*MADE, "--fleet", "3", "--routing", "least-loaded", "--arrival-law", "gamma", "--variation", "9"),
    (*MADE, "--fleet", "1", "--timeout", "20", "--max-queue", "50",
     "--set", "engine_options.gpu_memory_utilization=0.24"),
    (*SIMULATE, "--trace", str(ORACLES / "traces" / "azure2023_conv_head.csv"), "--context", "16384", "--fleet", "1"),
    (*SIMULATE, "--trace", str(ORACLES / "traces" / "mooncake_conversation_head.jsonl.gz"), "--context", "131072",
     "--fleet", "1"),
    ("simulate", "--model", "deepseek-r1", "--gpu", "h200-sxm", "--dp", "8", "--workload", "chat", "--arrivals", "6",
     "--requests", "300", "--fleet", "1", "--format", "yaml"),
)  # fmt: skip
"""Processes, bursts, deadlines, preemptions, shared prefixes, and ranks in lockstep."""
PRINT_ALL = """
import json, sys
from planner.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["planner", *arguments]
    try:
        main()
    except SystemExit as end:
        assert end.code in (0, 3), arguments  # 3: misses what is asked
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the checkout's wheel of Python alone contains."""
    return contents(wheels.build("wheel", ROOT, tmp_path_factory.mktemp("plain"), wheels.NOT_COMPILED))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def sources(found: dict[str, bytes]) -> dict[str, bytes]:
    """Without what differs between a compiled wheel and one of Python alone."""
    return {
        name: content
        for name, content in found.items()
        if not name.endswith((".so", ".pyd", ".dist-info/WHEEL", ".dist-info/RECORD"))
    }


def data_files(root: Path) -> set[str]:
    folders = ("model_configs", "profiles")
    return {str(path.relative_to(root)) for folder in folders for path in (root / folder).rglob("*.yaml")}


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(plain: dict[str, bytes]) -> None:
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "planner").rglob("*.py")}
    data = {f"planner/_bundled/{name}" for name in data_files(ROOT)}
    info = {name for name in plain if name.startswith(f"llm_serving_planner-{__version__}.dist-info/")}
    assert len(data) > 80
    assert set(plain) == modules | data | info | {"planner/py.typed"}
    assert {name.rpartition("/")[2] for name in info} >= {"METADATA", "RECORD", "entry_points.txt", "LICENSE", "NOTICE"}


def test_the_sdist_builds_the_same_wheel(plain: dict[str, bytes]) -> None:
    assert sources(contents(wheels.wheel())) == sources(plain)


@compiles
def test_the_wheel_holds_the_compiled_modules() -> None:
    compiled = contents(wheels.wheel())
    folder = "planner/simulate/"
    names = {name.removeprefix(folder).partition(".")[0] for name in compiled.keys() - sources(compiled).keys()}
    assert names - {"llm_serving_planner-0"} == {*COMPILED, "engine__mypyc"}
    assert f"{folder}engine.py" in compiled


def test_without_a_compiler_the_wheel_is_python_alone(plain: dict[str, bytes], tmp_path: Path) -> None:
    built = wheels.build("wheel", ROOT, tmp_path, {"CC": str(tmp_path / "none")})
    assert built.name.endswith("-py3-none-any.whl")
    assert contents(built) == plain


def test_what_compiles_it_is_what_checks_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["dependencies"]
    assert set(needed) <= set(project["project"]["optional-dependencies"]["test"])


def test_the_sdist_can_run_the_tests() -> None:
    needed = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py")} | data_files(ROOT)
    needed |= {str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.yaml")}
    needed |= {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "oracles").rglob("*.*") if path.is_file()}
    assert {name for name in needed if not (wheels.unpacked_sdist() / name).is_file()} == set()


def test_an_unzipped_wheel_works_outside_the_checkout() -> None:
    def run(*arguments: str) -> str:
        return wheels.run(*arguments, folders=(wheels.installed(),))

    assert run("-c", "import planner; print(planner.__file__)").startswith(str(wheels.installed()))
    for kind in catalog.FOLDERS:
        listed = run("-m", "planner", "catalog", kind).splitlines()[1:]
        name = 2 if kind == "price" else 0  # prices stand by term and dollars
        assert sorted({line.split()[name] for line in listed}) == catalog.names(kind)
    arguments = ("estimate", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--workload", "chat")
    by_module = run("-m", "planner", *arguments)
    assert "Binds: " in by_module
    assert run("-c", "from planner.cli import main; main()", *arguments) == by_module


@compiles
def test_compiled_it_simulates_the_same_to_the_byte() -> None:
    printed = [
        wheels.run("-c", PRINT_ALL, json.dumps(SIMULATIONS), folders=(folder,)) for folder in (wheels.installed(), ROOT)
    ]
    assert printed[0].count("kind: planner report\n") == len(SIMULATIONS)
    assert printed[0] == printed[1]


@compiles
def test_compiled_it_is_the_naive_engine_too(tmp_path: Path) -> None:
    shutil.copytree(wheels.installed(), tmp_path, dirs_exist_ok=True)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("golden", "__pycache__"))
    chosen = [f"tests/test_simulate_{name}.py" for name in ("engine", "pool")]
    check = "import sys, pytest, planner.simulate.engine as e; print(e.__file__); sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", check, "-q", *chosen]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith(str(tmp_path / "planner" / "simulate" / "engine."))
    assert not result.stdout.splitlines()[0].endswith(".py")
