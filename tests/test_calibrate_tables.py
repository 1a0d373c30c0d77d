"""Tables that strangers wrote: told apart by header, refused at file and line, bounded."""

import gzip
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.calibrate import tables
from planner.calibrate.points import CollectivePoint, DecodePoint, GemmPoint, MoePoint, PrefillPoint
from planner.calibrate.tables import newest, read_table, read_tables, selected, version_order
from planner.errors import InputError
from tests.scenarios import ROOT

KERNELS = ROOT / "tests/oracles/kernels"
HEADER = "gpu,engine,ver,gemm_dtype,n,k,m,lat_us"
ROW = "h100-sxm,vllm,0.24.0,bfloat16,1024,4096,8,12.5"


def table(tmp_path: Path, *lines: str, name: str = "gemm.csv") -> Path:
    path = tmp_path / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def problems(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_table(path)
    return "\n".join(caught.value.problems).replace(str(path), "T")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kernel_decode_attention", DecodePoint),
        ("kernel_prefill_attention", PrefillPoint),
        ("kernel_gemm", GemmPoint),
        ("kernel_moe", MoePoint),
        ("kernel_collectives", CollectivePoint),
    ],
)
def test_each_family_is_told_by_its_header(name: str, kind: type) -> None:
    rows = read_table(KERNELS / f"{name}.csv.gz")
    assert len(rows) > 200
    assert {type(row.point) for row in rows} == {kind}
    assert all(0 < row.point.seconds < 1 for row in rows)


def test_a_row_becomes_a_point(tmp_path: Path) -> None:
    row = read_table(table(tmp_path, HEADER, ROW, ""))[0]
    assert (row.gpu, row.engine, row.version, row.family) == ("h100-sxm", "vllm", "0.24.0", "gemm")
    assert row.point == GemmPoint("bfloat16", 1024, 4096, 8, 12.5 * 1e-6)
    packed = tmp_path / "gemm.csv.gz"
    packed.write_bytes(gzip.compress(f"\ufeff{HEADER}\r\n{ROW}\r\n".encode()))
    assert read_table(packed)[0].point == row.point


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("h100-sxm,vllm,1,bfloat16,1024,4096,8", "T:2: 7 values where the header has 8"),
        ("h100-sxm,vllm,1,bfloat16,0,4096,8,1", "T:2: n: an integer from 1 to 1099511627776 is needed, not '0'"),
        ("h100-sxm,vllm,1,bfloat16,-4,4096,8,1", "T:2: n: an integer from 1"),
        ("h100-sxm,vllm,1,bfloat16,1e3,4096,8,1", "T:2: n: an integer from 1"),
        (f"h100-sxm,vllm,1,bfloat16,{'9' * 40},4096,8,1", "T:2: n: an integer from 1"),
        ("h100-sxm,vllm,1,bfloat16,8,8,8,nan", "T:2: lat_us: a positive time"),
        ("h100-sxm,vllm,1,bfloat16,8,8,8,inf", "T:2: lat_us: a positive time"),
        ("h100-sxm,vllm,1,bfloat16,8,8,8,-3", "T:2: lat_us: a positive time from 0.001 to 1e+09 microseconds"),
        ("h100-sxm,vllm,1,bfloat16,8,8,8,1e-4", "T:2: lat_us: a positive time"),
        ("h100-sxm,vllm,1,bfloat16,8,8,8,2e9", "T:2: lat_us: a positive time"),
        ("h100-sxm,vllm,1,bfloat16,8,8,8,\u0661\u0662", "T:2: lat_us: a positive time"),
        ("h100-sxm,vllm,1,bfloat16,8,8,8,1_0", "T:2: lat_us: a positive time"),
        ("h100-sxm,vllm,1,bfloat16,8,8,\u0668,1", "T:2: m: an integer from 1 to"),
        ("h100-sxm,vllm,1,bfloat16,8,8,1099511627777,1", "T:2: m: an integer from 1 to"),
        ("h100-sxm,vllm,1,bfloat16,8,8,8,0", "T:2: lat_us: a positive time"),
        ("h100-sxm,vllm,1,bfloat16,8,8,8,", "T:2: lat_us: a positive time"),
        ("h100\x1b[31m,vllm,1,bfloat16,8,8,8,1", "T:2: gpu: a short name is needed"),
        ("../../etc,vllm,1,bfloat16,8,8,8,1", "T:2: gpu: a short name is needed"),
        (",vllm,1,bfloat16,8,8,8,1", "T:2: gpu: a short name is needed"),
    ],
)
def test_a_bad_row_is_refused_at_its_line(tmp_path: Path, row: str, message: str) -> None:
    assert message in problems(table(tmp_path, HEADER, row, ROW))


