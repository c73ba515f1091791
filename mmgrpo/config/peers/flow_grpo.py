"""flow_grpo's configuration: config/base.py and config/grpo.py of yifan123/flow_grpo."""

from __future__ import annotations

from mmgrpo.config.peers.peer import Peer
from mmgrpo.config.peers.texts import CLIPPED, EVALUATION_STEPS, GUIDANCE, SIZE, STEPS, WINDOW

PEER = Peer(
    name="flow_grpo",
    keys={
        "pretrained.model": "policy.model",
        "pretrained.revision": "policy.revision",
        "use_lora": "policy.lora: {rank: 32, alpha: 64}",
        "train.lora_path": "policy.adapter",
        "mixed_precision": "policy.dtype: bfloat16, float16 or float32",
        "resolution": SIZE,
        "dataset": "prompts.source",
        "reward_fn": "rewards: [{name: NAME, weight: NUMBER}]",
        "sample.num_steps": STEPS,
        "sample.eval_num_steps": EVALUATION_STEPS,
        "sample.guidance_scale": GUIDANCE,
        "sample.train_batch_size": "policy.rollout_batch",
        "sample.num_image_per_prompt": "rollout.group_size",
        "sample.num_batches_per_epoch": (
            "rollout.prompts_per_step: GPUS * train_batch_size * num_batches_per_epoch / num_image_per_prompt"
        ),
        "sample.global_std": "advantage.scale: batch, or group for false",
        "sample.noise_level": "policy.strength",
        "sample.sde_type": "policy.sampler: flow_sde or cps",
        "sample.sde_window_size": WINDOW,
        "sample.sde_window_range": WINDOW,
        "sample.same_latent": "rollout.same_initial_noise",
        "per_prompt_stat_tracking": "advantage.scale",
        "train.batch_size": "policy.update_batch",
        "train.gradient_accumulation_steps": "update.minibatches: num_batches_per_epoch / gradient_accumulation_steps",
        "train.num_inner_epochs": "update.epochs",
        "train.timestep_fraction": "rollout.window: {name: fixed, start: 0, size: N}",
        "train.clip_range": CLIPPED,
        "train.adv_clip_max": "advantage.clamp",
        "train.beta": "objective.kl.beta",
        "train.learning_rate": "update.optimizer.lr",
        "train.adam_beta1": "update.optimizer.betas",
        "train.adam_beta2": "update.optimizer.betas",
        "train.adam_weight_decay": "update.optimizer.weight_decay",
        "train.adam_epsilon": "update.optimizer.eps",
        "train.use_8bit_adam": "update.optimizer: {name: adamw_8bit}",
        "train.max_grad_norm": "update.optimizer.max_grad_norm",
        "train.ema": "update.ema: {decay: 0.9, every: 8}",
        "run_name": "about.name",
        "logdir": "output",
        "save_dir": "output",
        "save_freq": "checkpoint.every",
        "num_checkpoint_limit": "checkpoint.keep",
        "eval_freq": "evaluation.every",
        "num_epochs": "steps",
    },
    replacements={
        "prompt_fn": "prompts.source: a text file, or rows whose columns the rewards read",
        "train.cfg": "leave it out: updates run the pipeline as rollouts do, with guidance if the call has it",
        "sample.test_batch_size": "leave it out: evaluations have batches of policy.rollout_batch",
        "allow_tf32": "torch.backends.cuda.matmul.allow_tf32 = True",
    },
)
