"""Compiles the simulated engine with mypyc as a wheel is built; where that fails, the wheel holds it as Python alone.

Both are the same source: tests hold them to the same results, and compiled it is two to three times as fast. An
editable install reads the checkout's own files, and HATCH_BUILD_NO_HOOKS=true leaves the step out.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = (
    "engine", "growth", "hashes", "lockstep", "pool", "quantiles", "requests", "room", "rules", "run", "sharing",
    "steps",
)  # fmt: skip
"""Modules of planner/simulate in which its time is spent."""
LIMIT_S = 600


class CompileHook(BuildHookInterface[Any]):
    """Puts the compiled modules beside their sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """version: standard or editable
        build_data: of the wheel, to which the modules are added
        """
        if version != "standard":
            return
        self.folder = TemporaryDirectory()
        command = [sys.executable, __file__, self.folder.name]
        try:
            subprocess.run(  # noqa: S603
                command, cwd=self.root, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stdout", None) or b"").decode(errors="replace")
            self.app.display_warning(f"the simulated engine is not compiled, and so slower: {error}\n{said}")
            return
        built = Path(self.folder.name, "lib")
        for path in built.rglob("*.*"):
            build_data["force_include"][str(path)] = str(path.relative_to(built))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """The wheel is written."""
        if version == "standard":
            self.folder.cleanup()


def compile_into(folder: Path) -> None:
    """Compiles the modules of the package in the working directory into folder/lib."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    options = ["--config-file=", f"--cache-dir={folder / 'cache'}", "--follow-imports=skip", "--ignore-missing-imports"]
    extensions = mypycify(
        [*options, *(f"planner/simulate/{name}.py" for name in COMPILED)],
        opt_level="1",  # higher levels build longer and ran no faster
        debug_level="0",
        group_name="planner.simulate.engine",
        target_dir=str(folder / "c"),
    )
    once = ["-ffp-contract=off"] if os.name == "posix" else []  # else a * b + c is rounded only once on some machines
    for extension in extensions:
        given = extension.extra_compile_args
        extension.extra_compile_args = [each for each in given if each != "-Werror"] + once  # compilers warn of much
    command = Distribution({"name": "planner", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    compile_into(Path(sys.argv[1]))
