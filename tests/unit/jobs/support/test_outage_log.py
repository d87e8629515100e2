from structlog.testing import capture_logs

from jobs.support.outage_log import LONGEST_PAUSE_SECONDS, OutageLog


def test_an_outage_of_an_hour_that_is_noticed_each_second_takes_a_few_lines_and_says_when_it_is_over() -> None:
    now = 0.0
    outage = OutageLog("away", "back", lambda: now)
    with capture_logs() as lines:
        outage.note_success()
        for second in range(3600):
            now = float(second)
            outage.note_failure("refused")
            outage.note_failure("refused")  # by another thread
        now = 3600.0
        outage.note_success()
        outage.note_success()
    away, back = lines[:-1], lines[-1]
    assert {line["event"] for line in away} == {"away"}
    assert "away_seconds" not in away[0]
    assert [line["away_seconds"] for line in away[1:5]] == [5.0, 15.0, 35.0, 75.0]
    assert len(away) < 8 + 3600 / LONGEST_PAUSE_SECONDS
    assert (back["event"], back["away_seconds"], back["failures"]) == ("back", 3600.0, 7200)


def test_the_next_outage_is_said_at_once_and_one_that_flickers_is_not() -> None:
    now = 0.0
    outage = OutageLog("away", "back", lambda: now)
    with capture_logs() as lines:
        for second in (0, 100, 200, 201, 202, 203, 204, 205):
            now = float(second)
            outage.note_failure("refused")
            outage.note_success()
    assert [line["event"] for line in lines] == ["away", "back"] * 4, "at 0, 100, 200, and 5 seconds later"
