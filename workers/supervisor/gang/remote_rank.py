"""A rank on another node, as its leader sees it: the same handle as that of a rank here, over the link to its node."""

from collections.abc import Callable
from dataclasses import dataclass

from workers.rank.handle import RankHandle
from workers.runtime.launch import StartMessage
from workers.supervisor.link.messages import CallsRequest, Message, RankCommand, RankEnded, RankSignal, ShowProfile

#: The descriptors of a rank that is not here.
NO_FD = -1


@dataclass(slots=True, kw_only=True)
class RemoteRank(RankHandle):
    """`send` takes messages for its node. `is_first`: what all ranks of a node are told goes to this one."""

    send: Callable[[Message], None]
    is_first: bool

    def start_program(self, start_message: StartMessage) -> None:
        """It is started by its own supervisor (`Followers.start_ranks`)."""

    def send_command(self, command: bytes) -> None:
        self.send(RankCommand(self.number, command))

    def kill(self, number: int) -> None:
        if self.is_alive:
            self.send(RankSignal(self.number, number))

    def show_profile(self, number: int, steps: int) -> None:
        if self.is_first:
            self.send(ShowProfile(number, steps))

    def request_calls(self, number: int) -> None:
        if self.is_first:
            self.send(CallsRequest(number))

    @property
    def is_dying(self) -> bool:
        return False  # its own supervisor would know

    @property
    def is_stopped(self) -> bool:
        return False

    @property
    def has_working_children(self) -> bool:
        return False

    def reap(self) -> bool:
        return self.status is not None

    def end(self, message: RankEnded) -> None:
        self.status, self.children_seconds = message.status, message.children_seconds
        self.out_of_memory = message.out_of_memory


def make_rank(number: int, node: str, send: Callable[[Message], None], *, is_first: bool) -> RemoteRank:
    """The handle of a rank elsewhere, whose output never comes here."""
    return RemoteRank(number, 0, NO_FD, NO_FD, NO_FD, NO_FD, NO_FD, [], node=node, send=send, is_first=is_first)
