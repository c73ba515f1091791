"""Files are complete or absent, and incomplete ones are read safely."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.config.loading import validated
from mmgrpo.errors import OutputError
from mmgrpo.report.run_files import RunFiles
from mmgrpo.runs.folder import RunFolder, claim_folder, require_output
from mmgrpo.system.files import append_line, read_lines, remove_folder, replace_folder, replace_text, sync_tree


def test_torn_blank_and_foreign_lines_are_dropped_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 1}\n\n[2]\n{"step": 2, "x": "\xff"}\n{"step": 3, "rew')
    result = read_lines(file)
    assert [row["step"] for row in result.rows] == [1, 2]
    assert result.num_dropped == 3
    assert read_lines(tmp_path / "none.jsonl").rows == ()


def test_rewinding_drops_repeated_lines_and_reports_torn_ones(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    rows = [{"step": step, "time/x": 0.1 + step} for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"step": 4, "r')
    (tmp_path / "warmup.jsonl").write_text('{"step": 1}\n')
    (tmp_path / ".metrics.jsonl.new").write_text("half")
    (tmp_path / "samples" / ".step-000003").mkdir(parents=True)
    message = folder.rewind({"metrics.jsonl": 2, "warmup.jsonl": 1, "alerts.jsonl": 2})
    assert message == ["metrics.jsonl: 1 unreadable line(s) dropped"]
    assert folder.lines("metrics.jsonl") == tuple(rows[:2])
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["metrics.jsonl", "samples", "warmup.jsonl"]


def test_a_replaced_file_is_the_old_one_until_it_is_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.json"
    replace_text(file, "old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OutputError, match=r"run\.json cannot be written: No space left on device; free disk space"):
            replace_text(file, "new")
    assert file.read_text() == "old"
    replace_text(file, "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("run.json", "new")]


FULL = """
import resource, sys
from pathlib import Path
from mmgrpo.errors import OutputError
from mmgrpo.report.run_files import RunFiles
from mmgrpo.system.files import append_line
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    for number in range(9):
        append_line(Path(sys.argv[1]), "{" + f'"step": {number}, "x": "{"y" * 20}"' + "}")
except OutputError as error:
    sys.exit(f"{number}: {error}")
"""


@pytest.mark.nightly
def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    ended = subprocess.run([sys.executable, "-c", FULL, str(file)], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"2: {file} cannot be written: File too large")
    assert [row["step"] for row in read_lines(file).rows] == [0, 1]
    assert read_lines(file).num_dropped == 0


def test_a_full_disk_raises_with_a_fix() -> None:
    with pytest.raises(OutputError, match="No space left on device; free disk space"):
        append_line(Path("/dev/full"), "{}")


def test_folders_are_swapped_and_removed_out_of_sight(tmp_path: Path) -> None:
    for name in ("old", ".new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of{name}").touch()
    (tmp_path / ".old.gone").mkdir()  # left by a process that was killed
    replace_folder(tmp_path / ".new", tmp_path / "old")
    assert [path.name for path in tmp_path.rglob("*")] == ["old", "of.new"]
    remove_folder(tmp_path / "old")
    assert not list(tmp_path.iterdir())


def test_files_are_replaced_where_folders_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def open_as_windows(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", open_as_windows)
    replace_text(tmp_path / "config.yaml", "a: 1\n")
    sync_tree(tmp_path)
    assert (tmp_path / "config.yaml").read_text() == "a: 1\n"


def test_run_files_are_read_without_the_flags_of_posix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.json").write_text("{}")
    monkeypatch.delattr(os, "O_NONBLOCK")
    monkeypatch.delattr(os, "O_CLOEXEC")
    assert RunFiles(tmp_path).text("run.json") == "{}"


def test_runs_that_start_at_once_get_a_folder_each(tmp_path: Path) -> None:
    config = validated({"about": {"name": "x"}, "output": str(tmp_path)})
    with ThreadPoolExecutor(16) as pool:
        claimed = list(pool.map(lambda _: claim_folder(config), range(16)))
    assert {path.name for path in claimed} == {"x", *(f"x-{number}" for number in range(2, 17))}
    assert all(path.is_absolute() for path in claimed)


def test_an_unwritable_output_raises_before_models_load(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    inside = validated({"output": str(tmp_path / "file" / "runs")})
    with pytest.raises(OutputError, match=r"cannot hold run folders: .*file is no folder; set output=FOLDER"):
        require_output(inside)
    with pytest.raises(OutputError, match=r"cannot be written: Not a directory"):
        claim_folder(inside)
    require_output(validated({"output": str(tmp_path / "new" / "runs")}))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_without_leave_to_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="is not writable"):
        require_output(validated({"output": str(tmp_path / "runs")}))
    with pytest.raises(OutputError, match="Permission denied"):
        claim_folder(validated({"output": str(tmp_path / "runs")}))
    tmp_path.chmod(0o700)
