"""Habits that keep the code readable: one import direction, one place that prints, published formulas, short parts."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios import ROOT

PACKAGE = ROOT / "planner"
FILES = sorted(PACKAGE.rglob("*.py"))
ORDER = (
    "units", "errors", "printable", "origin", "report_base", "report_demand", "report_mix", "report_money",
    "report_simulation", "report", "search_report", "queueing", "output", "documents", "input_types", "engine_inputs",
    "workload_inputs", "money_inputs", "calibration", "calibration_run", "inputs", "hub", "checkpoint", "prices",
    "catalog", "vendor_config", "tensors", "mixers", "blocks", "architectures", "module_names", "quantisation",
    "sharding", "weights", "kv_cache", "cache_specs", "cache_groups", "pool", "memory", "deployment", "rank",
    "calibrate", "accuracy", "kernel_times", "datasheet_times", "rank_work", "roofline", "serving", "latency",
    "replica", "simulate", "availability", "fleet", "objectives", "sizing", "prefix_cache", "cost", "derive_cache",
    "report_memory", "report_latency", "report_cost", "derive", "remarks", "proposals", "plan", "tenants", "demand",
    "workers", "regrets", "simulation", "mix_solver", "mix", "space", "search", "search_inputs", "engine_logs",
    "validate", "validate_logs", "serving_rows", "row_models", "offline_benchmark", "validate_serving", "replay_meta",
    "replay_rows", "replay_series", "replay_setup", "validate_replay", "listing", "render", "schema", "saved", "gate",
    "compare", "console", "cli_options", "cli_results", "cli_validate", "cli_calibrate", "cli_search", "cli_simulate",
    "cli", "__main__",
)  # fmt: skip
"""Modules from the lowest to the highest: each imports only from those before it, and from its own folder."""
ONLY = {
    "render": {
        "report",
        "search_report",
        "units",
        "printable",
        "calibration",
        "calibration_run",
        "calibrate",
        "render",
        "report_base",
        "report_demand",
        "report_mix",
        "report_simulation",
    },
    "architectures": {"tensors", "mixers", "blocks", "vendor_config", "errors", "origin", "architectures"},
}
"""Modules that import nothing else of planner."""
CLI = ("cli", "cli_options", "cli_results", "cli_validate", "cli_calibrate", "cli_search", "cli_simulate", "console")
"""Where arguments are read and results printed."""
CATALOG_USERS = {
    *CLI,
    "search_inputs",
    "validate",
    "validate_logs",
    "row_models",
    "validate_serving",
    "replay_setup",
    "listing",
    "calibrate",
}
"""A plan starts from a resolved scenario: only what makes scenarios itself imports the catalog."""
OPENS_FILES = {"catalog", "documents", "checkpoint", "hub", "origin", "output", "calibrate"}
FORMULA_FILES = (
    "kv_cache",
    "cache_specs",
    "mixers",
    "pool",
    "memory",
    "fleet",
    "availability",
    "mix_solver",
    "demand",
    "regrets",
    "cost",
    "report_memory",
    "roofline",
    "serving",
    "kernel_times",
    "datasheet_times",
    "queueing",
    "prefix_cache",
    "latency",
    "accuracy",
    "offline_benchmark",
    "simulate/lengths",
    "simulate/arrivals",
    "simulate/replay_fit",
)
MOST_FUNCTION_LINES, MOST_FILE_LINES = 60, 400
HEAVY = (
    "torch", "pynvml", "joblib", "highspy", "numpy", "scipy", "huggingface_hub", "plotille", "ddsketch", "hypothesis",
    "pytest",
)  # fmt: skip


def module_of(path: Path) -> str:
    """The name in ORDER of the file's module or folder."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> Iterator[str]:
    """planner's own modules that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[1] for name in node.names if name.name.startswith("planner."))
        elif isinstance(node, ast.ImportFrom) and node.module == "planner":
            yield from (name.name for name in node.names if name.name != "__version__")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("planner."):
            yield str(node.module).split(".")[1]


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]


def formulas() -> list[ast.FunctionDef]:
    """Public functions whose docstring publishes a formula: indented lines of their own."""
    found = [f for name in FORMULA_FILES for f in functions(PACKAGE / f"{name}.py") if not f.name.startswith("_")]
    return [f for f in found if re.search(r"\n\n(?:    \S.*\n)+\n", inspect.cleandoc(ast.get_docstring(f) or ""))]


def name_of(item: object) -> str:
    return item.name if isinstance(item, ast.FunctionDef) else str(Path(str(item)).relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_modules_import_only_what_is_below_them(path: Path) -> None:
    module = module_of(path)
    imported = set(imported_modules(path)) - {module}
    if module == "__init__":
        assert not imported
        return
    assert module in ORDER, f"{module} needs a place in ORDER"
    assert imported <= set(ORDER[: ORDER.index(module)])
    assert imported <= ONLY.get(module, imported) | {module}
    assert module in CATALOG_USERS or "catalog" not in imported


@pytest.mark.parametrize("path", [path for path in FILES if module_of(path) not in (*CLI, "__main__")], ids=name_of)
def test_only_cli_prints_reads_the_environment_or_exits(path: Path) -> None:
    text = ast.unparse(ast.parse(path.read_text("utf-8")))
    for call in (
        r"\bprint\(",
        r"sys\.std",
        r"os\.environ",
        r"getenv",
        r"sys\.exit",
        r"SystemExit",
        r"\bexit\(",
        "typer",
    ):
        assert not re.search(call, re.sub(r"console\.print\(", "", text)), call
    if module_of(path) not in OPENS_FILES:
        assert not re.search(r"\bopen\(|read_text|read_bytes|write_text", text)


@pytest.mark.parametrize("function", formulas(), ids=name_of)
def test_a_published_formula_has_units_and_a_source(function: ast.FunctionDef) -> None:
    lines = inspect.cleandoc(ast.get_docstring(function) or "")
    parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    for name in [name for name in parameters if name != "self"] + ["returns"]:
        described = re.search(rf"^(?:\w+, )*{name}(?:, \w+)*: (.*(?:\n    .*)*)", lines, re.MULTILINE)
        assert described, f"{function.name} does not describe {name}"
        assert re.search(r"\[[^\]]+\]", described.group(1)), f"{function.name} gives no unit of {name}"
    assert re.search(r"^source: \S", lines, re.MULTILINE), f"{function.name} has no source"


def test_only_plots_import_the_plotting_library() -> None:
    users = [
        path for path in FILES if re.search(r"^\s*(?:import|from) plotille", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert users == [PACKAGE / "render" / "calibration.py", PACKAGE / "render" / "plot.py"]


def test_formulas_are_found() -> None:
    names = {function.name for function in formulas()}
    assert {
        "kv_bytes_per_token",
        "forward_bytes",
        "k_of_n",
        "redundancy",
        "device_month_usd",
        "score_matrix_bytes",
    } <= names
    assert {"reserved_blocks", "held_blocks", "prefill_blocks", "latent_bytes_per_token", "plain_blocks"} <= names


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_are_short(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= MOST_FILE_LINES
    for function in functions(path):
        start = function.lineno
        if module_of(path) in CLI:  # a command's options are its parameters: a table, not code
            start = function.body[0].lineno
        assert (function.end_lineno or start) - start < MOST_FUNCTION_LINES, function.name


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_module_class_and_public_function_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    assert ast.get_docstring(tree) or not tree.body
    public = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_"]
    methods = [f for c in public if isinstance(c, ast.ClassDef) for f in c.body if isinstance(f, ast.FunctionDef)]
    for node in (*public, *(method for method in methods if method.name[0] != "_")):
        assert ast.get_docstring(node), f"{node.name} has no docstring"


def test_an_estimate_imports_nothing_heavy() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from planner.cli import app;"
        "r = CliRunner().invoke(app, 'estimate --model llama-3.1-8b --gpu h100-sxm --workload chat'.split());"
        f"print(r.exit_code, [name for name in {HEAVY} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "0 []\n"
