"""Traces of requests: what public ones hold, what hostile ones are refused for, and that nothing piles up."""

import gzip
import json
import os
import pickle
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import documents
from planner.errors import InputError
from planner.simulate import traces
from planner.simulate.requests import MOST_TOKENS, Request
from planner.simulate.trace_forms import FORMS
from planner.simulate.traces import Trace, open_trace
from tests.scenarios import ROOT

ORACLES = ROOT / "tests/oracles/traces"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
LINE = {"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}


def trace(folder: Path, *lines: str | bytes, name: str = "t.csv", end: bytes = b"\n") -> Path:
    path = folder / name
    path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + end for line in lines))
    return path


def read(path: Path, skip_bad: bool = False) -> list[Request]:
    return list(open_trace(path, skip_bad=skip_bad).requests())


def problems(path: Path, form: str | None = None) -> str:
    """What a reading is refused for."""
    with pytest.raises(InputError) as caught:
        list(open_trace(path, form).requests())
    return "\n".join(caught.value.problems).replace(str(path), "T")


def test_the_azure_trace_is_read_as_its_cells_say() -> None:
    path = ORACLES / "azure2023_conv_head.csv"
    requests = read(path)
    cells = [line.split(",") for line in path.read_text().splitlines()[1:]]
    assert len(requests) == 2000
    assert [(r.input_tokens, r.output_tokens) for r in requests] == [(int(c[1]), int(c[2])) for c in cells]
    assert requests[0].arrival_s == 0
    assert requests[1].arrival_s == pytest.approx(50.9951690 - 46.6805900, abs=1e-9)
    clock = [int(c[0][11:13]) * 3600 + int(c[0][14:16]) * 60 + float(c[0][17:]) for c in cells]
    assert [r.arrival_s for r in requests] == pytest.approx([each - clock[0] for each in clock], abs=1e-7)
    assert open_trace(path).form.name == "azure"
    assert open_trace(path).chunk_tokens == 0


