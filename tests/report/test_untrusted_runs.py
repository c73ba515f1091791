"""An untrusted run folder: the report reads and writes nothing outside of it, waits for nothing, and does not fail."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.report.embedded_media import embed_image
from mmgrpo.report.run_files import MAX_LINE, RunFiles
from tests.report.folder import STEPS, sample, write_lines
from tests.report.page import Page, decoded

SECRET = np.full((8, 8), 201, dtype=np.uint8)


def report(run: Path) -> Page:
    """The page of a run, made as a person makes it."""
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code == 0, (result.output, result.exception)
    return Page((run / "report.html").read_text(encoding="utf-8"))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder next to the run, with an image and a log of others."""
    folder = tmp_path / "outside"
    folder.mkdir()
    Image.fromarray(SECRET).save(folder / "0000.png")
    write_lines(folder / "samples.jsonl", [sample("0000.png", request, 1.0) for request in range(6)])
    (folder / "secret.txt").write_text('{"step": 1, "reward/mean": 4711, "name": "4711"}\n')
    return folder


class TestPlaces:
    def test_images_outside_of_the_folder_are_not_embedded(self, run: Path, outside: Path) -> None:
        (run / "linked").symlink_to(outside)
        for step in STEPS:
            folder = run / f"samples/step-{step:06d}"
            (folder / "link.png").symlink_to(outside / "0000.png")
            (folder / "within.png").symlink_to(folder / "0005.png")
            os.mkfifo(folder / "pipe.png")
            names = [
                str(outside / "0000.png"),
                "../../../outside/0000.png",
                "link.png",
                "../../linked/0000.png",
                "pipe.png",
                "within.png",
            ]
            records = [sample(name, request, 1.0) for request, name in enumerate(names)]
            write_lines(folder / "samples.jsonl", records)
        page = report(run)
        images = [np.asarray(decoded(attrs["src"])) for attrs in page.attributes("img")]
        assert len(images) == 5  # the link that stays within, at two steps in the grid and at three in the gallery
        assert not any(np.array_equal(picture, SECRET) for picture in images)
        note = next(text for text in page.texts("p") if text.startswith("Not read"))
        assert "../outside/0000.png" in note
        assert "samples/step-000000/link.png" in note
        assert "samples/step-000000/pipe.png" in note
        assert "within.png" not in note

    @pytest.mark.parametrize("name", ["/dev/zero", "/dev/stdin", "a" * 5000, "nul\x00.png", "..", "", "./" * 3000])
    def test_names_that_mean_no_file(self, name: str, run: Path) -> None:
        for step in STEPS:
            path = run / f"samples/step-{step:06d}/samples.jsonl"
            write_lines(path, [{**sample(name, request, 1.0), "images": [name]} for request in range(6)])
        assert report(run).attributes("img") == []

    def test_input_images_are_read_only_from_the_folder(self, run: Path, outside: Path) -> None:
        for step in STEPS:
            path = run / f"samples/step-{step:06d}/samples.jsonl"
            paths = {"images": [str(outside / "0000.png"), "0001.png"]}
            write_lines(path, [{**sample(None, request, 1.0, "said"), **paths} for request in range(6)])
        pictures = [np.asarray(decoded(attrs["src"])) for attrs in report(run).attributes("img")]
        assert len(pictures) == 6
        assert not any(np.array_equal(picture, SECRET) for picture in pictures)

    def test_files_and_folders_that_lead_out(self, run: Path, outside: Path) -> None:
        for name in ("metrics.jsonl", "evaluation.jsonl", "run.json", "config.yaml"):
            (run / name).unlink()
            (run / name).symlink_to(outside / "secret.txt")
        (run / "samples/step-000030").symlink_to(outside)
        (run / "checkpoints").rename(run / "kept")
        (run / "checkpoints").symlink_to(outside.parent)
        page = report(run)
        assert "4711" not in re.sub("base64,[A-Za-z0-9+/=]*", "", (run / "report.html").read_text())
        note = next(text for text in page.texts("p") if text.startswith("Not read"))
        for name in ("metrics.jsonl", "evaluation.jsonl", "run.json", "config.yaml", "samples/step-000030"):
            assert name in note

    @pytest.mark.first_case
    @pytest.mark.parametrize("name", ["metrics.jsonl", "run.json", "config.yaml", "samples/step-000000/samples.jsonl"])
    def test_pipes_are_not_waited_for(self, name: str, run: Path) -> None:
        (run / name).unlink()
        os.mkfifo(run / name)
        assert any(name in text for text in report(run).texts("p") if text.startswith("Not read"))

    def test_links_in_a_circle(self, run: Path) -> None:
        (run / "metrics.jsonl").unlink()
        (run / "metrics.jsonl").symlink_to("metrics.jsonl")
        (run / "samples/step-000040").symlink_to("step-000040")
        assert "metrics.jsonl" in next(text for text in report(run).texts("p") if text.startswith("Not read"))

    @pytest.mark.parametrize("name", ["report.html", ".report.html.new"])
    def test_the_page_replaces_a_link_and_does_not_follow_it(self, name: str, run: Path, outside: Path) -> None:
        (run / name).symlink_to(outside / "secret.txt")
        before = (outside / "secret.txt").read_text()
        report(run)
        assert (outside / "secret.txt").read_text() == before
        assert not (run / "report.html").is_symlink()
        assert "digits" in (run / "report.html").read_text()
        assert not (run / ".report.html.new").exists()

    def test_a_folder_in_the_place_of_the_page_is_an_error_of_one_line(self, run: Path) -> None:
        (run / "report.html").mkdir()
        result = CliRunner().invoke(app, ["report", str(run)])
        assert result.exit_code == 2, result.exception
        assert result.stderr.startswith("error: ")
        assert "report.html cannot be written" in result.stderr
        assert result.stderr.count("\n") == 1


