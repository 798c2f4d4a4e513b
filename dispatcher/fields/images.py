"""The shape of an image's URL: only an image inside the request, of a bounded size. Pure.

An image of some kilobytes can decompress to gigabytes. The gate decompresses nothing: it reads width and height from
the header, as the decoder of the engine will, and refuses an image if it cannot read its header.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass

from dispatcher.fields.kinds import Reading, invalid, unsupported
from dispatcher.fields.limits import IMAGE_PIXELS_MAX, IMAGES_MAX, PIXELS_MAX
from dispatcher.fields.shapes import Scalar

_DATA = re.compile(r"data:image/[a-z0-9.+-]{1,32};base64,")


@dataclass(frozen=True, slots=True)
class ImageUrl(Scalar):
    """A `data:` URL with a PNG, JPEG, GIF or WebP image in base64.

    A URL with another scheme is refused. The engine's machine would fetch it, and could reach hosts that the client
    cannot.
    """

    def text(self) -> str:
        return (
            "`data:image/...;base64,` URL of a PNG, JPEG, GIF or WebP image of at most "
            f"{IMAGE_PIXELS_MAX:,} pixels; at most {IMAGES_MAX} images and {PIXELS_MAX:,} pixels in one request"
        )

    def read(self, value: object, at: str, reading: Reading) -> str:
        if not isinstance(value, str):
            raise invalid(at, "a text is required")
        if value[:5].lower() != "data:":
            message = f"`{at}` is a URL that the server would have to fetch. Send the image itself as a `data:` URL."
            raise unsupported(at, message)
        size = _size(value)
        if size is None:
            raise invalid(at, "it is no `data:image/...;base64,` URL of a PNG, JPEG, GIF or WebP image")
        pixels = size[0] * size[1]
        reading.images += 1
        reading.pixels += pixels
        if pixels > IMAGE_PIXELS_MAX:
            raise invalid(at, f"an image of at most {IMAGE_PIXELS_MAX:,} pixels is required")
        if reading.images > IMAGES_MAX or reading.pixels > PIXELS_MAX:
            raise invalid(at, f"a request has at most {IMAGES_MAX} images and {PIXELS_MAX:,} pixels together")
        return value


def _size(url: str) -> tuple[int, int] | None:
    head = _DATA.match(url)
    if head is None:
        return None
    try:
        data = base64.b64decode(url[head.end() :].encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    return image_size(data)


Size = tuple[int, int]
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG's start-of-frame markers: all of C0 to CF but the tables C4 and CC, and C8, which is reserved."""


def image_size(data: bytes) -> Size | None:
    """Return (width, height) in pixels. None if it is no PNG, JPEG, GIF or WebP image, or if the header is damaged."""
    for magic, read in _FORMATS:
        if data.startswith(magic):
            size = read(data)
            return size if size is not None and min(size) > 0 else None
    return None


def _png(data: bytes) -> Size | None:
    if len(data) < 24 or data[12:16] != b"IHDR":
        return None
    return _big(data, 16, 4), _big(data, 20, 4)


def _gif(data: bytes) -> Size | None:
    """Return the larger of the screen and the first frame, because some decoders enlarge the screen for a frame."""
    if len(data) < 13:
        return None
    screen = _little(data, 6, 2), _little(data, 8, 2)
    place = 13 + (3 << ((data[10] & 7) + 1) if data[10] & 0x80 else 0)
    while place + 2 < len(data) and data[place] == 0x21:  # an extension: two bytes, then blocks with their lengths
        place += 2
        while place < len(data) and data[place]:
            place += 1 + data[place]
        place += 1
    if place + 9 >= len(data) or data[place] != 0x2C:
        return None
    left, top, width, height = (_little(data, place + 1 + 2 * number, 2) for number in range(4))
    return max(screen[0], left + width), max(screen[1], top + height)


def _jpeg(data: bytes) -> Size | None:
    place = 2
    while place + 9 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # a fill byte
            place += 1
        elif marker in _FRAME_MARKERS:
            return _big(data, place + 7, 2), _big(data, place + 5, 2)
        elif marker in (0xD9, 0xDA):  # the end, or pixels, before any frame header
            return None
        else:
            length = _big(data, place + 2, 2)
            place += 2 + (0 if marker == 0x01 or 0xD0 <= marker <= 0xD8 else max(length, 2))
    return None


def _webp(data: bytes) -> Size | None:
    kind, body = data[12:16], data[20:30]
    if data[8:12] != b"WEBP" or len(body) < 10:
        return None
    if kind == b"VP8X":
        return _little(body, 4, 3) + 1, _little(body, 7, 3) + 1
    if kind == b"VP8L" and body[0] == 0x2F:
        bits = _little(body, 1, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        return _little(body, 6, 2) & 0x3FFF, _little(body, 8, 2) & 0x3FFF
    return None


def _big(data: bytes, place: int, length: int) -> int:
    return int.from_bytes(data[place : place + length], "big")


def _little(data: bytes, place: int, length: int) -> int:
    return int.from_bytes(data[place : place + length], "little")


_FORMATS: tuple[tuple[bytes, Callable[[bytes], Size | None]], ...] = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"\xff\xd8\xff", _jpeg),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"RIFF", _webp),
)
