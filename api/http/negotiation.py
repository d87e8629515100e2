"""Content negotiation: chooses the media type that a client prefers (RFC 9110, section 12.5.1)."""

from collections.abc import Iterator, Sequence

from shardyard.contract.errors import ShardyardError

#: Media ranges that are read of one header.
MAX_RANGES = 64


class NotAcceptable(ShardyardError):
    """None of the media types in which something can be had is one that the client takes."""

    code = "not_acceptable"


def choose_media_type(accept: str, offers: Sequence[str]) -> str:
    """The offer that an Accept header likes best. Of equals it is what the header names most exactly, then what it
    names first, then the first offer. Without a header it is the first offer.

    Raises:
        NotAcceptable: the header wants none of them.
    """
    ranges = list(_parse_ranges(accept))
    if not ranges:
        return offers[0]
    ranked = [(_rank_offer(offer, ranges), -place, offer) for place, offer in enumerate(offers)]
    (quality, *_), _, best = max(ranked)
    if quality <= 0:
        raise NotAcceptable(f"this is available as {', '.join(offers)}; the Accept header accepts none of them")
    return best


def _rank_offer(offer: str, ranges: Sequence[tuple[str, float]]) -> tuple[float, int, int]:
    """Quality, exactness and place of the range that says most about an offer."""
    whole = offer.partition("/")[0] + "/*"
    for exactness, wanted in ((2, offer), (1, whole), (0, "*/*")):
        for place, (name, quality) in enumerate(ranges):
            if name == wanted:
                return quality, exactness, -place
    return 0.0, 0, 0


def _parse_ranges(accept: str) -> Iterator[tuple[str, float]]:
    for part in accept.split(",")[:MAX_RANGES]:
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name.count("/") == 1:
            yield name, parse_quality(parameters)


def parse_quality(parameters: Sequence[str]) -> float:
    """Between 0 and 1; what is no number is 0, as for a client that cannot say what it wants."""
    given = next((one.removeprefix("q=") for one in parameters if one.startswith("q=")), "1")
    try:
        quality = float(given)
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0
