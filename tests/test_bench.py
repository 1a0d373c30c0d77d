"""The benchmark runs; machines vary, so no time is asserted here."""

import pytest

from tests import bench


def test_it_prints_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--runs", "1", "--estimates", "1"]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "python -c 'import typer, pydantic, rich, yaml'",
        "planner estimate llama-3.1-8b h100-sxm chat",
        "ratio",
        "one estimate of memory, fleet and cost",
        "one estimate, speed included",
        "one estimate, files read and validated",
        "planner, azure2023_conv_head.csv",
        "planner not compiled, azure2023_conv_head.csv",
        "sched-sim, azure2023_conv_head.csv",
        "planner, mooncake_conversation_head.jsonl.gz",
        "planner not compiled, mooncake_conversation_head.jsonl.gz",
        "sched-sim, mooncake_conversation_head.jsonl.gz",
    ]
