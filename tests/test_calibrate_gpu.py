"""What only a GPU can show; each test skips with its reason where there is none."""

from typing import Any

import pytest
from typer.testing import CliRunner

from planner.cli import app
from planner.documents import load_mapping

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The points of a quick run on the first GPU."""
    file = tmp_path_factory.mktemp("run") / "gpu.yaml"
    result = CliRunner().invoke(app, ["calibrate", "--device", "cuda:0", "--quick", "--shared", "-o", str(file)])
    assert result.exit_code == 0, result.stderr
    found: list[dict[str, Any]] = load_mapping(file)["points"]
    return found


def test_every_family_is_measured_in_a_cuda_graph(points: list[dict[str, Any]]) -> None:
    timed = [point for point in points if "median_us" in point]
    assert {point["family"] for point in timed} >= {"bandwidth", "gemm", "decode_attention", "prefill_attention"}
    assert {point["method"] for point in timed if point["family"] != "collective"} == {"cuda_graph"}


def test_flash_attention_is_right_and_what_it_says_it_is(points: list[dict[str, Any]]) -> None:
    flash = [point for point in points if point["backend"] == "flash_attention"]
    assert flash
    assert {point["verdict"] for point in flash} <= {"ok", "noisy", "throttled"}
    assert all("flash" in " ".join(point["kernels"]) for point in flash)


def test_bandwidth_is_most_of_the_datasheet(points: list[dict[str, Any]]) -> None:
    shares = [point.get("share_of_datasheet_gb_per_s") for point in points if point["family"] == "bandwidth"]
    known = [share for share in shares if share is not None]
    if not known:
        pytest.skip("this GPU has no shipped profile")
    assert 0.6 < max(known) < 1.02
