"""TRL's interface: ``from mmgrpo.trl import GRPOConfig, GRPOTrainer`` in place of ``from trl import ...``."""

from typing import TYPE_CHECKING

from mmgrpo.system.lazy import exports

if TYPE_CHECKING:
    from mmgrpo.trl.arguments import GRPOConfig
    from mmgrpo.trl.trainer import GRPOTrainer

__all__ = ["GRPOConfig", "GRPOTrainer"]

__getattr__ = exports(__name__, {"GRPOConfig": "mmgrpo.trl.arguments", "GRPOTrainer": "mmgrpo.trl.trainer"})