def test_every_bad_row_is_reported_but_not_without_end(tmp_path: Path) -> None:
    path = table(tmp_path, HEADER, ROW, "x", ROW, "y")
    assert problems(path).splitlines() == [f"T:{n}: 1 values where the header has 8" for n in (3, 5)]
    assert len(problems(table(tmp_path, HEADER, *["x"] * 1000)).splitlines()) == tables.MAX_PROBLEMS + 1
    with pytest.raises(InputError) as caught:
        read_tables([path, tmp_path / "none.csv"])
    assert "none.csv: cannot be read" in caught.value.problems[-1]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", "T:1: the header fits no family"),
        ("a,b,c", "T:1: the header fits no family"),
        (f"{HEADER},colour", "T:1: the column 'colour' is unknown"),
        (HEADER.replace("ver,", ""), "T:1: the column ver is missing"),
        (f"{HEADER},n", "T:1: the column n is given twice"),
    ],
)
def test_a_header_must_be_known(tmp_path: Path, header: str, message: str) -> None:
    assert message in problems(table(tmp_path, header, ROW))


def test_files_that_are_no_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is not a regular file" in problems(tmp_path)
    path = table(tmp_path, HEADER, ROW)
    path.write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8" in problems(path)
    path = tmp_path / "broken.csv.gz"
    path.write_bytes(gzip.compress(f"{HEADER}\n".encode() + f"{ROW}\n".encode() * 50)[:-12])
    assert "cannot be read" in problems(path)
    path.write_bytes(b"not gzip")
    assert "cannot be read" in problems(path)
    assert "a line of more than" in problems(table(tmp_path, HEADER, "x" * 10**6))
    monkeypatch.setattr(tables, "MAX_BYTES", 100)
    path.write_bytes(gzip.compress(f"{HEADER}\n".encode() + b"\n" * 10**6))
    assert "more than 100 in all" in problems(path)
    monkeypatch.undo()
    monkeypatch.setattr(tables, "MAX_ROWS", 3)
    assert "more than 3 rows" in problems(table(tmp_path, HEADER, *[ROW] * 5))


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=60), max_size=5))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("tables") / "any.csv"
    path.write_text("\n".join([HEADER, *lines]), "utf-8")
    with suppress(InputError):
        assert all(row.family == "gemm" for row in read_table(path))


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (
            "gpu,engine,ver,kernel_source,kv,q_heads,kv_heads,batch,kv_len,lat_us",
            "h100-sxm,vllm,1,fa3,bfloat16,12,8,1,128,9",
            "12 is no multiple of the 8 KV heads",
        ),
        (
            "gpu,engine,ver,kind,op,dt,num_gpus,elements,lat_us",
            "h100-sxm,nccl,2,nccl,all_reduce,half,1,64,9",
            "num_gpus: an integer from 2",
        ),
        (
            "gpu,engine,ver,moe_dtype,distribution,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,"
            "num_tokens,lat_us",
            "h100-sxm,vllm,1,bfloat16,zipf,64,64,2,8,1,1,4,9",
            "balanced or power_law_A is needed",
        ),
        (
            "gpu,engine,ver,moe_dtype,distribution,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,"
            "num_tokens,lat_us",
            "h100-sxm,vllm,1,bfloat16,balanced,64,64,9,8,1,1,4,9",
            "9 of 8 experts",
        ),
    ],
)
def test_shapes_that_cannot_be(tmp_path: Path, header: str, row: str, message: str) -> None:
    assert message in problems(table(tmp_path, header, row))


def test_versions_are_ordered() -> None:
    ordered = ["0.5.6", "0.5.6.post2", "0.5.10", "1.0.0", "1.3.0rc5", "1.3.0rc20", "1.3.0"]
    assert [max(pair, key=version_order) for pair in pairwise(ordered)] == ordered[1:]


def test_the_newest_version_of_a_key_counts_and_selection_leaves_out_short_ones(tmp_path: Path) -> None:
    old = ROW.replace("0.24.0", "0.9.1")
    fp8_only_old = old.replace("bfloat16", "fp8")
    rows = newest(read_table(table(tmp_path, HEADER, old, ROW, fp8_only_old)))
    assert [(row.version, row.point.key) for row in rows] == [("0.24.0", "bfloat16"), ("0.9.1", "fp8")]
    header = "gpu,engine,ver,kernel_source,kv,q_heads,kv_heads,batch,kv_len,lat_us"
    lines = [f"h100-sxm,vllm,1,fa3,bfloat16,32,8,{batch},{kv},9" for batch, kv in ((1, 127), (513, 128), (512, 128))]
    assert len(list(selected(read_table(table(tmp_path, header, *lines))))) == 1
