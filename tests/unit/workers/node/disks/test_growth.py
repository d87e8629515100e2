from jobs.store import AttemptId
from jobs.support.disk_space import DiskSpace
from workers.node.disks.growth import REPORT_SECONDS, WINDOW_SECONDS, Growth, GrowthHistory
from workers.runtime.disk_ledger import DiskUsage

BOMB, TRAINING = AttemptId("mallory", "bomb", 1), AttemptId("alice", "training", 1)
RESERVE = 1000


def space(free: int, *, device: int = 1, free_files: int = 500) -> DiskSpace:
    return DiskSpace("storage", device, free, RESERVE, free_files, 100)


def history(*readings: tuple[float, int, dict[AttemptId, int]]) -> GrowthHistory:
    """Of (time, free bytes, bytes of each attempt)."""
    found = GrowthHistory()
    for at, free, used in readings:
        found.add(at, [space(free)], {attempt: DiskUsage({1: count}, {1: 1}) for attempt, count in used.items()})
    return found


def test_the_attempt_that_has_grown_most_is_to_blame_and_not_the_one_that_has_most() -> None:
    seen = history((0, 9_000, {TRAINING: 50_000, BOMB: 0}), (2, 900, {TRAINING: 50_100, BOMB: 8_000}))
    assert seen.find_grower(space(900), 2) == (BOMB, Growth(used=8_000, grown=8_000, seconds=2))


def test_nobody_is_to_blame_for_a_disk_that_others_have_filled() -> None:
    seen = history((0, 9_000, {TRAINING: 0}), (2, 500, {TRAINING: 500}))
    assert seen.find_grower(space(500), 2) is None  # half a reserve, and a small part of what is gone


def test_growth_of_less_than_a_part_of_the_reserve_is_no_cause() -> None:
    seen = history((0, 1_200, {TRAINING: 0}), (2, 960, {TRAINING: 240}))
    assert seen.find_grower(space(960), 2) is None


def test_growth_of_long_ago_does_not_count() -> None:
    later = WINDOW_SECONDS + 10
    readings = ((0, 9_000, {BOMB: 0}), (1, 990, {BOMB: 8_000}), (later, 980, {BOMB: 8_010}))
    seen = history(*readings, (2 * later, 970, {BOMB: 8_020}))
    assert seen.find_grower(space(970), 2 * later) is None


def test_what_an_attempt_had_when_it_was_first_seen_is_no_growth() -> None:
    assert history((0, 900, {TRAINING: 10**6})).find_grower(space(900), 0) is None


def test_once_somebody_has_ended_for_it_only_what_grows_from_then_on_counts() -> None:
    used = {BOMB: 8_000, TRAINING: 1_000}
    seen = history((0, 9_900, {BOMB: 0, TRAINING: 0}), (2, 900, used))
    seen.restart()
    seen.add(3, [space(900)], {TRAINING: DiskUsage({1: 1_000}, {1: 1})})
    assert seen.find_grower(space(900), 3) is None
    seen.add(4, [space(500)], {TRAINING: DiskUsage({1: 1_400}, {1: 1})})
    assert seen.find_grower(space(500), 4) == (TRAINING, Growth(used=1_400, grown=400, seconds=2))


def test_growth_on_another_file_system_is_no_cause() -> None:
    seen = GrowthHistory()
    for at, count in ((0, 0), (1, 9_000)):
        seen.add(at, [space(9_000 - count), space(9_000, device=2)], {BOMB: DiskUsage({2: count}, {2: 1})})
    assert seen.find_grower(space(0), 1) is None


def test_where_files_are_short_the_attempt_with_most_new_files_is_to_blame() -> None:
    seen = GrowthHistory()
    for at, files in ((0, 10), (1, 490)):
        usages = {BOMB: DiskUsage({1: 10}, {1: files}), TRAINING: DiskUsage({1: 900 * at}, {1: 3})}
        seen.add(at, [space(5_000, free_files=500 - files)], usages)
    assert seen.find_grower(space(5_000, free_files=10), 1) == (BOMB, Growth(used=490, grown=480, seconds=1))


def test_an_attempt_that_fills_a_disk_between_two_looks_has_begun_with_nothing() -> None:
    seen = history((0, 9_000, {TRAINING: 500}))
    seen.begin_attempt(BOMB, 0.1)
    seen.add(0.2, [space(900)], {TRAINING: DiskUsage({1: 500}), BOMB: DiskUsage({1: 8_000})})
    assert seen.find_grower(space(900), 0.2) == (BOMB, Growth(used=8_000, grown=8_000, seconds=0.1))


def test_growth_after_a_long_rest_is_of_the_last_seconds_alone() -> None:
    seen = history((0, 9_000, {BOMB: 5_000}), (1_000, 900, {BOMB: 13_000}))
    assert seen.find_grower(space(900), 1_001) == (BOMB, Growth(used=13_000, grown=8_000, seconds=REPORT_SECONDS + 1))


def test_a_reading_that_fails_neither_grows_nor_is_forgotten() -> None:
    seen = history((0, 9_000, {BOMB: 0}), (1, 900, {BOMB: 8_000}))
    seen.add(2, [space(900)], {BOMB: None})
    assert seen.find_grower(space(900), 2) == (BOMB, Growth(used=8_000, grown=8_000, seconds=2))
    seen.add(3, [space(900)], {})
    assert seen.find_grower(space(900), 3) is None
