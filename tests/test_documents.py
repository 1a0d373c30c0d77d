"""Files that strangers wrote: each problem is one message with its file and line, and exit code 2."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from planner import documents
from planner.cli import app
from planner.documents import load_mapping, parse_value, validate
from planner.errors import InputError
from planner.inputs import Accelerator
from planner.origin import Origin
from planner.workload_inputs import Workload

GOOD = "name: w\ncontext_tokens: 1024\nconcurrency: 4\nsource: test\n"
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def complaints(*arguments: str | Path) -> list[str]:
    """What the command says on stderr, line by line, once it has refused."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()


def with_workload(path: Path) -> list[str]:
    return complaints("estimate", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--workload", path)


def with_model(path: Path) -> list[str]:
    return complaints("estimate", "--model", path, "--gpu", "h100-sxm", "--workload", "chat")


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", ": is empty; a mapping of fields is needed"),
        (" \n\n", ": is empty; a mapping of fields is needed"),
        ("# only a comment\n", ": a mapping of fields is needed, not a null"),
        ("just words\n", ": a mapping of fields is needed, not a text"),
        ("- a\n- b\n", ": a mapping of fields is needed, not a list"),
        ("12\n", ": a mapping of fields is needed, not a int"),
        ("name: a\n  b: c\n", ":2: is not YAML: "),
        ("name: [a\n", ":2: is not YAML: "),
        ("name: w\n\tcontext_tokens: 1\n", ":2: is not YAML: "),
        ("name: 'a\n", ":2: is not YAML: "),
        ("name: *none\n", ":1: is not YAML: found undefined alias"),
        ("name: a\nname: b\n", ":2: is not YAML: the key 'name' is given twice"),
        ("input_tokens:\n  mean: 1\n  mean: 2\n", ":3: is not YAML: the key 'mean' is given twice"),
        ("? [a]\n: b\n", ":1: is not YAML: a key is not plain text"),
        ("name: a\n---\nname: b\n", ":2: more than one document; planner does not read that"),
        ("name: w\nnotes: !!python/object:os.system x\n", ":2: the tag tag:yaml.org,2002:python/object:os.system; "
         "planner does not read that"),
        ("name: !!timestamp x\n", ":1: the tag tag:yaml.org,2002:timestamp; planner does not read that"),
        ("name: !!int ''\n", ":1: the tag tag:yaml.org,2002:int; planner does not read that"),
        ("name: w\nnotes: a\x07b\n", ":2: is not YAML: the character U+0007 is not allowed"),
        ("name: w\x00\n", ":1: is not YAML: the character U+0000 is not allowed"),
        ("name: w\nnotes: " + "[" * 60 + "]" * 60, ":2: nested deeper than 40 levels; planner does not read that"),
        (b"name: \xff\xfe\n", ": is not UTF-8 text (byte 6)"),
        ("name: w\n".encode("utf-16"), ": is not UTF-8 text (byte 0)"),
        (bytes(range(256)), ": is not UTF-8 text (byte 128)"),
        (b"GGUF\x03\x00\x00\x00", ": is a GGUF file; planner reads config.json, safetensors headers and its own YAML"),
        ("<!DOCTYPE html>\n<html>", ": looks like an HTML or XML page, not YAML or JSON; was an error page saved?"),
        ("{\n\"name\": }", ":2: is not JSON: Expecting value"),
        ("{\n\"name\": 1,\n\"name\": 2}", ":3: the key 'name' is given twice"),
        ("{\"a\": " + "[" * 50 + "]" * 50 + "}", ": nested deeper than 40 levels"),
        ("{\"a\": " * 100_000 + "}" * 100_000, ": nested deeper than 40 levels"),
        ("{\"a\": 1" + "0" * 5000 + "}", ": holds an integer of thousands of digits; planner does not read that"),
        ("{\"a\": \"\\ud800\"}", ": '\\ud800' is not Unicode text"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_one_mapping_gives_one_message(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = written(tmp_path / "w.yaml", content)
    (found,) = with_workload(path)
    assert found.startswith(f"planner: {path}{message}")
    assert len(found) < len(str(path)) + 160


@pytest.mark.parametrize("nested", ['{"a": ', "[", '{"a": [', "- ", "a:\n "])
def test_deep_nesting_neither_crashes_nor_hangs(tmp_path: Path, nested: str) -> None:
    for name in ("config.json", "w.yaml"):
        path = written(tmp_path / name, nested * 100_000)
        code = (
            f"from planner.documents import load_mapping; from pathlib import Path; load_mapping(Path({str(path)!r}))"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
        assert result.returncode == 1
        assert "planner.errors.InputError" in result.stderr.splitlines()[-1]


def test_an_alias_bomb_is_refused_before_it_grows(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    path = written(tmp_path / "w.yaml", "\n".join(lines))
    assert with_workload(path) == [f"planner: {path}:12: more than 100 aliases; planner does not read that"]


@pytest.mark.parametrize(
    ("limit", "content", "message"),
    [
        ("MAX_BYTES", "x" * 101, ": larger than the 100 bytes that planner reads of such a file"),
        ("MAX_EVENTS", "a: [" + "1, " * 101 + "]", ":1: more than 100 values; planner does not read that"),
    ],
)
def test_size_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, content: str, message: str) -> None:
    monkeypatch.setattr(documents, limit, 100)
    path = written(tmp_path / "w.yaml", content)
    with pytest.raises(InputError) as caught:
        load_mapping(path, documents.MAX_BYTES)
    assert caught.value.problems == (f"{path}{message}",)


@pytest.mark.parametrize(
    "content", ["\ufeff" + GOOD, GOOD.replace("\n", "\r\n"), json.dumps(dict(parse_value("x", GOOD)))]
)
def test_a_bom_windows_line_ends_and_json_are_read_as_the_plain_file_is(tmp_path: Path, content: str) -> None:
    expected = load_mapping(written(tmp_path / "good.yaml", GOOD))
    assert load_mapping(written(tmp_path / "w.yaml", content)) == expected
    assert validate(Workload, expected, Origin("w")).concurrency == 4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"), ("off", "off"), ("yes", "yes"), ("True", True), ("false", False), ("~", None), ("", None),
        ("1:30", "1:30"), ("010", "010"), ("0x1f", "0x1f"), ("1_000", "1_000"), ("2026-11-29", "2026-11-29"),
        ("989e12", 989e12), ("1e-5", 1e-5), ("-3", -3), ("+3", 3), ("2.50", 2.5), ("3.", 3.0), (".5", ".5"),
        ("'8'", "8"), (".inf", ".inf"), (".nan", ".nan"), ("1e400", float("inf")), ("9" * 31, int("9" * 31)),
        ("9" * 5000, "9" * 5000), ("<<", "<<"), ("=", "="), ("[1, a]", [1, "a"]), ("{a: 1}", {"a": 1}),
    ],
)  # fmt: skip
def test_what_a_plain_scalar_means(text: str, value: object) -> None:
    found = parse_value("--set x", text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("concurrency", "'64'", "an integer is needed, not '64'"),
        ("concurrency", "no", "an integer is needed, not 'no'"),
        ("concurrency", "false", "an integer is needed, not False"),
        ("concurrency", "1:30", "an integer is needed, not '1:30'"),
        ("concurrency", "010", "an integer is needed, not '010'"),
        ("concurrency", "4.0", "an integer is needed, not 4.0"),
        ("concurrency", ".nan", "an integer is needed, not '.nan'"),
        ("concurrency", "0", "Input should be greater than or equal to 1, not 0"),
        ("concurrency", "-1", "Input should be greater than or equal to 1, not -1"),
        ("concurrency", str(2**63), f"Input should be less than or equal to 281474976710656, not {2**63}"),
        ("concurrency", "9" * 5000, f"an integer is needed, not '{'9' * 79}..."),
        ("concurrency", "1e400", "a finite number is needed, not inf"),
        ("success_share", "1e400", "a finite number is needed, not 'inf'"),
        ("success_share", ".inf", "a number is needed, not '.inf'"),
        ("success_share", "nan", "a finite number is needed, not 'nan'"),
        ("success_share", "Infinity", "a finite number is needed, not 'Infinity'"),
        ("success_share", "0", "Input should be greater than 0, not 0"),
        ("success_share", "1.5", "Input should be less than or equal to 1, not 1.5"),
        ("success_share", "1e-999", "Input should be greater than 0, not 0.0"),
        ("success_share", "'1e-999999'", "Decimal input should have no more than 30 decimal places, not '1e-999999'"),
        ("success_share", "half", "a number is needed, not 'half'"),
        ("success_share", "[1]", "a number is needed"),
        ("name", "7", "text is needed, not 7"),
        ("name", "~", "text is needed"),
        ("name", "''", "String should have at least 1 character, not ''"),
        ("name", '"a\\u0007b"', "control characters are not accepted, not 'a\\x07b'"),
        ("name", '"a\\nb"', "control characters are not accepted, not 'a\\nb'"),
        ("name", '"a\\u202eb"', "control characters are not accepted, not 'a\\u202eb'"),
        ("name", "a" * 201, f"String should have at most 200 characters, not '{'a' * 79}..."),
        ("as_of", "yesterday", "Input should be a valid date or datetime, input is too short, not 'yesterday'"),
        ("as_of", "2026-02-30", "Input should be a valid date or datetime, day value is outside expected range, not "
         "'2026-02-30'"),
        ("<<", "{concurrency: 1}", "is not a field that planner knows here"),
        ("requests", "1", "is not a field that planner knows here"),
    ],
)  # fmt: skip
def test_a_wrong_value_gives_one_message_at_its_line(tmp_path: Path, field: str, value: str, message: str) -> None:
    rest = [line for line in GOOD.splitlines() if not line.startswith(f"{field}:")]
    path = written(tmp_path / "w.yaml", "\n".join([*rest, f"{field}: {value}"]))
    first, *more = with_workload(path)
    assert first == f"planner: {path}:{len(rest) + 1}: {field}: {message}"
    assert len(more) == ("not a field" in message)
    assert all(line.startswith(f"planner: {path}:1: accepted fields: name, title, ") for line in more)


def test_all_problems_come_at_once_and_thousands_do_not_flood(tmp_path: Path) -> None:
    path = written(tmp_path / "w.yaml", "name: 1\ncontext_tokens: x\nconcurrency: 1\n")
    fields = [line.split(": ")[2] for line in with_workload(path)]
    assert fields == ["name", "context_tokens", "source"]
    path = written(tmp_path / "many.yaml", "".join(f"k{i}: 1\n" for i in range(50_000)))
    found = with_workload(path)
    assert len(found) < 110
    assert any("more problems" in line for line in found)


def test_unicode_names_are_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "wörk.yaml", GOOD.replace("name: w", "name: 助手 é"))
    arguments = [
        "estimate",
        "--model",
        "llama-3.1-8b",
        "--gpu",
        "h100-sxm",
        "--workload",
        str(path),
        "--format",
        "json",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["scenario"]["workload"] == "助手 é"


def test_what_a_message_shows_cannot_steer_a_terminal(tmp_path: Path) -> None:
    path = written(tmp_path / "w\x1b[31m.yaml", '"k\\u001b[0m": 1\n' + GOOD)
    found = with_workload(path)
    assert found
    assert all(line.isprintable() for line in found)


@pytest.mark.parametrize("name", ["", "a" * 5000, "a/" * 3000, "none.yaml", "none", "~"])
def test_a_file_that_is_not_there_gives_one_message(name: str) -> None:
    assert len(complaints("estimate", f"/nowhere/{name}")) == 1
    assert len(complaints("report", f"/nowhere/{name}")) == 1
    assert len(with_workload(Path(f"/nowhere/{name}"))) == 1
    assert len(with_model(Path(f"/nowhere/{name}"))) == 1


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)
    broken = tmp_path / "broken.yaml"
    broken.symlink_to(tmp_path / "gone")
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    cases = {
        fifo: "is not a regular file",
        Path("/dev/zero"): "is not a regular file",
        tmp_path: "is a directory; a file is needed",
        broken: "cannot be read: No such file or directory",
        loop: "cannot be read: Too many levels of symbolic links",
    }
    for path, message in cases.items():
        assert with_workload(path) == [f"planner: {path}: {message}"]


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), FileNotFoundError(2, "No such file or directory")]
)
def test_a_file_that_may_not_be_read_or_vanishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    path = written(tmp_path / "w.yaml", GOOD)

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=f"cannot be read: {error.strerror}"):
        load_mapping(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "<html><body>404</body></html>",
            ": looks like an HTML or XML page, not YAML or JSON; was an error page saved?",
        ),
        ("version https://git-lfs.github.com/spec/v1\n", ":1: is not JSON: "),
        (b"GGUF\x00", ": is a GGUF file; planner reads config.json, safetensors headers and its own YAML"),
        ("[]", ": a mapping of fields is needed, not a list"),
        ("null", ": a mapping of fields is needed, not a null"),
        ("{}", ":1: model_type: missing; planner tells model families by it"),
    ],
)
def test_files_saved_as_config_json(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = written(tmp_path / "config.json", content)
    assert with_model(path)[0].startswith(f"planner: {path}{message}")
    assert len(with_model(path)) == 1


def test_infinity_is_tolerated_where_nothing_reads_it(tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", json.dumps({**CONFIG, "time_step_limit": [0.0, float("inf")]}))
    arguments = ["estimate", "--model", str(path), "--gpu", "h100-sxm", "--workload", "chat"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    path = written(path, json.dumps({**CONFIG, "vocab_size": float("inf")}))
    assert with_model(path) == [f"planner: {path}:1: vocab_size: an integer is needed, not inf"]


@pytest.mark.parametrize("peak", ["989e12", "9.89e2", "'989'", "989"])
def test_numbers_with_exponents_are_numbers(peak: str) -> None:
    fields = {"name": "a", "vendor": "v", "memory_mib": 1, "hbm_gb_per_s": 1, "source": "s", "as_of": "2026-01-01"}
    found = validate(Accelerator, {**fields, "bf16_dense_tflops": parse_value("x", peak)}, Origin("a"))
    assert found.bf16_dense_tflops == float(peak.strip("'"))