def test_the_mooncake_trace_keeps_the_identity_of_each_chunk() -> None:
    path = ORACLES / "mooncake_conversation_head.jsonl.gz"
    load = open_trace(path)
    requests = list(load.requests())
    assert (load.form.name, load.chunk_tokens, len(requests)) == ("mooncake", 512, 1000)
    assert all(len(r.hash_ids) == -(-r.input_tokens // 512) for r in requests)
    assert {r.hash_ids[0] for r in requests} == {0}
    written = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert [list(r.hash_ids) for r in requests] == [line["hash_ids"] for line in written]
    assert [r.arrival_s for r in requests] == [line["timestamp"] / 1000 for line in written]


@pytest.mark.parametrize("gpu", ["RTX4090", "RTXPRO6000"])
def test_a_measured_run_is_a_load(gpu: str) -> None:
    load = open_trace(ORACLES / f"vllm_truth_{gpu}_Llama-3.1-8B.jsonl")
    requests = list(load.requests())
    assert (load.form.name, len(requests), requests[0].arrival_s) == ("vllm", 300, 0)
    assert 8 < len(requests) / requests[-1].arrival_s < 12
    assert (requests[0].input_tokens, requests[0].output_tokens) == (2358, 531)


def test_the_azure_trace_of_2024_has_a_zone_and_whole_seconds(tmp_path: Path) -> None:
    rows = ("2024-05-10 00:00:00.009930+00:00,2162,5", "2024-05-10 00:00:01+00:00,9,1", "2024-05-10T03:00:02+02:00,9,1")
    arrivals = [request.arrival_s for request in read(trace(tmp_path, AZURE, *rows))]
    assert arrivals == pytest.approx([0, 0.99007, 3601.99007], abs=1e-9)


def test_burstgpt_failures_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = (
        "5,ChatGPT,472,18,490,Conversation log",
        "45,GPT-4,1087,0,1087,API log",
        "118.5,ChatGPT,417,276,693,API log",
    )
    load = open_trace(trace(tmp_path, BURST, *rows))
    assert [(r.arrival_s, r.input_tokens, r.output_tokens) for r in load.requests()] == [
        (0, 472, 18),
        (113.5, 417, 276),
    ]
    assert load.facts()[1:] == ("requests without an input or an output (they failed), left out: 1",)
    third = BURST.replace("Timestamp,", "Timestamp,Session ID,Elapsed time,")
    again = trace(tmp_path, third, *(row.replace(",", ",a-b,1.5,", 1) for row in rows))
    assert [r.input_tokens for r in read(again)] == [472, 417]


def test_a_scope_is_kept_where_a_line_has_one(tmp_path: Path) -> None:
    lines = [
        json.dumps(LINE | more) for more in ({"scope": "acme"}, {"tenant": "beta"}, {"tenant": 7}, {}, {"tenant": None})
    ]
    assert [request.scope for request in read(trace(tmp_path, *lines))] == ["acme", "beta", "7", "", ""]


def test_a_measured_run_may_list_requests_in_any_order(tmp_path: Path) -> None:
    lines = [
        json.dumps({"arrival_time": at, "input_toks": n, "output_toks": 1}) for n, at in enumerate((12.5, 10, 11), 1)
    ]
    requests = read(trace(tmp_path, *lines))
    assert [(r.arrival_s, r.input_tokens) for r in requests] == [(0, 2), (1, 3), (2.5, 1)]


def test_an_export_of_aiperf_is_a_load(tmp_path: Path) -> None:
    """Records as docs/tutorials/working-with-profile-exports.md of ai-dynamo/aiperf shows them, shortened."""
    served: dict[str, Any] = {
        "metadata": {"session_num": 45, "request_start_ns": 1759813207532900363, "was_cancelled": False},
        "metrics": {
            "input_sequence_length": {"value": 550, "unit": "tokens"},
            "inter_chunk_latency": {"value": [4.898437, 5.316006], "unit": "ms"},
            "output_sequence_length": {"value": 9, "unit": "tokens"},
        },
        "error": None,
    }
    before = served | {"metadata": {"request_start_ns": 1759813207032900363}}
    failed = {
        "metadata": {"request_start_ns": 1759813207632900363},
        "metrics": {"error_isl": {"value": 550, "unit": "tokens"}},
        "error": {"code": 499, "type": "RequestCancellationError"},
    }
    load = open_trace(trace(tmp_path, *map(json.dumps, (served, before, failed)), name="profile_export.jsonl"))
    assert [(r.input_tokens, r.output_tokens) for r in load.requests()] == [(550, 9), (550, 9)]
    assert [r.arrival_s for r in load.requests()] == pytest.approx([0, 0.5], abs=1e-6)
    assert load.facts()[1:] == ("requests without an input or an output (they failed), left out: 1",)
    bad = trace(tmp_path, json.dumps(served | {"metrics": 5}))
    assert problems(bad) == "T:1: metrics.input_sequence_length.value: missing, and needed"


def test_a_trace_can_be_read_again_and_again(tmp_path: Path) -> None:
    load = open_trace(
        trace(tmp_path, AZURE, "2023-11-16 18:15:46,3,0", "bad", "2023-11-16 18:15:47,3,4"), skip_bad=True
    )
    first = list(load.requests())
    facts = load.facts()
    assert list(load.requests()) == first
    assert load.facts() == facts
    assert facts[1:] == (
        "requests without an input or an output (they failed), left out: 1",
        "bad lines, left out: 1 (3)",
    )


def test_every_byte_order_mark_line_end_and_blank_line_reads_the_same(tmp_path: Path) -> None:
    rows = [AZURE, "2023-11-16 18:15:46.5,3,4", "2023-11-16 18:16:46.25,5,6"]
    plain = read(trace(tmp_path, *rows))
    assert read(trace(tmp_path, *rows, end=b"\r\n")) == plain
    assert read(trace(tmp_path, b"\xef\xbb\xbf" + AZURE.encode(), *rows[1:], "", "  ", "")) == plain
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress("\n".join(rows).encode()))
    assert read(packed) == plain
    lines = [json.dumps(LINE | {"timestamp": at}) for at in (0, 1500)]
    assert read(trace(tmp_path, *lines, end=b"\r\n\r\n")) == read(trace(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2023-11-16 18:15:46,-5,1", "ContextTokens: '-5' is not a whole number from 0 to 999,999,999"),
        ("2023-11-16 18:15:46,1e3,1", "ContextTokens: '1e3' is not a whole number"),
        ("2023-11-16 18:15:46,3.5,1", "ContextTokens: '3.5' is not"),
        ("2023-11-16 18:15:46,1_0,1", "ContextTokens: '1_0' is not"),
        ("2023-11-16 18:15:46,1,nan", "GeneratedTokens: 'nan' is not"),
        ("2023-11-16 18:15:46,1," + "9" * 5000, "GeneratedTokens: '9999"),
        ("2023-11-16 18:15:46,1,", "GeneratedTokens: '' is not"),
        ("2023-11-16 18:15:46,1\x00,2", "ContextTokens: '1\\x00' is not"),
        ("2023-11-16 18:15:46,1", "2 columns where the header has 3"),
        ("2023-11-16 18:15:46,1,2,3", "4 columns where the header has 3"),
        ("2023-11-16 18:15:66,1,2", "TIMESTAMP: '2023-11-16 18:15:66' is not a date and time such as 2023-11-16"),
        ("2023-13-16 18:15:46,1,2", "TIMESTAMP: '2023-13-16 18:15:46,1,2' begins with no date and time that exist"),
        ("nan,1,2", "TIMESTAMP: 'nan' is not a date"),
        (AZURE, "TIMESTAMP: 'TIMESTAMP' is not a date"),
        (b"2023-11-16 18:15:46,\xff,2", "ContextTokens: '\ufffd' is not"),
        ("{}", "1 columns"),
    ],
)
def test_a_bad_line_is_refused_with_its_place(tmp_path: Path, row: str | bytes, message: str) -> None:
    good = "2023-11-16 18:15:46,3,4"
    path = trace(tmp_path, AZURE, good, row, good)
    assert problems(path).startswith(f"T:3: {message}")
    assert len(read(path, skip_bad=True)) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not JSON: "),
        ("[1, 2]", "'[1, 2]' is not one JSON object"),
        (json.dumps(LINE) + " {}", '\'{"timestamp"'),
        ("null", "'null' is not one JSON object"),
        ('{"a":' * 100_000, "is nested too deep to be read"),
        ('{"timestamp": ' + "9" * 5000 + "}", "holds an integer of thousands of digits"),
        ('{"timestamp": NaN}', "holds NaN, which is not a number"),
        ('{"timestamp": -Infinity}', "holds -Infinity"),
        ('{"timestamp": 1, "timestamp": 2}', "'timestamp': given twice"),
        (json.dumps(LINE).replace("0,", "1e400,", 1), "timestamp: inf is not a number from 0"),
        (json.dumps(LINE | {"timestamp": -1}), "timestamp: -1 is not a number from 0"),
        (json.dumps(LINE | {"timestamp": "5"}), "timestamp: '5' is not"),
        (json.dumps(LINE | {"timestamp": True}), "timestamp: True is not"),
        (json.dumps(LINE | {"input_length": 5.5}), "input_length: 5.5 is not a whole number from 0 to 999,999,999"),
        (json.dumps(LINE | {"input_length": MOST_TOKENS + 1}), "input_length: 1000000000 is not"),
        (json.dumps(LINE | {"output_length": True}), "output_length: True is not"),
        (json.dumps({"timestamp": 5, "input_length": 4}), "output_length: missing, and needed"),
        (json.dumps(LINE | {"hash_ids": [1, 2, 3]}), "hash_ids: 3 ids for 655 tokens; at most one for every 512"),
        (json.dumps(LINE | {"hash_ids": [1, -2]}), "hash_ids: [1, -2] is not a list of whole numbers"),
        (json.dumps(LINE | {"hash_ids": [1, True]}), "hash_ids: [1, True] is not"),
        (json.dumps(LINE | {"hash_ids": [1, 2**64]}), "hash_ids: [1, 18446744073709551616] is not"),
        (json.dumps(LINE | {"hash_ids": "ab"}), "hash_ids: 'ab' is not"),
        (json.dumps(LINE | {"hash_ids": ""}), "hash_ids: '' is not"),
        (json.dumps(LINE | {"scope": False}), "scope: False is not text"),
        (json.dumps(LINE | {"hash_ids": [[1], 2]}), "hash_ids: [[1], 2] is not"),
        (json.dumps(LINE | {"scope": ["a"]}), "scope: ['a'] is not text of at most 200 characters"),
        (json.dumps(LINE | {"tenant": "a" * 300}), "scope: 'aaa"),
        (b'{"timestamp": 0\xff}', "is not UTF-8 text (byte 15)"),
        ('{"timestamp": 0\x00}', "is not JSON"),
    ],
)
def test_a_bad_json_line_is_refused_with_its_place(tmp_path: Path, line: str | bytes, message: str) -> None:
    path = trace(tmp_path, json.dumps(LINE), line, json.dumps(LINE), name="t.jsonl")
    assert problems(path).startswith(f"T:2: {message}")
    assert len(read(path, skip_bad=True)) == 2


