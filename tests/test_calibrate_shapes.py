"""Which points a run measures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import catalog
from planner.architectures import resolve
from planner.calibrate import shapes
from planner.calibrate.conclude import SPARE_POINTS
from planner.calibrate.fit import COLLECTIVE
from planner.calibrate.forms import work_of
from planner.calibrate.points import BandwidthPoint, DecodePoint, GemmPoint, Point, PrefillPoint
from planner.calibrate.shapes import Heads, grid_of, kink_batches, parse_dtypes, points, shapes_of, standard
from planner.errors import InputError


def planned(*, cuda: bool = True, quick: bool = False, dtypes: tuple[str, ...] = ("bfloat16",)) -> list[Point]:
    return list(points(standard(cuda=cuda), grid_of(cuda=cuda, quick=quick), dtypes, 132 if cuda else None))


def of_model(name: str, tp: int) -> shapes.Shapes:
    model = catalog.load_model(name)
    return shapes_of(name, resolve(model.config, model.origin), tp)


def test_dtypes_have_the_usual_short_names() -> None:
    assert parse_dtypes("bf16, FP8,bfloat16", ()) == ("bfloat16", "fp8")
    assert parse_dtypes(None, ("float32",)) == ("float32",)
    for bad in ("bf17", "", "bf16,,fp8"):
        with pytest.raises(InputError, match=r"--dtype.*known"):
            parse_dtypes(bad, ())


def test_keys_are_split_up_to_26_requests_of_8_heads_on_an_h100() -> None:
    assert kink_batches(132, 8) == (26, 27)
    assert kink_batches(132, 1) == (211, 212)
    assert kink_batches(100, 8) == (19, 20), "20 x 8 is not under 0.8 x 200"


@given(st.integers(1, 300), st.integers(1, 64))
def test_a_kink_has_a_batch_on_each_side(multiprocessors: int, kv_heads: int) -> None:
    split, whole = kink_batches(multiprocessors, kv_heads)
    assert whole * kv_heads >= 0.8 * 2 * multiprocessors - 1e-9 or split == 1
    assert split * kv_heads < 0.8 * 2 * multiprocessors or split == 1


def test_decode_sizes_straddle_the_floor_and_both_sides_of_the_kink() -> None:
    decode = [p for p in planned() if isinstance(p, DecodePoint) and p.kv_heads == 8]
    sizes = sorted({int(work_of(p).bytes) for p in decode})
    assert len(sizes) >= 8
    assert sizes[0] < 10e6 / 4
    assert any(10e6 < size < 30e6 for size in sizes)
    assert sizes[-1] > 500e6
    assert {26, 27} <= {p.batch for p in decode}


def test_a_full_run_has_the_families_and_sizes_that_it_should() -> None:
    full = planned()
    assert {p.bytes for p in full if isinstance(p, BandwidthPoint)} == {2**28, 2**30, 2**32}
    assert {p.m for p in full if isinstance(p, GemmPoint)} == {1, 8, 64, 256, 1024, 8192}
    assert any(isinstance(p, PrefillPoint) and p.prior_tokens for p in full)
    assert 40 <= len(full) <= 90
    assert len(planned(quick=True)) < len(full)
    assert len(planned(cuda=False, quick=True)) <= len(planned(cuda=False))
    sizes = shapes.ALL_REDUCE_BYTES
    assert (len(sizes), sizes[0], sizes[-1]) == (8, 2**10, 64 * 2**20)


def test_every_run_measures_enough_all_reduces_for_a_fit() -> None:
    for cuda in (True, False):
        for quick in (True, False):
            reduced = shapes.all_reduces(grid_of(cuda=cuda, quick=quick), 2, "nccl" if cuda else "gloo")
            assert len(reduced) >= len(COLLECTIVE) + SPARE_POINTS


def test_fp8_is_measured_in_products_only() -> None:
    assert {type(p) for p in planned(dtypes=("fp8",))} == {BandwidthPoint, GemmPoint}


def test_a_models_heads_and_matrices_on_one_rank() -> None:
    one, eight = of_model("llama-3.1-8b", 1), of_model("llama-3.1-8b", 8)
    assert one.heads == (Heads(32, 8, 128),)
    assert one.matrices == ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
    assert eight.heads == (Heads(4, 1, 128),)
    assert eight.matrices == ((768, 4096), (4096, 512), (3584, 4096), (4096, 1792))
    assert of_model("llama-3.1-8b", 16).heads == (Heads(2, 1, 128),), (
        "heads are copied where there are fewer than ranks"
    )


def test_what_a_model_runs_and_calibrate_does_not_measure_is_said() -> None:
    (only,) = of_model("llama-3.1-8b", 1).left_out
    assert "lm_head" in only
    lines = of_model("qwen3-next-80b-a3b", 1).left_out
    assert [part for part in ("experts", "recurrent state", "lm_head") if not any(part in line for line in lines)] == []
    assert standard(cuda=True).left_out == ()


def test_models_without_such_heads_are_refused() -> None:
    with pytest.raises(InputError, match="--tp 3"):
        of_model("llama-3.1-8b", 3)
    with pytest.raises(InputError, match="no attention with keys and values of one width"):
        of_model("deepseek-v3", 1)
