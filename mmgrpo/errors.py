"""Every error this package raises on purpose.

Each class is also the standard-library class it refines, so callers may catch either. A message says what came, what
is allowed and what to change. To add one: subclass ``MmgrpoError`` and the closest built-in, one line of docstring.
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
    """An optional package that the asked-for feature needs is not installed."""


class ShapeError(MmgrpoError, ValueError):
    """A tensor whose shape, dtype or values break a contract."""


class DataError(MmgrpoError, ValueError):
    """Prompts or samples that cannot be used."""


class RewardError(MmgrpoError, RuntimeError):
    """Rewards that failed on more samples than the run allows."""


class NonFiniteError(MmgrpoError, FloatingPointError):
    """Gradients or weights that are infinite or no numbers, more often than the run allows."""


class PolicyError(MmgrpoError, RuntimeError):
    """A policy that cannot do what was asked of it."""


class ReplayError(PolicyError):
    """A pipeline whose recorded decisions cannot be scored again exactly."""


class CheckpointError(MmgrpoError, RuntimeError):
    """A checkpoint that is missing, incomplete or of another run."""


class OutOfMemoryError(MmgrpoError, MemoryError):
    """Memory, of the machine or of the accelerator, that did not suffice."""


class ProcessLostError(MmgrpoError, ConnectionError):
    """Another process of the job, without which this one cannot go on."""


class OutputError(MmgrpoError, OSError):
    """A file or folder of the run that cannot be written."""
