"""The contract between the engine and a generator: ``Policy``, and the optional contracts that each add a feature."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mmgrpo.values import REFERENCE

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh

    from mmgrpo.types import (
        Evaluation,
        Example,
        LogitsPart,
        OffPolicySample,
        Plan,
        Prompt,
        Rollout,
        Sample,
        SupervisedLoss,
    )
    from mmgrpo.values import Value


class Policy(ABC):
    """A generator that samples by a chain of decisions and can recompute the log-probability of each decision."""

    @abstractmethod
    def rollout(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan | None = None) -> Rollout:
        """Generates ``group_size`` samples per prompt; random numbers are keyed by (seed, prompt id, member, decision).

        Args:
            prompts: P prompts. The rollout holds their members, prompt-major: B = P * group_size, unless the plan
                names other members.
            group_size: members per prompt.
            seed: the step's seed; the same seed and weights give the same samples under any batching.
            plan: which decisions are stochastic and which randomness the group shares; None samples every decision
                independently.

        Returns:
            The samples with the log-probability of every stochastic decision.
        """

    @abstractmethod
    def evaluate(
        self,
        rollout: Rollout,
        rows: Sequence[int] | Tensor | None = None,
        *,
        values: Collection[Value] = (),
    ) -> Iterator[Evaluation]:
        """Streams the log-probabilities of the rollout's unmasked decisions under the current policy.

        Every decision of the requested rows that ``rollout.mask_BT`` keeps appears in exactly one slice. A slice
        carries a graph where grad is enabled. The caller may backpropagate and drop it before it requests the next
        one, so memory does not grow with T.

        Args:
            rollout: a rollout of this policy.
            rows: indices along B; None means all.
            values: further values per decision that each slice must hold; no other value is computed.

        Returns:
            An iterator over slices.

        Raises:
            ConfigError: the policy does not have a value, or not for this rollout.
        """

    @abstractmethod
    def reference(self) -> AbstractContextManager[None]:
        """A context in which the policy has the frozen reference weights: the adapter off, or the frozen copy."""

    @property
    @abstractmethod
    def trainable(self) -> list[nn.Parameter]:
        """The parameters that training changes, in a fixed order."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Writes the trained weights into an existing directory, in the format of the model's own library."""

    @abstractmethod
    def load(self, directory: Path) -> None:
        """Restores the files that ``save`` wrote."""


class NamedWeights(ABC):
    """The trained weights of a policy, and frozen weights under names: the reference, averages, snapshots."""

    @property
    @abstractmethod
    def trainable(self) -> list[nn.Parameter]:
        """The parameters that training changes, in a fixed order."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Writes the trained and the named weights into an existing directory."""

    @abstractmethod
    def load(self, directory: Path) -> None:
        """Restores the files that ``save`` wrote."""

    @abstractmethod
    def store(self, name: str, *, decay: float = 0.0) -> None:
        """Stores the current weights under a name: stored = decay * stored + (1 - decay) * current.

        A new name starts as the current weights, for any decay. ``reference`` always exists: it starts as the
        policy before its first update.

        Args:
            name: letters, digits, _ and -.
            decay: 0 to 1; 0 replaces the stored weights.

        Raises:
            ConfigError: the name or the decay is not allowed.
        """

    @abstractmethod
    def training(self, name: str, *, restart: bool = False) -> AbstractContextManager[None]:
        """A context in which weights of that name are trained in place of the policy's: a further weight set.

        Inside it ``trainable`` is that of the set, and its weights are the current ones, which ``store`` stores.

        Args:
            name: as of ``store``.
            restart: whether the set becomes the reference, which must be called before a new set is trained.

        Returns:
            The context manager.

        Raises:
            ConfigError: the name is not allowed, or the policy cannot have further trained weights.
        """

    @abstractmethod
    def using(self, name: str) -> AbstractContextManager[None]:
        """A context in which the policy has the weights of that name, frozen; ``reference`` always exists.

        Args:
            name: name of the weights, as passed to ``store``.

        Returns:
            The context manager.

        Raises:
            ConfigError: no weights have that name.
        """


