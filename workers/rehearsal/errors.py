"""What a rehearsal cannot do."""


class NotRehearsable(RuntimeError):
    """The program does something that has no meaning on virtual devices."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} cannot be rehearsed: this job runs on virtual devices, and there is no GPU behind them. "
            "Submit it without rehearsal to a pool with GPUs."
        )
