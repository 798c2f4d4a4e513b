"""Headers of images, without pixels."""

from __future__ import annotations

import base64
import struct
import zlib


def png(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))


def jpeg(width: int, height: int, *, before: bytes = b"\xff\xe0\x00\x04ab") -> bytes:
    return b"\xff\xd8" + before + b"\xff\xff\xc2\x00\x11\x08" + struct.pack(">HH", height, width) + b"\x03"


def gif(width: int, height: int, *, frame: tuple[int, int] = (1, 1)) -> bytes:
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    return screen + b"\x21\xf9\x04abcd\x00" + b"\x2c" + struct.pack("<HHHHB", 0, 0, *frame, 0)


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF" + bytes(4) + b"WEBP" + kind + bytes(4) + body


def data_url(data: bytes, media: str = "image/png") -> str:
    return f"data:{media};base64,{base64.b64encode(data).decode()}"