class SupportsNamedWeights(Policy, ABC):
    """A policy that has its weights, trained and named, in one attribute.

    Attributes:
        weights: the trained weights and the named ones.
    """

    weights: NamedWeights

    @property
    def trainable(self) -> list[nn.Parameter]:
        """The trained parameters of ``weights``, in a fixed order."""
        return self.weights.trainable

    def reference(self) -> AbstractContextManager[None]:
        """``weights.using("reference")``."""
        return self.weights.using(REFERENCE)

    def save(self, directory: Path) -> None:
        """Writes ``weights`` into an existing directory."""
        self.weights.save(directory)

    def load(self, directory: Path) -> None:
        """Restores ``weights`` from the files that ``save`` wrote."""
        self.weights.load(directory)


class SupportsSupervisedLoss(ABC):
    """A policy that also trains on examples, for the warm-up and auxiliary losses."""

    @abstractmethod
    def supervised_loss(self, examples: Sequence[Example], *, seeds: Sequence[int]) -> SupervisedLoss:
        """Mean loss of a batch of examples, with grad: flow matching for denoisers, cross-entropy for tokens.

        Args:
            examples: prompts with the target of each.
            seeds: one per example, for the noise of its loss.

        Returns:
            The mean, with grad, and its number of terms.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """The run around an inference engine.

    Attributes:
        log: file for the output of a server that the run starts.
        is_main: whether this process starts the server and sends it weights.
        run_on_main: calls a function on the main process; returns its result on all.
        num_processes: number of processes that request samples.
    """

    log: Path
    is_main: bool
    run_on_main: Callable[[Callable[[], Any]], Any]
    num_processes: int = 1


class StartsServer(ABC):
    """An inference engine that may start its server for the run."""

    @abstractmethod
    def require_files(self) -> None:
        """Raises ConfigError if a program or a folder that it needs does not exist; called before a model is loaded."""


class SupportsEngine(ABC):
    """A policy whose samples an inference server can generate."""

    @property
    @abstractmethod
    def has_engine(self) -> bool:
        """Whether a server generates the samples: within ``use_engine``."""

    @abstractmethod
    def use_engine(self, engine: Any, context: EngineContext) -> AbstractContextManager[None]:
        """A context in which a server generates the samples of the current weights; the policy scores them.

        Args:
            engine: an ``mmgrpo.policies.engines.engine.Engine``.
            context: the run around it.

        Returns:
            The context. It raises ConfigError if the server cannot generate samples of this policy, and EngineError if
            it fails.
        """

    @abstractmethod
    def sample_ahead(
        self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan
    ) -> Callable[[], Mapping[str, Any]]:
        """Requests the completions of a later rollout, which the server samples with the current weights meanwhile.

        Args:
            prompts: of the rollout.
            group_size: of the rollout.
            seed: of the rollout.
            plan: of the rollout; it has no environment.

        Returns:
            A function that waits for the completions, and returns them for ``Plan.ahead`` of that rollout, in types
            that ``torch.load(weights_only=True)`` reads. It raises EngineError if the server fails. The weights of the
            server do not change before it returns.

        Raises:
            EngineError: the server does not have the current weights.
        """


class SupportsPromptCheck(ABC):
    """A policy that rejects some prompts, and can report them before it samples."""

    @abstractmethod
    def check_prompt(self, prompt: Prompt) -> None:
        """Checks a prompt; called for each prompt under ``prompts.on_error: skip``.

        Args:
            prompt: a prompt of the data.

        Raises:
            DataError: the policy cannot take the prompt: it is too long, or an image has an unsupported shape.
        """


class SupportsWindows(ABC):
    """A policy with the same number of decisions in all samples, known in advance, as ``rollout.window`` needs."""

    @property
    @abstractmethod
    def num_decisions(self) -> int:
        """How many decisions of a sample can be stochastic: indices 0 to num_decisions - 1."""


class SupportsResolvedSettings(ABC):
    """A policy that resolves settings that its configuration leaves open."""

    @property
    @abstractmethod
    def resolved_settings(self) -> tuple[str, ...]:
        """One sentence per resolved setting, for the doctor."""


class SupportsUnbatchedRows(ABC):
    """A policy that measures whether its rows depend on their batch, and can run each row in a separate call."""

    @abstractmethod
    def disable_row_batching(self) -> None:
        """Runs every row in a separate call from now on, because another process measured that rows depend on their
        batch."""


class SupportsFloat16(ABC):
    """A policy that may compute in float16, whose gradients underflow unless the loss is scaled."""

    @property
    @abstractmethod
    def is_float16(self) -> bool:
        """Whether it computes in float16."""


class SupportsOffPolicyScoring(ABC):
    """A policy that scores samples it did not generate: answers of other models, replayed rows, finished images."""

    @abstractmethod
    def read(self, samples: Sequence[OffPolicySample], *, seed: int, plan: Plan | None = None) -> Rollout:
        """Makes one row of decisions per sample, to be scored and trained on as sampled rows are.

        Args:
            samples: B samples. The policy conditions on the prompt of each; its group and member key the noise. A
                sample with a record (``Rollout.off_policy_sample``) becomes a row of the recorded decisions, scored
                under the recorded settings.
            seed: seed of the noise that scoring needs, keyed as in a rollout.
            plan: as of a rollout, except that members and prompts are those of the samples.

        Returns:
            One row per sample, in order; ``old_logprob_BT`` as in the sample, else computed by the current policy.
        """


class SupportsPromptOverride(ABC):
    """A policy that scores the decisions of a rollout under other prompts."""

    @abstractmethod
    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """The same decisions, each row under another prompt.

        Args:
            rollout: of this policy, or of another one that takes the same decisions.
            prompts: one per row, in row order; rows with the same prompt object may share its states.

        Returns:
            A rollout for ``evaluate`` only, with the same rows, columns and old_logprob_BT.

        Raises:
            ConfigError: the decisions cannot be scored under another prompt.
        """


class SupportsTokenLogits(ABC):
    """A policy of tokens that gives the logits of all tokens at decisions, a part of the decisions at a time."""

    @abstractmethod
    def token_logits(self, rollout: Rollout, rows: Sequence[int], mask_NT: Tensor) -> LogitsPart:
        """The logits at some decisions of a rollout, under the weights of the call.

        The states of the decisions are computed at once, their logits when they are requested.

        Args:
            rollout: of this policy, of ``override_prompts``, or of ``retokenize``.
            rows: N indices along B.
            mask_NT: bool, the decisions of these rows, which are numbered row by row.

        Returns:
            A function of consecutive decisions; zeros where the rollout of ``retokenize`` has none.
        """

    @abstractmethod
    def retokenize(
        self, rollout: Rollout, prompts: Sequence[Prompt], text_offsets_B: Sequence[Sequence[int]]
    ) -> Rollout:
        """The texts of another policy's decisions in the tokens of this policy.

        Args:
            rollout: of a policy with any tokenizer.
            prompts: one per row, as for ``override_prompts``.
            text_offsets_B: of each row, ``SupportsTextOffsets.text_offsets`` of that policy.

        Returns:
            A rollout for ``token_logits`` only, with the same rows and columns. Its mask_BT keeps the decisions at
            which a token of this policy begins too: both have read the same text.

        Raises:
            ConfigError: the rollout is no text, or a conversation.
        """


class Critic(ABC):
    """A value model: predicts the rewards to come in each state of a policy's rollout."""

    @abstractmethod
    def evaluate(
        self, rollout: Rollout, rows: Sequence[int] | Tensor | None = None, *, values: Collection[Value] = ()
    ) -> Iterator[Evaluation]:
        """Streams the predicted return, in slices like those of ``Policy.evaluate``.

        Args:
            rollout: a result of ``override_prompts``.
            rows: indices along B; None means all.
            values: ``VALUE``: the prediction in each state before its decision, with grad where grad is enabled.

        Returns:
            An iterator over slices, whose log-probabilities are 0: a critic takes no decisions.
        """

    @abstractmethod
    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """The decisions of a policy as input of the critic, as ``SupportsPromptOverride.override_prompts``."""

    @property
    @abstractmethod
    def trainable(self) -> list[nn.Parameter]:
        """The parameters that training changes, in a fixed order."""


