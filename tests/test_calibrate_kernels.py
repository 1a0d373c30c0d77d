"""Every kernel on the CPU against its reference, its CUDA shapes on fake tensors, and its FLOPs counted by torch."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from planner.calibrate import paged, reference  # noqa: E402 - after the skip
from planner.calibrate.forms import work_of  # noqa: E402
from planner.calibrate.kernels import Lab, kernels_of, open_lab  # noqa: E402
from planner.calibrate.paged import paged_inputs, paged_kernels, varlen_takes_pages  # noqa: E402
from planner.calibrate.points import BandwidthPoint, DecodePoint, GemmPoint, Point, PrefillPoint  # noqa: E402

DTYPES = ("float32", "float16", "bfloat16")
DECODE = DecodePoint("bfloat16", 8, 2, 64, 3, 300, 0.0)
PREFILL = PrefillPoint("bfloat16", "bfloat16", 8, 2, 64, 2, 70, 0.0)
CHUNK = replace(PREFILL, prior_tokens=50)
GEMM = GemmPoint("bfloat16", 96, 64, 40, 0.0)


def lab() -> Lab:
    return open_lab(torch, "cpu")


def with_dtype(point: Point, dtype: str) -> Point:
    if isinstance(point, PrefillPoint):
        return replace(point, dtype=dtype, kv_dtype=dtype)
    assert isinstance(point, DecodePoint | GemmPoint)
    return replace(point, dtype=dtype)


def errors_of(point: Point) -> dict[str, float]:
    found = {}
    for kernel in kernels_of(lab(), point, cuda=False):
        given = kernel.inputs()
        found[kernel.backend] = reference.error(*kernel.judge(given, kernel.call(*given)))
        assert kernel.limit == reference.LIMITS.get(str(getattr(point, "dtype", "float32")))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("point", [DECODE, PREFILL, CHUNK, GEMM], ids=["decode", "prefill", "chunk", "gemm"])
def test_every_kernel_passes_its_gate_with_room(point: Point, dtype: str) -> None:
    errors = errors_of(with_dtype(point, dtype))
    assert errors
    assert all(error < 0.8 * reference.LIMITS[dtype] for error in errors.values()), errors


def test_fp8_products_are_judged_on_the_fp8_numbers() -> None:
    assert errors_of(replace(GEMM, dtype="fp8"))["scaled_mm"] < reference.LIMITS["fp8"]


@pytest.mark.parametrize("op", ["copy", "read"])
def test_bandwidth_moves_the_bytes_it_says(op: str) -> None:
    point = BandwidthPoint(op, 2**20, 0.0)
    assert errors_of(point)[op] < 1e-6
    (kernel,) = kernels_of(lab(), point, cuda=False)
    touched = sum(tensor.numel() * tensor.element_size() for tensor in kernel.inputs())
    assert touched == 2**20, "a copy reads one half and writes the other"


def test_a_copy_or_sum_that_misses_something_is_wrong() -> None:
    for op in ("copy", "read"):
        (kernel,) = kernels_of(lab(), BandwidthPoint(op, 2**20, 0.0), cuda=False)
        given = kernel.inputs()
        out = kernel.call(*given).clone()
        out.view(-1)[-1:] += 1e3
        assert not reference.is_right(reference.error(*kernel.judge(given, out)), kernel.limit)


def test_decode_takes_two_backends_here_and_pinned_ones_on_a_gpu() -> None:
    assert [k.backend for k in kernels_of(lab(), DECODE, cuda=False)] == ["flash_attention", "grouped_matmul"]
    assert [k.backend for k in kernels_of(lab(), DECODE, cuda=True)] == ["flash_attention", "cudnn_attention"]
    assert [k.backend for k in kernels_of(lab(), CHUNK, cuda=True)] == ["flash_attention"]


def test_a_backend_that_cannot_do_it_raises_instead_of_another_doing_it() -> None:
    cudnn = next(k for k in kernels_of(lab(), DECODE, cuda=True) if k.backend == "cudnn_attention")
    with pytest.raises(RuntimeError, match=r"No available kernel|No viable backend"):
        cudnn.call(*cudnn.inputs())


@pytest.mark.parametrize("broken", ["mask", "tail", "nan", "head"])
def test_a_broken_attention_does_not_pass(broken: str) -> None:
    kernel = kernels_of(lab(), CHUNK, cuda=False)[0]
    query, key, value = given = kernel.inputs()
    attend = torch.nn.functional.scaled_dot_product_attention
    if broken == "mask":  # upper-left: every query misses the 50 tokens before the chunk's first
        out = attend(query, key, value, is_causal=True, enable_gqa=True)
    else:
        out = kernel.call(*given).clone()
        if broken == "tail":
            out[-1, :, -1] = out[-1, :, -2]
        elif broken == "nan":
            out[0, 0, 0, 0] = math.nan
        else:
            out = out.flip(1)
    assert not reference.is_right(reference.error(*kernel.judge(given, out)), kernel.limit)


def test_inputs_are_random_and_fresh() -> None:
    kernel = kernels_of(lab(), DECODE, cuda=False)[0]
    first, second = kernel.inputs(), kernel.inputs()
    for one, other in zip(first, second, strict=True):
        assert not torch.equal(one, other)
        assert one.float().std().item() == pytest.approx(1, abs=0.1)


def dense_of(point: DecodePoint, given: tuple[Any, ...]) -> Any:
    """What a paged decode should give, request by request and page by page."""
    query, key, value, table = given
    rows = []
    for request in range(point.batch):
        pages = [int(page) for page in table[request]]
        keys, values = (torch.cat([pool[page] for page in pages])[: point.kv_tokens] for pool in (key, value))
        heads = (query[request, :, None][None], keys.transpose(0, 1)[None], values.transpose(0, 1)[None])
        rows.append(reference.attention(torch, *heads, torch.tensor([point.kv_tokens - 1]))[0, :, 0])
    return torch.stack(rows)


@pytest.mark.parametrize("page", [paged.FLASHINFER_PAGE, paged.VARLEN_PAGE])
def test_paged_decode_is_judged_through_its_block_table(page: int) -> None:
    given = paged_inputs(lab(), DECODE, page)
    table = given[3]
    each = paged.pages_per_request(DECODE, page)
    assert sorted(table.flatten().tolist()) == list(range(DECODE.batch * each)), "each page belongs to one request"
    right = dense_of(DECODE, given)
    assert reference.error(*paged.judge_paged(lab(), DECODE, given, right)) < 1e-12
    swapped = (*given[:3], table.flip(0))
    assert reference.error(*paged.judge_paged(lab(), DECODE, swapped, right)) > 0.1


def test_varlen_pages_are_probed_by_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen", reason="needs torch with varlen_attn")
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert varlen_takes_pages() == (version >= (2, 12))

    def without_pages(query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int) -> None:
        """As torch 2.11 has it."""

    monkeypatch.setattr(varlen, "varlen_attn", without_pages)
    assert not varlen_takes_pages()
    assert paged_kernels(lab(), DECODE) == ()
    assert paged_kernels(lab(), replace(DECODE, dtype="float32")) == ()


def test_flashinfer_plans_once_and_outside_the_timed_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[tuple[Any, ...]] = []

    class Wrapper:
        """FlashInfer's, as far as we use it."""

        def __init__(self, workspace: Any, layout: str, *, use_tensor_cores: bool) -> None:
            assert (workspace.dtype, layout, use_tensor_cores) == (torch.uint8, "NHD", True)

        def plan(self, *arguments: Any, **dtypes: Any) -> None:
            assert dtypes == {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
            plans.append(arguments)

        def run(self, query: Any, cache: tuple[Any, Any]) -> Any:
            assert plans, "run before plan"
            starts, pages, last, *heads = plans[0]
            assert heads == [8, 2, 64, 16]
            assert starts.tolist() == [0, 19, 38, 57]
            assert last.tolist() == [300 - 18 * 16] * 3
            return dense_of(DECODE, (query, *cache, pages.view(3, 19)))

    monkeypatch.setitem(
        __import__("sys").modules, "flashinfer", SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=Wrapper)
    )
    monkeypatch.setattr(paged, "has_flashinfer", lambda: True)
    monkeypatch.setattr(paged, "varlen_takes_pages", lambda: False)
    (kernel,) = paged_kernels(lab(), DECODE)
    given = kernel.inputs()
    for _ in range(3):
        assert reference.error(*kernel.judge(given, kernel.call(*given))) < 1e-12
    assert len(plans) == 1