def test_problems_are_collected_up_to_a_number_and_nothing_is_given_out_after_the_first(tmp_path: Path) -> None:
    path = trace(tmp_path, AZURE, "2023-11-16 18:15:46,3,4", *["bad"] * 50, "2023-11-16 18:15:46,3,4")
    assert len(problems(path).splitlines()) == traces.MAX_PROBLEMS
    given_out: list[Request] = []
    with suppress(InputError):
        given_out.extend(open_trace(path).requests())
    assert len(given_out) <= 1


def test_a_request_out_of_order_is_refused_with_its_place(tmp_path: Path) -> None:
    path = trace(tmp_path, BURST, "5,m,1,1,2,x", "", "7,m,1,1,2,x", "6.5,m,1,1,2,x")
    assert problems(path) == "T:5: comes 0.5 s before the request above it; lines must be in order of arrival"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "T:1: is empty\nT:1: accepted: azure: CSV with the columns TIMESTAMP, ContextTokens"),
        (b"a,b,c\n1,2,3\n", "T:1: 'a,b,c' begins no trace that planner knows\nT:1: accepted: azure"),
        (b"TIMESTAMP,ContextTokens\n", "T:1: 'TIMESTAMP,ContextTokens' begins no trace"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens\n", "T:1: 'TIMESTAMP,"),
        (b'{"prompt": "a"}\n', 'T:1: \'{"prompt": "a"}\' begins no trace'),
        (b"\x1f\x8b\x08\x00", "T:1: '\\x1f\ufffd\\x08\\x00' begins no trace"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens".encode("utf-16"), "T:1: "),
        (AZURE.encode(), "T: holds no request with an input and an output"),
        (
            AZURE.encode() + b"\n2023-11-16 18:15:46,3,0\n",
            "T: holds no request with an input and an output\nrequests without",
        ),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    assert problems(path).startswith(message)


def test_a_load_travels_to_another_process() -> None:
    load = open_trace(ORACLES / "azure2023_conv_head.csv")
    assert list(pickle.loads(pickle.dumps(load)).requests()) == list(load.requests())  # noqa: S301 - our own


def test_a_form_can_be_named(tmp_path: Path) -> None:
    path = trace(tmp_path, "not json", json.dumps(LINE), name="t.jsonl")
    assert problems(path, "mooncake").startswith("T:1: is not JSON")
    assert problems(path, "azure").splitlines()[1].startswith("T:1: accepted: azure")
    assert problems(path, "mooncacke") == "trace format: 'mooncacke' is not known; nearest known: mooncake"
    assert {form.name for form in FORMS} == {"azure", "burstgpt", "mooncake", "vllm", "aiperf"}


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path) == "T: is a directory; a file is needed"
    assert problems(tmp_path / "none.csv").endswith("cannot be read: No such file or directory")
    os.mkfifo(tmp_path / "pipe.csv")
    assert problems(tmp_path / "pipe.csv") == "T: is not a regular file"
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress("\n".join([AZURE, *["2023-11-16 18:15:46,3,4"] * 1000]).encode())[:-20])
    assert problems(cut).startswith("T: cannot be read as gzip")
    plain = trace(tmp_path, AZURE, name="plain.csv.gz")
    assert problems(plain).startswith("T: cannot be read as gzip")