DEEP = '{"step": 1, "x": ' + "[" * 5000 + "]" * 5000 + "}"
NESTED = '{"step": 1, "x": ' + "[" * 60 + "]" * 60 + "}"
LINES = {
    "deep": DEEP,
    "deep enough to be read and not to be printed": NESTED,
    "NaN step": '{"step": NaN, "reward/mean": 1}',
    "infinite step": '{"step": Infinity, "reward/mean": 1}',
    "step of 400 digits": '{"step": 1' + "0" * 400 + ', "reward/mean": 1}',
    "step of 5000 digits": '{"step": 1' + "0" * 5000 + ', "reward/mean": 1}',
    "no step": '{"step": [1], "reward/mean": 1}',
    "long": '{"step": 1, "x": "' + "y" * MAX_LINE + '"}',
    "of many parts": '{"step": 1, "x": [' + "0," * 10**6 + "0]}",
    "a list": "[1]",
    "cut off": '{"step": 4, "rew',
    "bytes": "\udc80\udcff",
}


class TestLines:
    @pytest.mark.first_case
    @pytest.mark.parametrize("line", LINES)
    @pytest.mark.parametrize("name", ["metrics", "evaluation", "warmup", "alerts"])
    def test_a_line_that_cannot_be_read_is_counted(self, line: str, name: str, run: Path) -> None:
        path = run / f"{name}.jsonl"
        before = path.read_bytes() if path.exists() else b""
        path.write_bytes(LINES[line].encode(errors="surrogateescape") + b"\n" + before)
        assert f"1 unreadable line in {name}.jsonl, left out." in report(run).texts("p")

    @pytest.mark.parametrize(
        "values",
        [
            ["1" + "0" * 400, "1"],
            ["1e308", "-1e308"],
            ["1e308", "1.7e308"],
            ["5e-324", "0"],
            ["-Infinity", "NaN"],
            ["9007199254740993", "9007199254740992"],
            ["1", "1.0000000000000002"],
            ["1e150", "-1e150"],
            ["true", "null"],
        ],
    )
    def test_numbers_that_no_axis_holds(self, values: list[str], run: Path) -> None:
        for name in ("metrics", "evaluation", "warmup"):
            keys = (
                "reward/mean",
                "reward/std",
                "policy/loss",
                "time/rollout_s",
                "time_s",
                "eval/x/mean",
                "loss",
                "new",
            )
            rows = [
                f'{{"step": {step}, ' + ", ".join(f'"{key}": {value}' for key in keys) + "}"
                for step, value in enumerate(values)
            ]
            (run / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
        about = {"name": 7, "started": 1e300, "finished": [], "active_s": 1e300, "versions": 3, "seed": {"a": 1}}
        (run / "run.json").write_text(json.dumps(about).replace("7", values[0], 1))
        for step in STEPS:
            path = run / f"samples/step-{step:06d}/samples.jsonl"
            row = json.dumps({**sample("0000.png", 0, 0.5), "advantage": 0.25, "num_tokens": 25, "group": 25})
            path.write_text("".join(f"{row.replace('0.5', value).replace('25', value)}\n" for value in values))
        report(run)

    @pytest.mark.nightly
    def test_a_log_of_thousands_of_keys_is_a_page_of_a_bounded_size(self, run: Path) -> None:
        rows = [{"step": 1, **{f"key{number}": 1.0 for number in range(20_000)}}]
        write_lines(run / "metrics.jsonl", rows)
        write_lines(run / "evaluation.jsonl", [{"step": 1, **{f"eval/{n}/mean": 1.0 for n in range(20_000)}}])
        report(run)
        assert (run / "report.html").stat().st_size < 8_000_000


class TestTexts:
    LAUGHS = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]" for i in range(1, 12)), "note: *a11"])

    @pytest.mark.first_case
    @pytest.mark.parametrize(
        "text", ["[" * 5000, LAUGHS, "note: 2001-99-99", "x: !!timestamp y", "\x00\x1b", "note: " + "9" * 5000]
    )
    def test_an_unreadable_configuration_is_displayed_as_text(self, text: str, run: Path) -> None:
        (run / "config.yaml").write_text(text)
        assert any(text[:10].strip("\x00") in block for block in report(run).texts("pre"))

    @pytest.mark.first_case
    @pytest.mark.parametrize("text", ["[" * 10**6, DEEP, NESTED, "\x00", "7", '{"name": ' + "9" * 5000 + "}"])
    def test_a_header_that_cannot_be_read_is_not_recorded(self, text: str, run: Path) -> None:
        (run / "run.json").write_text(text)
        assert report(run).texts("dd")[0] == "not recorded"

    def test_large_texts_are_cut(self, run: Path) -> None:
        (run / "config.yaml").write_text("# " + "x" * 2**22)
        page = report(run)
        assert "config.yaml exceeds the size limit of a report; the rest is left out." in page.texts("p")
        assert (run / "report.html").stat().st_size < 8_000_000


