"""The shape of an image's URL: only an image inside the request. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from dispatcher.fields.limits import IMAGE_PIXELS_MAX, IMAGES_MAX, PIXELS_MAX
from dispatcher.fields.reading import Reading, invalid, unsupported
from dispatcher.fields.shapes.images import size_of
from dispatcher.fields.shapes.scalars import Scalar

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
    return size_of(data)
