"""Tensors in one file per process: any range of entries can be read, and an incomplete file is an error."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import Shard

from mmgrpo.distributed.parameter_shards import restore_pieces, split_pieces
from mmgrpo.errors import CheckpointError
from mmgrpo.layouts import OnMesh, local_slice
from mmgrpo.shards import PIECES, Piece, is_sharded, load_module, read_shards, shard_name, write_shard, writer_of

SHAPES = ((7, 3), (1, 4), (2,), (5, 2, 2))


def rows_of(shape: tuple[int, ...], process: int, num_processes: int) -> OnMesh:
    """Sharded as by FSDP2."""
    mesh = SimpleNamespace(size=lambda: num_processes, get_local_rank=lambda: process)
    return OnMesh(mesh, (Shard(0),), torch.Size(shape), ())


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"of.{i}": torch.rand(shape, generator=generator) for i, shape in enumerate(SHAPES)}


def written(folder: Path, num_processes: int) -> dict[str, Tensor]:
    """Files as FSDP2 writes them on so many processes."""
    folder.mkdir(exist_ok=True)
    result = tensors()
    for process in range(num_processes):
        laid = {name: rows_of(tuple(tensor.shape), process, num_processes) for name, tensor in result.items()}
        pieces = {
            name: Piece(local_slice(tensor, laid[name]), laid[name].start, tensor.shape)
            for name, tensor in result.items()
        }
        write_shard(folder, pieces, process=process, num_processes=num_processes)
    return result


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8])
def test_rows_are_chunked_as_by_torch(size: int) -> None:
    for shape in SHAPES:
        full = torch.arange(torch.Size(shape).numel()).view(shape)
        chunks = [*full.chunk(size), *[full[:0]] * size][:size]
        for process, chunk in enumerate(chunks):
            laid = rows_of(shape, process, size)
            assert torch.equal(local_slice(full, laid), chunk)
            assert laid.part_shape == chunk.shape


@pytest.mark.parametrize("before", [1, 2, 3, 8])
@pytest.mark.parametrize("after", [1, 2, 3, 8])
def test_shards_are_read_by_another_number_of_processes(before: int, after: int, tmp_path: Path) -> None:
    expected, stored = written(tmp_path, before), read_shards(tmp_path)
    assert stored.keys() == expected.keys()
    for name, full in expected.items():
        assert torch.equal(stored[name].full_tensor(), full)
        for process in range(after):
            laid = rows_of(tuple(full.shape), process, after)
            tensors = stored[name].entries(laid.start, laid.part_shape.numel()).view(laid.part_shape)
            assert torch.equal(tensors, local_slice(full, laid))


def test_entries_begin_and_end_anywhere(tmp_path: Path) -> None:
    full, stored = written(tmp_path, 3)["of.0"].flatten(), read_shards(tmp_path)["of.0"]
    for start in range(len(full)):
        for end in range(start, len(full) + 1):
            assert torch.equal(stored.entries(start, end - start), full[start:end])
    with pytest.raises(CheckpointError, match=r"of\.0 is incomplete"):
        stored.entries(20, 2)


def test_files_of_processes_go_by_their_numbers(tmp_path: Path) -> None:
    assert shard_name(3, 16) == "shard-00003-of-00016.safetensors"
    assert writer_of(shard_name(3, 16)) == 3
    assert writer_of("model-00001-of-00002.safetensors") is None
    assert not is_sharded(tmp_path)
    written(tmp_path, 2)
    assert is_sharded(tmp_path)


def test_a_file_too_few_or_of_others_is_named(tmp_path: Path) -> None:
    written(tmp_path, 3)
    (tmp_path / shard_name(1, 3)).rename(tmp_path / "aside")
    with pytest.raises(CheckpointError, match=r"files of 3 processes: see shard-00001-of-00003\.safetensors"):
        read_shards(tmp_path)
    (tmp_path / "aside").rename(tmp_path / shard_name(1, 2))
    with pytest.raises(CheckpointError, match="files of 3 processes"):
        read_shards(tmp_path)
    with pytest.raises(CheckpointError, match="contains no shard"):
        read_shards(tmp_path.parent)


@pytest.mark.parametrize(
    "header",
    [
        {},
        {PIECES: "no json"},
        {PIECES: "[]"},
        {PIECES: json.dumps({"of.0": [0, 7, 3], "gone": [0, 2]})},
        {PIECES: json.dumps({"of.0": [-3, 7, 3]})},
        {PIECES: json.dumps({"of.0": [15, 7, 3]})},
        {PIECES: json.dumps({"of.0": [0, 3, 7]})},
        {PIECES: json.dumps({"of.0": []})},
        {PIECES: json.dumps({"of.0": [0, "7", 3]})},
    ],
)
def test_an_invalid_header_raises(header: dict[str, str], tmp_path: Path) -> None:
    written(tmp_path, 2)
    last = tmp_path / shard_name(1, 2)
    save_file(load_file(last), last, header)
    with pytest.raises(CheckpointError, match=r"shard-00001-of-00002\.safetensors cannot be read"):
        read_shards(tmp_path)


def test_a_torn_file_is_an_error(tmp_path: Path) -> None:
    written(tmp_path, 2)
    last = tmp_path / shard_name(1, 2)
    last.write_bytes(last.read_bytes()[:40])
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_shards(tmp_path)


class Tied(nn.Module):
    """Two layers with one weight, a persistent buffer and one that is not saved."""

    persistent: Tensor
    temporary: Tensor

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("persistent", torch.rand(2))
        self.register_buffer("temporary", torch.rand(2), persistent=False)


def saved(module: Tied, folder: Path) -> None:
    """Written as by one process without sharding."""
    names = {"first.weight": module.first.weight, "first.bias": module.first.bias, "persistent": module.persistent}
    pieces = {name: Piece(tensor, 0, tensor.shape) for name, tensor in names.items()}
    write_shard(folder, pieces, process=0, num_processes=1)


def test_a_module_is_restored_with_tied_tensors_and_buffers(tmp_path: Path) -> None:
    module, other = Tied(), Tied()
    saved(module, tmp_path)
    before = other.temporary.clone()
    load_module(other, tmp_path)
    assert all(
        torch.equal(parameter, value) for parameter, value in zip(module.parameters(), other.parameters(), strict=True)
    )
    assert torch.equal(module.persistent, other.persistent)
    assert torch.equal(other.temporary, before)
    assert other.last.weight is other.first.weight


def test_another_module_raises_before_any_change(tmp_path: Path) -> None:
    saved(Tied(), tmp_path)
    other = Tied(width=4)
    before = other.first.weight.detach().clone()
    with pytest.raises(CheckpointError, match=r"is of another model; it differs at first\.bias, first\.weight$"):
        load_module(other, tmp_path)
    assert torch.equal(other.first.weight, before)


def test_a_state_dict_is_split_and_put_together(tmp_path: Path) -> None:
    piece = Piece(torch.arange(6.0), 0, torch.Size([2, 3]))
    state = {"optimizer": {"state": {0: {"step": torch.tensor(1.0), "exp_avg": piece}}}, "average": [piece, 3], "n": 1}
    rest, pieces = split_pieces(state)
    assert pieces == {"optimizer.state.0.exp_avg": piece, "average.0": piece}
    write_shard(tmp_path, pieces, process=0, num_processes=1)
    torch.save(rest, tmp_path / "rest.pt")
    again = restore_pieces(torch.load(tmp_path / "rest.pt", weights_only=True), read_shards(tmp_path))
    assert again["n"] == 1
    assert again["average"][1] == 3
    for tensor in (again["average"][0], again["optimizer"]["state"][0]["exp_avg"]):
        assert torch.equal(tensor.full_tensor(), torch.arange(6.0).view(2, 3))
    with pytest.raises(KeyError):
        restore_pieces(rest, {})
