import pytest

from api.http.negotiation import MAX_RANGES, NotAcceptable, choose_media_type

OFFERS = ("application/json", "text/plain", "text/html", "image/svg+xml")
JSON, TEXT, HTML, SVG = OFFERS
#: What Chromium and Firefox send.
PAGE = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
IMAGE = "image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/json", JSON),
        ("text/html", HTML),
        ("image/*", SVG),
        ("text/*", TEXT),
        ("TEXT/HTML; charset=utf-8", HTML),
        (PAGE, HTML),
        (IMAGE, SVG),
        ("text/plain, application/json", TEXT),
        ("application/json, text/plain", JSON),
        ("application/json;q=0.5, text/html;q=0.9", HTML),
        ("*/*, text/html", HTML),
        ("text/*;q=0.9, text/plain;q=0, */*;q=0.1", HTML),
        ("application/json;q=0, */*", TEXT),
        ("nonsense", JSON),
        (", ,", JSON),
    ],
)
def test_the_client_gets_what_it_likes_best(accept: str, chosen: str) -> None:
    assert choose_media_type(accept, OFFERS) == chosen


@pytest.mark.parametrize(
    "accept", ["application/pdf", "text/html;q=0", "*/*;q=0", "text/html;q=nan", "text/html;q=2", "text/html;q=x"]
)
def test_a_client_that_takes_none_is_told_what_there_is(accept: str) -> None:
    with pytest.raises(NotAcceptable, match="application/json, text/plain, text/html, image/svg"):
        choose_media_type(accept, OFFERS)


def test_a_very_long_header_is_read_up_to_a_bound() -> None:
    with pytest.raises(NotAcceptable):
        choose_media_type(",".join(["a/b"] * MAX_RANGES + ["*/*"]), OFFERS)
