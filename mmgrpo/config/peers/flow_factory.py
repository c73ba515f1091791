"""Flow-Factory's configuration: hparams/ and examples/ of X-GenGroup/Flow-Factory."""

from __future__ import annotations

from mmgrpo.config.peers import texts
from mmgrpo.config.peers.peer import Peer

PEER = Peer(
    name="Flow-Factory",
    keys={
        "model.model_name_or_path": "policy.model",
        "model.finetune_type": texts.ADAPTERS,
        "model.lora_rank": "policy.lora.rank",
        "model.lora_alpha": "policy.lora.alpha",
        "model.target_modules": "policy.lora.targets",
        "model.attn_backend": "policy.attention",
        "model.resume_path": "policy.adapter",
        "mixed_precision": "policy.dtype: bfloat16, float16 or float32",
        "data.dataset_dir": "prompts.source",
        "data.max_dataset_size": "prompts.limit",
        "log.run_name": "about.name",
        "log.project": texts.PROJECT,
        "log.logging_backend": texts.WANDB,
        "log.save_dir": "output",
        "log.save_freq": "checkpoint.every",
        "train.max_epochs": "steps",
        "train.advantage_aggregation": "advantage.scale: gdpo, or group for sum",
        "train.clip_range": texts.CLIPPED,
        "train.adv_clip_range": "advantage.clamp",
        "train.kl_type": (
            "objective.kl.divergence: velocity_mse for v-based; gaussian, divided by the variance, for x-based"
        ),
        "train.kl_beta": "objective.kl.beta",
        "train.resolution": texts.SIZE,
        "train.num_inference_steps": texts.STEPS,
        "train.guidance_scale": texts.GUIDANCE,
        "train.per_device_batch_size": "policy.rollout_batch, policy.update_batch",
        "train.group_size": "rollout.group_size",
        "train.global_std": "advantage.scale: batch, or group for false",
        "train.unique_sample_num_per_epoch": "rollout.prompts_per_step",
        "train.gradient_step_per_epoch": "update.minibatches",
        "train.num_inner_epochs": "update.epochs",
        "train.learning_rate": "update.optimizer.lr",
        "train.adam_betas": "update.optimizer.betas",
        "train.adam_weight_decay": "update.optimizer.weight_decay",
        "train.adam_epsilon": "update.optimizer.eps",
        "train.max_grad_norm": "update.optimizer.max_grad_norm",
        "train.ema_decay": "update.ema.decay",
        "train.ema_update_interval": "update.ema.every",
        "train.enable_gradient_checkpointing": "policy.gradient_checkpointing",
        "scheduler.dynamics_type": "policy.sampler: flow_sde, dance_sde or cps",
        "scheduler.noise_level": "policy.strength",
        "scheduler.num_sde_steps": texts.SUBSET,
        "scheduler.sde_steps": texts.SUBSET,
        "eval.eval_freq": "evaluation.every",
        "eval.resolution": "policy.evaluation_call: {height: SIZE, width: SIZE}",
        "eval.num_inference_steps": texts.EVALUATION_STEPS,
        "eval.guidance_scale": "policy.evaluation_call: {guidance_scale: NUMBER}",
        "eval.seed": "evaluation.seed",
        "rewards.reward_model": "rewards[].name",
        "eval_rewards": "evaluation.rewards",
    },
    replacements={
        "train.trainer_type": (
            "a method in include: methods/flow-grpo, methods/diffusion-nft, methods/awm, methods/dgpo, methods/crd or "
            "methods/tdm-r1"
        ),
        "model.model_type": texts.CLASS,
        "train.gradient_accumulation_steps": "update.minibatches, the number of updates",
        "train.ref_param_device": "leave it out: the reference of a LoRA run is the model without adapters",
        "train.ema_device": "leave it out: the average is in the memory of the device",
        "num_processes": "`mmgrpo train --processes N`",
        "config_file": "`mmgrpo train --accelerate gpus`, fsdp2, zero2 or zero3",
        "data.preprocessing_batch_size": "leave it out: texts are encoded when they are sampled, and kept in a cache",
        "data.force_reprocess": "leave it out: rows are read when the run starts",
        "data.sampler_type": "leave it out: each process has complete groups",
        "log.save_model_only": "leave it out: a checkpoint has the full state; `mmgrpo export RUN` writes the model",
    },
    rewards={
        "PickScore": "{name: pick_score}",
        "PickScore_Rank": "{name: pairwise_win_rate, of: pick_score}",
        "CLIP": "{name: clip_score}",
        "CLAP": "{name: clap_score}",
        "OCR": "{name: ocr_accuracy}",
        "vllm_evaluate": "{name: api_judge}, at the address of its server",
    },
)