def test_few_query_heads_do_not_fill_a_tensor_core() -> None:
    assert [paged.tensor_cores(replace(DECODE, query_heads=heads)) for heads in (2, 6, 8, 16)] == [0, 0, 1, 1]


def test_fp8_products_accumulate_as_engines_let_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch, "_scaled_mm", lambda *_, **options: given.update(options))
    (kernel,) = kernels_of(lab(), replace(GEMM, dtype="fp8"), cuda=True)
    kernel.call(*kernel.inputs())
    assert given["use_fast_accum"] is True


@pytest.mark.parametrize("point", [DECODE, PREFILL, CHUNK, GEMM], ids=["decode", "prefill", "chunk", "gemm"])
def test_cuda_calls_have_signatures_and_shapes_that_torch_accepts(point: Point) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    for kernel in kernels_of(fake_lab(), point, cuda=True):
        if kernel.backend == "cudnn_attention":
            continue  # a CPU build refuses to choose it
        with FakeTensorMode():
            given = kernel.inputs()
            out = kernel.call(*given)
            assert out.device.type == "cuda"
            expected = (point.m, point.n) if isinstance(point, GemmPoint) else given[0].shape
            assert out.shape == expected


def test_varlen_takes_our_paged_arguments() -> None:
    if not varlen_takes_pages():
        pytest.skip("needs torch 2.12 or newer")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        point = replace(DECODE, kv_tokens=600)
        kernel = next(k for k in paged_kernels(fake_lab(), point) if k.backend == "varlen_paged")
        query, key, value, table = given = kernel.inputs()
        assert key.shape == value.shape == (9, 256, 2, 64)
        assert (table.shape, table.dtype) == ((3, 3), torch.int32)
        assert kernel.call(*given).shape == query.shape == (3, 8, 64)


def fake_lab() -> Lab:
    """A lab of cuda tensors without storage: to be used within FakeTensorMode."""
    return Lab(torch, "cuda", None)


@pytest.mark.parametrize("point", [DECODE, PREFILL, GEMM], ids=["decode", "prefill", "gemm"])
def test_flops_are_what_torch_counts(point: Point) -> None:
    """torch counts causal attention as if nothing were masked: S^2 where S (S + 1) / 2 is done."""
    from torch.utils.flop_counter import FlopCounterMode

    kernel = kernels_of(Lab(torch, "meta", None), point, cuda=False)[-1]
    given = kernel.inputs()
    if isinstance(point, PrefillPoint):
        kernel = replace(kernel, call=torch.nn.functional.scaled_dot_product_attention)
        given = tuple(tensor.repeat_interleave(8 // tensor.shape[1], dim=1) for tensor in given)
    with FlopCounterMode(display=False) as counter:
        kernel.call(*given)
    causal = (point.seq + 1) / 2 / point.seq if isinstance(point, PrefillPoint) else 1
    assert work_of(point).flops == pytest.approx(counter.get_total_flops() * causal)
