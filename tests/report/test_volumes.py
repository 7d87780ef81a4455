"""Tables and pictures of 3-D studies: layers beside the libraries, the network, its kinds of layers."""

from __future__ import annotations

from pathlib import Path

from fakes import reports

from convscope.report import figures


def test_three_dimensions_are_compared_with_the_libraries(tmp_path: Path):
    rows = [
        reports.Conv3dRow(f"conv{at}", at, name, provider, "ncdhw", median_ms=time_ms, median_low_ms=time_ms - 0.1,
                          median_high_ms=time_ms + 0.1, batch=4)
        for at, times in enumerate(((1.0, 2.0, 3.0), (1.0, 1.1, 3.0), (2.0, 1.0, 3.0)))
        for (name, provider), time_ms in zip(
            (("gemm", "triton"), ("cudnn fft", "cudnn"), ("torch", "torch")), times, strict=True
        )
    ]  # fmt: skip
    rows.append(reports.Conv3dRow("conv0", 0, "cudnn direct", "cudnn", "ncdhw", status="unsupported", reason="no"))
    reports.write(tmp_path / "conv3d", reports.CONV3D, {"gpu": "h200", "params": "cosmoflow"}, conv3d=rows)
    found = reports.shown(tmp_path)
    assert "faster than cuDNN and PyTorch in 1 of 3 cases (a layer in a layout), at most 2 times." in found.sentences[1]
    assert len(found.tables["flags"]) == 0  # what a study of every implementation answers is no flag
    assert set(found.tables["conv3d"]["batch"].dropna()) == {4}


def test_a_3d_network_has_its_passes_and_what_they_are_made_of(tmp_path: Path):
    reports.network(tmp_path / "network")
    found = reports.shown(tmp_path)
    assert [fault.what for fault in found.found.faults] == []
    assert reports.only(found.tables["runs"])["rows"] == 4
    drawn = {each.exhibit.name: each for each in figures.pictures(found)}
    assert [(row["implementation"], row["mean_ms"]) for row in drawn["networks"].rows] == [
        ("gemm", 3.0),
        ("torch", 4.0),
    ]
    kinds = drawn["network-kinds"]
    assert kinds.panel == drawn["networks"].panel == "cosmoflow · h200 · batch 4 · float32 (tf32) · ncdhw"
    assert [(row["category"], row["mean_ms"]) for row in kinds.rows][:2] == [("convolution", 2.0), ("pooling", 1.0)]
    svg = figures.draw(figures.specification(kinds, found.specs["network-kinds"], 241), "svg").decode()
    assert "pooling" in svg


def test_layers_and_network_of_a_3d_study_are_no_repeats(tmp_path: Path):
    reports.studies(tmp_path)
    panels = {row for name in ("conv3d", "networks") for row in reports.shown(tmp_path).tables[name]["panel"]}
    assert not [panel for panel in panels if "run" in panel or "conv3d" in panel]
