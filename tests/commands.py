"""Commands run in this process, as a shell would see them."""

from pathlib import Path

from typer.testing import CliRunner, Result

from planner import cli


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def done(*arguments: str | Path, code: int = 0) -> str:
    """stdout of a command that must end with this code and say nothing else."""
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (code, "")
    return result.stdout


def refused(*arguments: str | Path) -> str:
    """stderr of a command that must refuse, without a word on stdout."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
    return result.stderr