def test_a_line_and_a_bomb_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = tmp_path / "bomb.csv.gz"
    bomb.write_bytes(gzip.compress(f"{AZURE}\n".encode() + bytes(200 * 2**20)))
    tracemalloc.start()
    assert problems(bomb) == f"T:2: the line is longer than {documents.MAX_LINE_BYTES:,} bytes"
    assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    tracemalloc.stop()
    monkeypatch.setattr(traces, "MOST_BLANK_LINES", 100)
    blank = trace(tmp_path, AZURE, *[""] * 200)
    assert problems(blank) == "T:102: more than 100 blank lines"
    monkeypatch.setattr(traces, "MOST_SORTED", 3)
    run = trace(tmp_path, *[json.dumps({"arrival_time": 0, "input_toks": 1, "output_toks": 1})] * 4)
    assert problems(run) == "T: more than 3 requests; planner sorts no more of a vllm file"


def test_memory_stays_flat_however_long_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    with path.open("w") as file:
        file.write(f"{BURST}\n")
        file.writelines(f"{number}.5,m,100,20,120,x\n" for number in range(200_000))
    tracemalloc.start()
    assert sum(1 for _ in open_trace(path).requests()) == 200_000
    assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    tracemalloc.stop()


def rows_of(load: Trace) -> Iterator[tuple[float, int, int, tuple[int, ...], str]]:
    return ((r.arrival_s, r.input_tokens, r.output_tokens, r.hash_ids, r.scope) for r in load.requests())


