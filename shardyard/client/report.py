"""Split reports for programs: numbers, tables, text and pictures."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardyard.contract.hardware import DeviceHardware
from shardyard.contract.report import (
    Balance,
    DeviceMeasures,
    Finding,
    NodeMeasures,
    Pattern,
    PredictionCheck,
    PrimitiveTimings,
    Report,
    ReportDevice,
    SplitWeights,
    Timing,
    WhatIf,
    decode_report,
    encode_report,
)
from shardyard.contract.report_diff import ReportDiff, compare_reports
from shardyard.render import report_text

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

#: Width in columns of a report as text, by default.
WIDTH = 100


class SplitReport:
    """What each device got of every batch, what it cost there, and what to change.

    It is a value: `job.report()` gives a newer one. In a notebook it shows itself as the picture.
    """

    __slots__ = ("data",)

    def __init__(self, data: Report) -> None:
        self.data = data

    @classmethod
    def from_json(cls, body: bytes | str) -> "SplitReport":
        """A report that was stored as JSON, for example by `shardyard splits --json`. Raises ValueError."""
        return cls(decode_report(body.encode() if isinstance(body, str) else body))

    def to_json(self) -> bytes:
        return encode_report(self.data)

    @property
    def job_id(self) -> str:
        return self.data.job_id

    @property
    def attempt(self) -> int:
        return self.data.attempt

    @property
    def final(self) -> bool:
        """Whether the attempt has ended and the report is complete."""
        return self.data.final

    @property
    def strategy(self) -> str:
        return self.data.strategy

    @property
    def rehearsal(self) -> bool:
        return self.data.rehearsal

    @property
    def devices(self) -> tuple[ReportDevice, ...]:
        return self.data.devices

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Every way in which a batch was divided, with the steps that were divided that way."""
        return self.data.patterns

    @property
    def hardware(self) -> tuple[DeviceHardware, ...]:
        return self.data.hardware

    @property
    def per_device(self) -> tuple[DeviceMeasures, ...]:
        return self.data.per_device

    @property
    def per_node(self) -> tuple[NodeMeasures, ...]:
        """What the devices of each node did together; empty where the attempt has one node."""
        return self.data.per_node

    @property
    def primitives(self) -> PrimitiveTimings | None:
        return self.data.primitives

    @property
    def balance(self) -> Balance:
        return self.data.balance

    @property
    def what_if(self) -> WhatIf | None:
        """What the run would take if all devices were alike."""
        return self.data.what_if

    @property
    def weights(self) -> SplitWeights | None:
        """The effect of dividing rows by weights; `None` where all devices have the same."""
        return self.data.weights

    @property
    def verdict(self) -> str:
        """One sentence on the whole run."""
        return self.data.verdict

    @property
    def prediction(self) -> PredictionCheck:
        return self.data.prediction

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.data.findings

    @property
    def notes(self) -> Mapping[str, str]:
        """Why a number is null, or what it includes, by the path of the field."""
        return self.data.notes

    def diff(self, other: "SplitReport") -> ReportDiff:
        """This report compared with another one, of any job."""
        return compare_reports(self.data, other.data)

    def text(self, width: int = WIDTH, *, notes: bool = False) -> str:
        """The report as text of at most `width` columns (at least 80); with `notes`, why numbers are missing too."""
        return report_text.render_report(self.data, width, notes=notes)

    def html(self) -> str:
        """One complete HTML page, to store or to send."""
        from shardyard.render.svg.report_page import report_page

        return str(report_page(self.data))

    def svg(self) -> str:
        """The heat map: devices across, ways to divide a batch down."""
        from shardyard.render.svg.heat_map import draw_heat_map
        from shardyard.render.svg.svg import PictureFrame

        frame = PictureFrame(ids=f"sy-{self.job_id[-12:]}-{self.attempt}")  # a notebook shows several on one page
        return str(draw_heat_map(self.data, frame=frame))

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each device, indexed by `device`; of times the columns end in `_total`, `_p50` and `_p95`.

        Raises:
            ImportError: pandas is not installed.
        """
        return _frame("to_pandas", [self._device_row(one) for one in self.per_device], "device")

    def patterns_to_pandas(self) -> "pandas.DataFrame":
        """A row for each pattern and device: phase, module, batch_rows, steps, first_step, last_step, device, rows.

        Raises:
            ImportError: pandas is not installed.
        """
        rows = [
            {name: getattr(pattern, name) for name in _PATTERN_COLUMNS}
            | {"pattern": number, "device": device, "rows": count}
            for number, pattern in enumerate(self.patterns)
            for device, count in enumerate(pattern.rows or ())
        ]
        return _frame("patterns_to_pandas", rows, None)

    def _device_row(self, measures: DeviceMeasures) -> dict[str, Any]:
        who = next((one for one in self.devices if one.device == measures.device), None)
        row: dict[str, Any] = {"id": None if who is None else who.id, "node": None if who is None else who.node}
        for name in DeviceMeasures.__struct_fields__:
            value = getattr(measures, name)
            if name in _TIMES:
                row |= {f"{name}_{part}": getattr(value, part, None) for part in Timing.__struct_fields__}
            else:
                row[name] = value
        return row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SplitReport) and self.data == other.data

    def __hash__(self) -> int:
        return hash((self.job_id, self.attempt, self.final))

    def __repr__(self) -> str:
        end = "final" if self.final else "so far"
        found = ", ".join(finding.code for finding in self.findings) or "no findings"
        return (
            f"<SplitReport of job {self.job_id}, attempt {self.attempt}, {end}: {self.strategy} on "
            f"{len(self.devices)} devices, {len(self.patterns)} patterns, {found}>"
        )

    def __str__(self) -> str:
        return self.text()

    def __rich__(self) -> Any:
        from rich.text import Text

        return Text(self.text())

    def _repr_html_(self) -> str:
        return self.svg()


_TIMES = ("forward_ms", "backward_ms", "data_wait_ms", "comm_ms", "optimizer_ms", "other_ms")
_PATTERN_COLUMNS = ("phase", "module", "batch_rows", "steps", "first_step", "last_step")


def _frame(method: str, rows: list[dict[str, Any]], index: str | None) -> "pandas.DataFrame":
    try:
        import pandas
    except ImportError as error:
        raise ImportError(f"SplitReport.{method}() needs pandas: pip install pandas") from error
    frame = pandas.DataFrame(rows)
    return frame if index is None or frame.empty else frame.set_index(index)
