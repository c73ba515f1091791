"""The contract between the engine and anything that generates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh

    from mmgrpo.types import Evaluation, Example, Given, Plan, Prompt, Rollout, Sample, SupervisedLoss
    from mmgrpo.values import Value


class Policy(ABC):
    """Something that draws samples by a chain of decisions and can say again how likely each decision was."""

    @abstractmethod
    def rollout(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan | None = None) -> Rollout:
        """Draws ``group_size`` samples per prompt; every random number is keyed by (seed, prompt id, member, decision).

        Args:
            prompts: P prompts; the rollout holds their members, prompt-major: B = P * group_size, unless the plan
                names other members.
            group_size: members per prompt.
            seed: the step's seed; the same seed and weights give the same samples however they are batched.
            plan: which decisions are stochastic and what the group shares; None draws every decision independently.

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
        """Streams the log-probabilities of the rollout's unmasked decisions under the weights of now.

        Every decision of the asked-for rows that ``rollout.mask_BT`` keeps appears in exactly one slice. A slice
        carries a graph where grad is enabled; it may be backwarded and dropped before the next one is asked for, so
        memory does not grow with T.

        Args:
            rollout: what to score, as this policy drew it.
            rows: indices along B; None means all.
            values: what else to give of every decision, each in every slice; nothing else is computed.

        Returns:
            An iterator over slices.

        Raises:
            ConfigError: a value that this policy does not have, or not of this rollout.
        """

    @abstractmethod
    def reference(self) -> AbstractContextManager[None]:
        """Within the context the policy is the frozen reference: the adapter off, or the frozen copy."""

    @property
    @abstractmethod
    def trainable(self) -> list[nn.Parameter]:
        """The parameters that training changes, in a fixed order."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Writes the trained weights, in the form the model's own library loads, into an existing directory."""

    @abstractmethod
    def load(self, directory: Path) -> None:
        """Restores what ``save`` wrote."""


class SupportsSupervisedLoss(ABC):
    """A policy that can also be taught from examples, for the warm-up stage."""

    @abstractmethod
    def supervised_loss(self, examples: Sequence[Example], *, seeds: Sequence[int]) -> SupervisedLoss:
        """Mean loss of a batch of examples, with grad: flow matching for denoisers, cross-entropy for tokens.

        Args:
            examples: prompts with the target the policy should produce.
            seeds: one per example, of whatever noise its loss takes.

        Returns:
            The mean, with grad, and how many terms it is over.
        """


class SupportsPromptCheck(ABC):
    """A policy that does not take every prompt, and tells before it samples."""

    @abstractmethod
    def check_prompt(self, prompt: Prompt) -> None:
        """Called for each prompt where such rows are to be skipped, ``prompts.when_unreadable: skip``.

        Args:
            prompt: of the data.

        Raises:
            DataError: the policy cannot take it: it is too long, or an image has a shape that is not supported.
        """


class SupportsWindows(ABC):
    """A policy whose samples all take the same, known number of decisions, so that windows can be laid over them."""

    @property
    @abstractmethod
    def num_decisions(self) -> int:
        """How many decisions of a sample can be stochastic: indices 0 to num_decisions - 1."""


class SupportsResolvedSettings(ABC):
    """A policy that decides for itself what its settings leave open, and says so."""

    @property
    @abstractmethod
    def resolved_settings(self) -> tuple[str, ...]:
        """What it decided, a sentence each, for people."""


class SupportsUnbatchedRows(ABC):
    """A policy that measures whether its rows depend on their batch, and can run each row in a call of its own."""

    @abstractmethod
    def disable_row_batching(self) -> None:
        """Runs every row alone from here on: another process of the job measured that rows depend on their batch."""


class SupportsOffPolicyScoring(ABC):
    """A policy that makes decisions of samples it did not draw: answers of others, replayed rows, final pictures."""

    @abstractmethod
    def read(self, given: Sequence[Given], *, seed: int, plan: Plan | None = None) -> Rollout:
        """The rows that the samples make, to be scored and trained on as drawn ones are.

        Args:
            given: B samples; each one's prompt is what the policy is shown, its group and member key the noise. One
                with a record (``Rollout.given``) becomes a row of the same decisions as it was, scored under the same
                settings.
            seed: of whatever noise reading takes, keyed as in a rollout.
            plan: as of a rollout; whose members and prompts are those of the samples.

        Returns:
            A row of each sample, in their order; ``old_logprob_BT`` as given, or the policy's own of now.
        """


class SupportsPromptOverride(ABC):
    """A policy that says of decisions how likely they are behind other prompts than they were taken behind."""

    @abstractmethod
    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """The same decisions, each row's behind another prompt.

        Args:
            rollout: of this policy, or of another that takes the same decisions.
            prompts: one per row, in their order; rows that are shown the very same object may share its states.

        Returns:
            A rollout for ``evaluate`` alone, of the same rows and columns; old_logprob_BT stays what it was.

        Raises:
            ConfigError: decisions that cannot be looked at so.
        """


