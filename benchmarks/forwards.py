"""Forwards per sample under the methods of denoising policies, compared with their published runs.

python -m benchmarks.forwards [--method flow-grpo ...] [--group N] [--window START SIZE]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.counting import Spending, denoising_methods, method_config, predicted, spend_step, tiny_policy
from benchmarks.peers import PEERS, Peer
from mmgrpo.errors import ConfigError

HEADER = (
    f"{'method':16} {'noise':12} {'guided':6} {'G':>3} {'N':>3} {'w':>2}  {'sample':>6} {'train':>6} {'ref':>6} "
    f"{'total':>6}  {'run mean':>8}  {'peer: sample':>12} {'train':>6} {'ref':>6} {'total':>6}  {'ours / peer':>11}"
)
LEGEND = """\
In F, forwards of the denoiser for one sample; a forward with its backward counts w (2 LoRA, 3 all weights, 1 more with
checkpointing: as in the peer's run). Counted at the first step of a run; run mean: over the windows of a whole run, by
the formula of `mmgrpo explain`. G: group size, N: denoising steps. ours / peer: the run mean over the peer's total.
noise: own or shared by the group; * as the method is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method with its noise shared or not.

    Attributes:
        method: its name.
        same_initial_noise: whether the group starts from one noise.
        as_written: whether the method's file says so.
        guided: whether every pass runs twice.
        group: samples of a prompt.
        steps: denoising steps.
        weight: F of a forward with its backward.
        spent: what the first step of a run spends.
        mean: what a run spends on average.
        peer: the published run, if it is known here.
    """

    method: str
    same_initial_noise: bool
    as_written: bool
    guided: bool
    group: int
    steps: int
    weight: int
    spent: Spending
    mean: Spending
    peer: Peer | None


def count_method(name: str, changes: Mapping[str, Any]) -> list[Row]:
    """Counts a method's step; guidance as in the published run, none if that is not known here.

    Args:
        name: of its file.
        changes: overrides of its ``rollout`` section.

    Returns:
        One row with independent noise, one with the noise of the group.

    Raises:
        ConfigError: the method is of another kind of policy, or trains on other decisions than denoising steps.
    """
    include, peer = f"methods/{name}", PEERS.get(name)
    written = method_config(include, {})
    guided = peer.guided if peer else False
    policy = tiny_policy(written, guided=guided)
    steps = policy.num_decisions + 1
    rows = []
    for same_initial_noise in (False, True):
        config = method_config(include, {**changes, "same_initial_noise": same_initial_noise})
        row = Row(
            method=name,
            same_initial_noise=same_initial_noise,
            as_written=same_initial_noise == written.rollout.same_initial_noise,
            guided=guided,
            group=config.rollout.group_size,
            steps=steps,
            weight=peer.weight if peer else 2,
            spent=spend_step(config, policy),
            mean=predicted(config, steps, guided=guided),
            peer=peer,
        )
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Counts and prints."""
    options = _parser().parse_args(arguments)
    changes: dict[str, Any] = {}
    if options.group:
        changes["group_size"] = options.group
    if options.window:
        changes["window"] = {"name": "fixed", "start": options.window[0], "size": options.window[1]}
    print(HEADER)
    for name in options.method or denoising_methods():
        try:
            for row in count_method(name, changes):
                print(_table_row(row))
        except ConfigError as error:
            print(f"{name:16} is not counted: {error}")
    print(LEGEND)
    print("peers: " + "; ".join(f"{name}: {peer.run}" for name, peer in PEERS.items()))


def _table_row(row: Row) -> str:
    noise = ("shared" if row.same_initial_noise else "independent") + (" *" if row.as_written else "")
    spent, mean = row.spent, row.mean.cost(row.weight)
    ours = f"{spent.sample:6.2f} {row.weight * spent.trained:6.2f} {spent.reference:6.2f} {spent.cost(row.weight):6.2f}"
    line = (
        f"{row.method:16} {noise:12} {'yes' if row.guided else 'no':6} {row.group:3} {row.steps:3} {row.weight:2}  "
        f"{ours}  {mean:8.2f}"
    )
    if row.peer is None:
        return line
    peer = row.peer
    theirs = f"{peer.sample:12g} {peer.train:6g} {peer.reference:6g} {peer.total:6g}"
    return f"{line}  {theirs}  {mean / peer.total:11.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("benchmarks.forwards", description="Forwards a sample costs, method by method.")
    parser.add_argument(
        "--method", action="append", help="one of configs/methods; those of denoising policies if not given"
    )
    parser.add_argument("--group", type=int, help="group size instead of the methods'")
    parser.add_argument("--window", type=int, nargs=2, metavar=("START", "SIZE"), help="window instead of theirs")
    return parser


if __name__ == "__main__":
    main()
