"""Records of what a probe sees in a program that it did not write: its groups, wrappers, data and gradients.

They are sent, bounded and extended as all records (`jobs.protocol.records`).
"""

from typing import Annotated

import msgspec

from jobs.protocol.records import Count, Numbers, Record

Checksums = Annotated[tuple[int, ...], msgspec.Meta(max_length=16)]
Contents = Annotated[tuple[Checksums, ...], msgspec.Meta(max_length=1024)]


class Joining(Record, frozen=True):
    """The process has called `init_process_group`, which returns when all ranks have."""

    at: float


class Group(Record, frozen=True):
    """The process has joined a process group (the default one), whatever its environment says."""

    rank: int
    world_size: int
    backend: str


class Wrapped(Record, frozen=True):
    """A module was wrapped. `kind` is the wrapper's class, as torch calls it; `inside` that of the module."""

    kind: str  # DataParallel | DistributedDataParallel | FullyShardedDataParallel | fully_shard | parallelize_module
    inside: str
    devices: Numbers = ()
    gradient_bytes: int | None = None  # of its parameters, where the wrapper reduces them


class LoaderOpened(Record, frozen=True):
    """The first pass over a DataLoader begins. `loader` is its number, as in `Loaded`."""

    loader: int
    num_workers: int


class Loaded(Record, frozen=True):
    """One pass over a DataLoader has ended, or was left.

    `digest` is a number made of the indices that the sampler gave, whatever their order: two ranks
    with the same digest and rows went over the same rows. It is `None` where there are no indices.
    `replicas` and `replica` are a DistributedSampler's, or what sharded the loader in its place.
    """

    loader: int
    number: int  # of the pass over this loader, from 0
    batches: int
    rows: int | None
    dataset_rows: int | None
    batch_size: int | None
    sampler: str
    replicas: int | None
    replica: int | None
    digest: int | None
    complete: bool
    trained: bool  # optimizer steps took place meanwhile
    contents: Contents = ()  # of its first rows: the index, and checksums of what the row holds
    shuffles: bool | None = None  # what a DistributedSampler of torch was told
    sampler_number: int | None = None  # of that sampler within the process: passes may be over the same one
    forwards: int = 0  # of models, meanwhile
    began_at: float = 0.0  # seconds since the epoch; 0: not known
    seconds: float = 0.0  # until its last batch was asked for in vain; 0 where it was left early
    first_batches: Checksums = ()  # checksums of those of an iterable data set


class Activity(Record, frozen=True):
    """What a process did in all, counted by its probe up to now. The latest counts."""

    forwards: Count
    backwards: Count
    steps: Count
    reductions: Count  # collectives that add up or average tensors, called by the program itself once it trains
    exchanges: Count = 0  # other collectives, and messages, by which tensors travel between its processes
    gathers: Count = 0  # collectives that bring tensors of all ranks together, called during an evaluation or after it
    evaluation_sums: Count = 0  # those that add up tensors of any size, called there


class Noise(Record, frozen=True):
    """From what state of the random generator the first training forward of a process begins, as a checksum, and
    whether its model drops units at random."""

    state: int
    drops_out: bool


class LossWeight(msgspec.Struct, frozen=True, array_like=True):
    """One backward: the rows before it, the elements of its target that count, and what each weighs in the loss."""

    rows: int | None
    elements: float
    weight: float


class LossWeights(Record, frozen=True):
    """The first backwards of a process."""

    backwards: Annotated[tuple[LossWeight, ...], msgspec.Meta(max_length=256)]


class GradientSync(Record, frozen=True):
    """How the gradients of one DistributedDataParallel were synchronised up to now; `number` tells those of a process
    apart, and the latest record of each counts.

    `unsynchronised` are the steps of an optimizer before which the last backward did not reduce gradients. `repeated`
    are those with several backwards that did, `reductions` of them in all, while gradients were only added up in
    between. `exchanged` are the numbers that the program itself has exchanged with other processes while it trained.
    """

    number: int
    inside: str  # class of the module
    unsynchronised: int
    first_unsynchronised: int | None  # the step
    repeated: int
    reductions: int
    gradient_bytes: int  # of one reduction
    trained_numbers: int  # in all parameters that are trained
    exchanged: int


class LossForm(Record, frozen=True):
    """How the loss of a batch of so many rows is made of them: `kind` is what is done with the rows (mean, sum, none or
    unknown), `factors` what the loss is multiplied with. `gathered` is the number of devices whose losses are averaged
    or added up, 0 where there is one loss."""

    rows: int
    kind: str
    factors: Annotated[tuple[float, ...], msgspec.Meta(max_length=64)]
    gathered: int


class NormLayers(Record, frozen=True):
    """A model has so many BatchNorm layers that take their statistics from each device alone. `values_per_row` are the
    values of each row, in a channel, of the layer that has the fewest; `None` where that is not known."""

    module: str  # dotted path of the wrapped sub-module, "" for the whole model
    inside: str  # class of the module
    layers: int
    values_per_row: int | None = None


class ParameterSearch(Record, frozen=True):
    """A DistributedDataParallel searches for unused parameters. In `looks` of its `reductions` every parameter had a
    gradient; `needed` says that in some one had none."""

    number: int
    inside: str  # class of the module
    looks: int
    reductions: int
    needed: bool