class Critic(ABC):
    """What is learnt beside a policy of the states that it takes its decisions in."""

    @abstractmethod
    def evaluate(
        self, rollout: Rollout, rows: Sequence[int] | Tensor | None = None, *, values: Collection[Value] = ()
    ) -> Iterator[Evaluation]:
        """Streams what it expects of the rewards to come, in slices as those of ``Policy.evaluate``.

        Args:
            rollout: that ``behind`` gave.
            rows: indices along B; None means all.
            values: ``VALUE``, in each state before its decision, with grad where grad is enabled.

        Returns:
            An iterator over slices, whose log-probabilities are 0: it takes no decisions.
        """

    @abstractmethod
    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """The decisions of a policy as the critic reads them, as ``SupportsPromptOverride.override_prompts``."""

    @property
    @abstractmethod
    def trainable(self) -> list[nn.Parameter]:
        """The parameters that training changes, in a fixed order."""


class SupportsCritic(ABC):
    """A policy whose model can be made a critic."""

    @abstractmethod
    def critic(self) -> Critic:
        """A critic over the model, which is the policy's no longer; it expects 0 before its first update."""


class SupportsTextOffsets(ABC):
    """A policy whose decisions write a text piece by piece, so that what is said of a piece is said of decisions."""

    @abstractmethod
    def text_offsets(self, sample: Sample) -> Sequence[int]:
        """How many characters of ``Sample.text`` there are after each decision of the sample.

        Args:
            sample: as a rollout of this policy holds it.

        Returns:
            A number for each decision, never lower than the one before it.
        """


class SupportsNamedWeights(ABC):
    """A policy that keeps weights under names beside those it trains: moving references, averages, snapshots."""

    @abstractmethod
    def keep(self, name: str, *, decay: float = 0.0) -> None:
        """Keeps the weights of now under a name: kept = decay * kept + (1 - decay) * now.

        A name that is new begins as the weights of now, whatever the decay; ``reference`` is there from the beginning,
        as the policy before its first update.
        """

    @abstractmethod
    def using(self, name: str) -> AbstractContextManager[None]:
        """Within the context the policy has the kept weights, frozen; ``reference`` is there from the beginning."""


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Of a call: by place and by name."""


class ModuleSharder(Protocol):
    """Shards a module in place: its weights are gathered where it is called, always as a whole and as a module.

    A collective. Its trained parameters lie in parts from then on, if all of it is trained, and so do their gradients,
    which are those of all processes; what carries an adapter is sharded but for that.
    """

    def __call__(
        self,
        name: str,
        module: nn.Module,
        *,
        empty: Callable[[], Arguments] | None = None,
        within: nn.Module | None = None,
    ) -> None:
        """Shards it.

        Args:
            name: of the module, for messages.
            module: whose parameters are sharded.
            empty: arguments of a call that is made for other processes' sake; None: those of the last call.
            within: the module that it is a part of and that is saved as one; None: itself.
        """
        ...


class SupportsSharding(ABC):
    """A policy whose modules can lie in parts on the processes of a run."""

    @abstractmethod
    def shard(self, shard: ModuleSharder) -> None:
        """Has the modules that are worth it sharded, before anything is drawn.

        Args:
            shard: shards one in place.
        """


class SupportsContextParallel(ABC):
    """A policy of which several processes can call a module together, each with a share of every row's sequence."""

    @abstractmethod
    def enable_context_parallel(self, mesh: DeviceMesh) -> None:
        """Has the modules that are trained, and copies of them, split their sequences, before anything is drawn.

        From then on the processes that share a sequence make the same calls; what they get is whole, and gradients of
        trained parameters add up over them to those of one process.

        Args:
            mesh: of all processes, with the axes ``ring`` and ``ulysses``; along the latter lie those that share one.

        Raises:
            ConfigError: a module cannot be split.
        """


class SupportsExport(ABC):
    """A policy whose whole model can be had as its own library writes it."""

    @abstractmethod
    def export(self, directory: Path, *, dtype: str | None = None) -> None:
        """Writes model and processor, or the pipeline, for ``from_pretrained``, adapters made part of its weights.

        The policy is of no use after that.

        Args:
            directory: an existing folder.
            dtype: of the trained model, ``float32`` or ``bfloat16``; None: that in which it was loaded.

        Raises:
            ConfigError: there is no library that would read it.
        """


class SupportsPreviews(ABC):
    """A policy whose samples are neither texts nor pictures, and which makes pictures of them for people."""

    @abstractmethod
    def preview(self, sample: Sample) -> Sample:
        """The sample with a picture, or frames, of what it is; asked of those that are kept, never before rewards.

        Args:
            sample: as a rollout of this policy holds it.

        Returns:
            The same with ``image`` or ``video``, for the report, the trackers and contact sheets.
        """


class SupportsTraceConcat(ABC):
    """A policy that scores rows of several rollouts together, so that what they share is computed once."""

    @abstractmethod
    def concat_traces(self, traces: Sequence[Any]) -> Any:
        """One trace of the rows of several, one after the other.

        Args:
            traces: of rollouts of this policy.

        Returns:
            The trace of a rollout of all their rows, which keeps nothing that is there for going on from them.
        """