class SupportsCritic(ABC):
    """A policy whose model can become a critic."""

    @abstractmethod
    def critic(self) -> Critic:
        """A critic that takes over the policy's model; it predicts 0 before its first update."""


class SupportsTextOffsets(ABC):
    """A policy whose decisions write a text piece by piece, so that spans of the text map to decisions."""

    @abstractmethod
    def text_offsets(self, sample: Sample) -> Sequence[int]:
        """The length of ``Sample.text``, in characters, after each decision of the sample.

        Args:
            sample: a sample of a rollout of this policy.

        Returns:
            One number per decision, non-decreasing.
        """


class SupportsPartialRollouts(ABC):
    """A policy of texts that samples some tokens of a row and continues it at a later step: ``Plan.token_window``."""

    @abstractmethod
    def check_window(self, window: int, settings: Mapping[str, Any]) -> None:
        """Checks a window before rows are sampled in it.

        Args:
            window: the maximum number of tokens that a row gets in a rollout.
            settings: sampling settings of the plan.

        Raises:
            ConfigError: no row would continue, or a row cannot continue under these settings.
        """


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""


class ModuleSharder(Protocol):
    """Shards a module in place; its weights are gathered where it is called, always as one module.

    A collective. If the module is trained in full, its trained parameters and their gradients are sharded from then
    on, and a gradient is the sum over all processes. Adapter parameters are not sharded.
    """

    def __call__(
        self,
        name: str,
        module: nn.Module,
        *,
        empty: Callable[[], Arguments] | None = None,
        within: nn.Module | None = None,
    ) -> None:
        """Shards the module.

        Args:
            name: name of the module, for messages.
            module: the module whose parameters are sharded.
            empty: returns arguments for a call that only serves other processes; None: those of the last call.
            within: the module that contains it and that is saved as one; None: itself.
        """
        ...


