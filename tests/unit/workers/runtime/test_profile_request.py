"""The memory in which ranks are asked for a profile."""

import os

from workers.runtime import profile_request


def test_a_request_is_seen_through_the_mapping_which_keeps_no_file_open() -> None:
    fd = profile_request.create_request()
    copy = os.dup(fd)
    before = len(os.listdir("/proc/self/fd"))
    seen = profile_request.map_request(copy)
    assert len(os.listdir("/proc/self/fd")) == before - 1, "its copy is closed, and no other was opened"
    assert (seen[0], seen[1]) == (0, 0)
    profile_request.show_request(fd, 7, 3)
    assert (seen[0], seen[1]) == (7, 3)
    os.close(fd)


def test_a_rank_whose_descriptor_is_gone_cannot_be_asked() -> None:
    assert profile_request.map_request(-1) is profile_request.NO_REQUEST


def test_scripts_are_held_and_let_go_whatever_else_is_asked() -> None:
    fd = profile_request.create_request()
    seen = profile_request.map_request(os.dup(fd))
    profile_request.show_request(fd, 3, 5)
    assert seen[profile_request.HOLD] == 0
    profile_request.hold_saves(fd, True)
    assert (seen[profile_request.HOLD], seen[profile_request.NUMBER]) == (1, 3)
    profile_request.hold_saves(fd, False)
    assert seen[profile_request.HOLD] == 0
    os.close(fd)
