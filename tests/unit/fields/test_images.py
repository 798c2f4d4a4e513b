"""Images: only inside the request, in four formats, of a size that the header shows before anything is decompressed."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.fields.images import image_size
from dispatcher.fields.limits import IMAGE_PIXELS_MAX, IMAGES_MAX, PIXELS_MAX
from dispatcher.fields.parse import parse_request
from dispatcher.model.errors import InvalidRequest
from tests.support.images import data_url, gif, jpeg, png, webp


def three_bytes(number: int) -> bytes:
    return struct.pack("<I", number)[:3]


IMAGES = {
    "png": png(640, 480),
    "jpeg": jpeg(640, 480),
    "gif": gif(640, 480),
    "webp lossy": webp(b"VP8 ", b"abc\x9d\x01\x2a" + struct.pack("<HH", 640, 480)),
    "webp lossless": webp(b"VP8L", b"\x2f" + struct.pack("<I", 639 | 479 << 14) + bytes(5)),
    "webp extended": webp(b"VP8X", bytes(4) + three_bytes(639) + three_bytes(479)),
}


def chat(*urls: Any) -> dict[str, Any]:
    content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"model": "m", "messages": [{"role": "user", "content": content}]}


def refusal(*urls: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(chat(*urls))
    return caught.value


@pytest.mark.parametrize("name", IMAGES)
def test_the_size_is_read_from_the_header(name: str) -> None:
    assert image_size(IMAGES[name]) == (640, 480)
    url = data_url(IMAGES[name])
    assert parse_request(chat(url)).body["messages"][0]["content"][0]["image_url"] == {"url": url}


def test_a_gif_frame_larger_than_its_screen_counts() -> None:
    assert image_size(gif(1, 1, frame=(60_000, 50_000))) == (60_000, 50_000)


@pytest.mark.parametrize("name", IMAGES)
def test_a_truncated_header_is_no_image(name: str) -> None:
    complete = IMAGES[name]
    for length in range(len(complete) - 1):
        assert image_size(complete[:length]) in (None, (640, 480))
    assert image_size(complete[:12]) is None


@given(
    st.binary(max_size=64),
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\0\0\0\0WEBP"]),
)
def test_any_bytes_have_a_size_or_none(data: bytes, magic: bytes) -> None:
    size = image_size(magic + data)
    assert size is None or min(size) > 0


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://169.254.169.254/latest/meta-data",
            "https://example.com/a.png",
            "file:///etc/passwd",
            "HTTP://x",
            "//x",
        ),
        *("http://127.0.0.1:8000/v1/models", "http://[::1]/", "ftp://x/y", "x", ""),
    ],
)
def test_a_url_that_a_server_would_fetch_is_refused_by_name(url: str) -> None:
    error = refusal(url)
    assert (error.param, error.code) == ("messages.0.content.0.image_url.url", "unsupported_parameter")
    assert "`data:` URL" in error.message


@pytest.mark.parametrize(
    "url",
    [
        "data:,",
        "data:image/png;base64,",
        "data:image/png;base64,!!!!",
        "data:image/png;base64,aGVsbG8=",
        "data:image/png," + base64.b64encode(png(1, 1)).decode(),
        "data:text/html;base64," + base64.b64encode(png(1, 1)).decode(),
        "data:image/png;base64," + base64.b64encode(png(1, 1)).decode() + "\n",
        "data:image/png;base64,é",
        data_url(png(0, 5)),
        data_url(b"\xff\xd8\xff\xda" + bytes(50)),
        data_url(b"II*\x00" + bytes(50), "image/tiff"),
        7,
        {"url": "x"},
    ],
)
def test_an_invalid_image_is_refused(url: Any) -> None:
    assert (refusal(url).param, refusal(url).code) == ("messages.0.content.0.image_url.url", "invalid_value")


def test_an_image_at_the_limit_and_beyond() -> None:
    parse_request(chat(data_url(png(IMAGE_PIXELS_MAX // 1000, 1000))))
    assert "pixels" in refusal(data_url(png(IMAGE_PIXELS_MAX // 1000 + 1, 1000))).message


def test_images_of_a_request_at_the_limits_and_beyond() -> None:
    parse_request(chat(*[data_url(png(1, 1))] * IMAGES_MAX))
    assert "images" in refusal(*[data_url(png(1, 1))] * (IMAGES_MAX + 1)).message
    most = PIXELS_MAX // IMAGE_PIXELS_MAX
    large = data_url(png(IMAGE_PIXELS_MAX // 1000, 1000))
    parse_request(chat(*[large] * most))
    assert "together" in refusal(*[large] * most, data_url(png(1, 1))).message


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_only_users_send_images(role: str) -> None:
    body = chat(data_url(png(1, 1)))
    body["messages"][0]["role"] = role
    with pytest.raises(InvalidRequest) as caught:
        parse_request(body)
    assert (caught.value.param, caught.value.code) == ("messages.0.content.0.type", "unsupported_parameter")


@pytest.mark.parametrize("kind", ["input_audio", "file", "video_url", "image_embeds", "audio_url", "prompt_embeds"])
def test_other_media_are_refused_by_name(kind: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": [{"type": kind, kind: {"url": "http://x"}}]}]}
    with pytest.raises(InvalidRequest) as caught:
        parse_request(body)
    assert (caught.value.param, caught.value.code) == ("messages.0.content.0.type", "unsupported_parameter")
    assert f"`{kind}`" in caught.value.message
