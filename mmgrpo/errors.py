"""The exceptions of this package.

Each class is also the standard-library class it refines, so callers may catch either. A message contains the received
value, the allowed values and a suggested fix. To add one: subclass ``MmgrpoError`` and the closest built-in, with a
docstring of one line.
"""


class MmgrpoError(Exception):
    """Base of every error raised on purpose by mmgrpo."""


class ConfigError(MmgrpoError, ValueError):
    """A run configuration that cannot be used as written."""


class UnknownNameError(ConfigError, KeyError):
    """A name that no registry entry, config key or file carries."""

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0])


class MissingPackageError(MmgrpoError, ImportError):
    """An optional package that a requested feature needs is not installed."""


class ShapeError(MmgrpoError, ValueError):
    """A tensor with a shape, dtype or values that violate a contract."""


class DataError(MmgrpoError, ValueError):
    """Prompts or samples that cannot be used."""


class RewardError(MmgrpoError, RuntimeError):
    """Rewards that failed on more samples than the run allows."""


class NonFiniteError(MmgrpoError, FloatingPointError):
    """Gradients or weights that are infinite or no numbers, more often than the run allows."""


class PolicyError(MmgrpoError, RuntimeError):
    """A policy that does not support a requested operation."""


class ReplayError(PolicyError):
    """A pipeline that cannot score its recorded decisions again exactly."""


class CheckpointError(MmgrpoError, RuntimeError):
    """A checkpoint that is missing, incomplete or of another run."""


class OutOfMemoryError(MmgrpoError, MemoryError):
    """Memory, of the machine or of the accelerator, that did not suffice."""


class ProcessLostError(MmgrpoError, ConnectionError):
    """Another process of the job ended, and this one cannot continue without it."""


class EngineError(MmgrpoError, ConnectionError):
    """An inference engine that does not answer, or that samples with other weights than the trained ones."""


class StepError(MmgrpoError, RuntimeError):
    """A phase of a step that was called before the earlier ones were complete."""


class OutputError(MmgrpoError, OSError):
    """A file or folder of the run that cannot be written."""
