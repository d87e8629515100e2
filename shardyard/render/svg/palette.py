"""Colours and words of every picture, in light and in dark. The dashboard uses the same ones.

A colour is never the only mark: idle is hatched and says "idle", slow has an outline and says "slow", each part
of a bar has its name. Text has a contrast of at least 4.5 against its background, in both themes.
"""

from dataclasses import dataclass
from typing import Final, Literal

By = Literal["rows", "time", "wait", "memory"]

#: What the cells of a heat map show: the switch's values, in its order -> title and unit.
MEASURES: Final[dict[By, tuple[str, str]]] = {
    "rows": ("Rows of each device", "rows of one batch"),
    "time": ("Time of each device", "ms"),
    "wait": ("Waiting of each device", "ms"),
    "memory": ("Memory of each device", "bytes"),
}

#: Words that stand beside the marks.
IDLE: Final = "idle"
SLOW: Final = "slow"
OUTPUT: Final = "output"
NOT_MEASURED: Final = "not measured"

#: Steps of the scale of rows (and of every other number of a heat map). Level 0 is the least, the last one the most.
LEVELS: Final = 7


@dataclass(frozen=True, slots=True)
class ColourTheme:
    """`levels` and `level_inks`: fill, and text on it, from the least to the most. `idle` is the ground of the
    hatching and `idle_line` its lines."""

    ground: str
    panel: str
    ink: str
    muted: str
    rule: str
    levels: tuple[str, ...]
    level_inks: tuple[str, ...]
    idle: str
    idle_line: str
    idle_ink: str
    slow: str
    output: str
    warning: str
    info: str
    track: str


LIGHT: Final = ColourTheme(
    ground="#ffffff",
    panel="#f6f8fa",
    ink="#16202c",
    muted="#566270",
    rule="#d5dbe2",
    levels=("#e8f1fb", "#cde0f5", "#abcaec", "#82afe0", "#5b93d3", "#2f6bb3", "#174a86"),
    level_inks=("#0b1726",) * 5 + ("#ffffff",) * 2,
    idle="#eef0f3",
    idle_line="#b9c1cb",
    idle_ink="#3a424d",
    slow="#b45309",
    output="#0f766e",
    warning="#a34a08",
    info="#1f5fa8",
    track="#e6eaef",
)

DARK: Final = ColourTheme(
    ground="#11161d",
    panel="#1a212b",
    ink="#e6ebf1",
    muted="#9aa7b6",
    rule="#323c49",
    levels=("#19293c", "#1d3857", "#234a75", "#2c5f97", "#5c93d2", "#86b3e6", "#b7d5f6"),
    level_inks=("#e6ebf1",) * 4 + ("#0b1726",) * 3,
    idle="#232932",
    idle_line="#465161",
    idle_ink="#c9d1db",
    slow="#fbbf24",
    output="#2dd4bf",
    warning="#fbbf24",
    info="#8ab8ef",
    track="#2a323d",
)


@dataclass(frozen=True, slots=True)
class BarPart:
    """One part of a stacked bar: the field of the report, its name, its colours and the text on them."""

    field: str
    name: str
    light: str
    dark: str
    light_ink: str = "#ffffff"
    dark_ink: str = "#0b1726"


#: DataParallel's four steps, in the order in which they run.
PRIMITIVES: Final = (
    BarPart("replicate_ms", "replicate", "#6d4fb8", "#a68ee3"),
    BarPart("scatter_ms", "scatter", "#0b7a6f", "#2bbdab"),
    BarPart("parallel_apply_ms", "parallel_apply", "#2f6bb3", "#5c93d2"),
    BarPart("gather_ms", "gather", "#b03a75", "#e07fae"),
)

#: What a device's time goes into, in the order in which it comes: `shardyard.contract.report.TIME_PARTS`.
TIMES: Final = (
    BarPart("data_wait_ms", "data wait", "#b4bdc8", "#4d5967", light_ink="#0b1726", dark_ink="#ffffff"),
    BarPart("forward_ms", "forward", "#2f6bb3", "#5c93d2"),
    BarPart("backward_ms", "backward", "#6d4fb8", "#a68ee3"),
    BarPart("comm_ms", "communication", "#0b7a6f", "#2bbdab"),
    BarPart("optimizer_ms", "optimizer", "#b03a75", "#e07fae"),
    BarPart("other_ms", "other", "#dfe3e8", "#39434f", light_ink="#0b1726", dark_ink="#ffffff"),
)

MEMORY: Final = BarPart("memory_peak_bytes", "peak memory", "#2f6bb3", "#5c93d2")

PARTS: Final = (*PRIMITIVES, *TIMES, MEMORY)