COUNTS = st.integers(1, MOST_TOKENS)


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 10**9), COUNTS, COUNTS, st.lists(st.integers(0, 2**64 - 1), max_size=3), st.text("abc")
        ),
        min_size=1,
    ),
    block=st.integers(8, 200),
)
def test_what_is_written_as_mooncake_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int, list[int], str]], block: int
) -> None:
    rows.sort()
    rows = [(at, given, produced, ids[: -(-given // 512)], scope) for at, given, produced, ids, scope in rows]
    names = ("timestamp", "input_length", "output_length", "hash_ids", "scope")
    path = trace(tmp_path_factory.mktemp("t"), *(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "BLOCK_BYTES", block)
        found = list(rows_of(open_trace(path)))
    expected = [(at / 1000 - rows[0][0] / 1000, given, produced, tuple(i), s) for at, given, produced, i, s in rows]
    assert found == expected


@given(st.binary(max_size=400), st.sampled_from([AZURE, BURST, json.dumps(LINE)]), st.booleans(), st.integers(5, 100))
def test_any_bytes_are_requests_or_a_message(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, first: str, skip_bad: bool, block: int
) -> None:
    path = trace(tmp_path_factory.mktemp("t"), first, content)
    with pytest.MonkeyPatch.context() as patch, suppress(InputError):
        patch.setattr(documents, "BLOCK_BYTES", block)
        requests = read(path, skip_bad=skip_bad)
        assert all(0 < r.input_tokens <= MOST_TOKENS and 0 < r.output_tokens <= MOST_TOKENS for r in requests)
        assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(requests))