class SupportsSharding(ABC):
    """A policy whose modules can be sharded over the processes of a run."""

    @abstractmethod
    def shard(self, shard: ModuleSharder) -> None:
        """Shards the large modules; called before the first rollout.

        Args:
            shard: shards one module in place.
        """


class SupportsContextParallel(ABC):
    """A policy whose modules can run on several processes at once, each with a part of every row's sequence."""

    @abstractmethod
    def enable_context_parallel(self, mesh: DeviceMesh) -> None:
        """Splits the sequences of the trained modules and their copies; called before the first rollout.

        From then on the processes that share a sequence make the same calls and get full outputs; gradients of trained
        parameters sum over those processes to the gradient of one process.

        Args:
            mesh: all processes, with the axes ``ring`` and ``ulysses``; processes along ``ulysses`` share a sequence.

        Raises:
            ConfigError: a module cannot be split.
        """


class SupportsExport(ABC):
    """A policy that can write its full model in the format of its library."""

    @abstractmethod
    def export(self, directory: Path, *, dtype: str | None = None) -> None:
        """Writes model and processor, or the pipeline, for ``from_pretrained``, with adapters merged into its weights.

        The policy cannot be used afterwards.

        Args:
            directory: an existing folder.
            dtype: dtype of the trained model, ``float32`` or ``bfloat16``; None: the dtype in which it was loaded.

        Raises:
            ConfigError: no library could read the result.
        """


class SupportsPreviews(ABC):
    """A policy whose samples may be neither texts nor images, and which renders images of them for people."""

    @abstractmethod
    def preview(self, sample: Sample) -> Sample:
        """Adds a rendered image or video to a sample without one.

        Called for samples that are saved, never before rewards.

        Args:
            sample: a sample of a rollout of this policy.

        Returns:
            The sample with ``image`` or ``video``, for the report, the trackers and contact sheets.
        """


class SupportsTraceConcat(ABC):
    """A policy that scores rows of several rollouts together, so that shared states are computed once."""

    @abstractmethod
    def concat_traces(self, traces: Sequence[Any]) -> Any:
        """Concatenates traces along their rows.

        Args:
            traces: traces of rollouts of this policy.

        Returns:
            The trace of a rollout of all rows, without the data that only continuations need.
        """