def bomb(side: int) -> bytes:
    """A PNG of a few hundred bytes that says to be so large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    lines = zlib.compress(bytes(2**20), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def long_video() -> bytes:
    """An animation of a thousand frames of 4 million pixels each, all the same, in a few kB."""
    frame, buffer = Image.new("P", (2048, 2048)), io.BytesIO()
    frame.save(buffer, "GIF", save_all=True, append_images=[Image.new("P", (2048, 2048), n % 2) for n in range(40)])
    return buffer.getvalue()


@pytest.mark.first_case
@pytest.mark.parametrize(
    "make",
    [
        lambda: bomb(10_000),
        lambda: bomb(60_000),
        lambda: bomb(2**31 - 1),
        lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
        lambda: b"GIF89a" + bytes(3),
        lambda: b"RIFF\x00\x00\x00\x00WEBPVP8 ",
        lambda: bytes(range(256)),
        lambda: b"",
    ],
)
def test_images_that_unpack_to_too_much_or_nothing_are_left_out(
    make: Callable[[], bytes], run: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = run / "samples/step-000000/0000.png"
    path.write_bytes(make())
    tracemalloc.start()
    assert embed_image(RunFiles(run), path, 10**6) is None
    assert embed_image(RunFiles(run), path, 10) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 * 2**20
    assert len(report(run).attributes("img")) == 28  # it had a place in the grid and one in the gallery
    assert not [warning for warning in recwarn if "Decompression" in str(warning.category)]


@pytest.mark.nightly
def test_a_long_video_shows_its_first_frames(run: Path) -> None:
    path = run / "samples/step-000000/0000.gif"
    path.write_bytes(long_video())
    picture = embed_image(RunFiles(run), path, 1000)
    assert picture is not None
    assert not picture.exact
    assert (picture.width, picture.height) == (64, 64)
