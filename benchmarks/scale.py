"""The table of docs/how-to/scale.md: ``python -m benchmarks.scale`` prints it; nothing of it is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from mmgrpo.config.loading import load_config, validated
from mmgrpo.explain.operator_times import MachineSpeed
from mmgrpo.explain.process_scale import GIB, ShardingEngine, plan_processes

RECIPES = {
    "recipes/sd3.5-flow-grpo-geneval": 1,
    "recipes/wan-flow-grpo": 1,
    "recipes/qwen2.5-vl-clevr-count": 600,
}
"""Recipes with the number of tokens of a prompt, which has an effect on language models only."""

PROCESSES = (1, 8, 64, 1024)
NODE, LINKS = 8, (400.0, 50.0)  # processes of a node; GB/s of each within one, and between nodes


def table() -> Iterator[str]:
    """The lines: each recipe as written where its groups are enough, else with as many groups as processes."""
    yield "| recipe | GPUs | groups | weights | GiB | step, s | rollout | views | update | optimizer | sums | gathers |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for recipe, tokens in RECIPES.items():
        written = load_config(recipe)
        for num in PROCESSES:
            groups = num * -(-written.rollout.prompts_per_step // num)
            sized = validated(
                {**written.model_dump(), "rollout": {**written.rollout.model_dump(), "prompts_per_step": groups}}
            )
            plan = plan_processes(sized, num_processes=num, prompt_tokens=tokens)
            machine = MachineSpeed(link_gb_s=LINKS[num > NODE])
            for engine in (ShardingEngine.GPUS, ShardingEngine.FSDP2) if num > 1 else (ShardingEngine.GPUS,):
                memory, seconds = plan.memory(engine), plan.seconds(machine, engine)
                parts = (getattr(seconds, field.name) for field in fields(seconds))
                cells = " | ".join(f"{part:.3g}" for part in parts)
                name = "full" if engine is ShardingEngine.GPUS else "sharded"
                yield (
                    f"| {recipe.partition('/')[2]} | {num} | {groups} | {name} | {memory.peak / GIB:.1f} "
                    f"| {seconds.total:.3g} | {cells} |"
                )


if __name__ == "__main__":
    print("\n".join(table()))
