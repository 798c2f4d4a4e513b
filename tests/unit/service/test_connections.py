"""Signed connections, and frames over TCP, with real sockets on this machine."""

import asyncio
import gc
import socket
import weakref
from collections.abc import Callable

import pytest

from dispatcher.model.commands import Done
from dispatcher.model.errors import BadFrame, ConnectionLost
from dispatcher.model.fleet_secrets import FleetSecrets
from dispatcher.ports import Connection, Listener
from dispatcher.processes.bootstrap import RealClock
from dispatcher.service import authentication, tcp
from dispatcher.service.authentication import MAC_BYTES, sign_as_client, sign_as_server
from dispatcher.service.frames import Hello, Receipt, Result, decode_frame
from dispatcher.service.gate.courier import Session
from dispatcher.service.outgoing import WAIT_S
from dispatcher.service.tcp import TcpTransport, split_address
from tests.support.hang_guard import HANG_S

SECRETS = FleetSecrets("a secret of the whole fleet")
A, B = "the secret until now", "the secret from now on"
STEPS = [A, f"{A},{B}", f"{B},{A}", B]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no connection fail because this process stands still for seconds."""
    monkeypatch.setattr(tcp, "CONNECT_S", HANG_S)
    monkeypatch.setattr(authentication, "HANDSHAKE_S", HANG_S)


class Pipe:
    """ports.Connection to another Pipe."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.sent: list[bytes] = []
        self.other = self
        self.closed = False

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)
        self.other.arrived.put_nowait(frame)

    async def receive(self) -> bytes:
        frame = await self.arrived.get()
        if frame is None:
            raise ConnectionLost()
        return frame

    async def deliver(self, received: Callable[[bytes], None]) -> None:
        while True:
            received(await self.receive())

    def close(self) -> None:
        self.closed = True
        self.other.arrived.put_nowait(None)


def pipes() -> tuple[Pipe, Pipe]:
    one, two = Pipe(), Pipe()
    one.other, two.other = two, one
    return one, two


async def signed(
    mine: FleetSecrets = SECRETS, other: FleetSecrets = SECRETS
) -> tuple[Connection, Connection, Pipe, Pipe]:
    one, two = pipes()
    client, server = await asyncio.gather(
        sign_as_client(one, mine, "client-nonce"), sign_as_server(two, other, "server-nonce")
    )
    return client, server, one, two


async def test_both_directions_carry_frames() -> None:
    client, server, *_ = await signed()
    for frame in (b"one", b"", b"three"):
        client.send(frame)
        assert await server.receive() == frame
        server.send(frame * 2)
        assert await client.receive() == frame * 2


async def test_the_client_refuses_a_server_with_another_secret() -> None:
    with pytest.raises(BadFrame, match="secret"):
        await signed(other=FleetSecrets("another fleet's secret"))


@pytest.mark.parametrize("server_reads_first", [True, False])
@pytest.mark.parametrize("step", range(len(STEPS) - 1))
async def test_a_rotation_never_separates_two_processes(step: int, server_reads_first: bool) -> None:
    """Between two steps some processes have read the new value and some have not."""
    old, new = FleetSecrets(STEPS[step]), FleetSecrets(STEPS[step + 1])
    client, server, *_ = await (signed(old, new) if server_reads_first else signed(new, old))
    client.send(b"question")
    assert await server.receive() == b"question"
    server.send(b"answer")
    assert await client.receive() == b"answer"


async def test_a_skipped_step_is_noticed() -> None:
    with pytest.raises(BadFrame, match="secret"):
        await signed(FleetSecrets(A), FleetSecrets(f"{B},{A}"))


async def test_the_server_refuses_a_frame_of_another_secret() -> None:
    one, two = pipes()
    accepting = asyncio.create_task(sign_as_server(two, SECRETS, "server-nonce"))
    one.send(b"headgate-gate-1 client-nonce")
    await one.receive()
    one.send(b"x" * MAC_BYTES + b"[]")
    with pytest.raises(BadFrame):
        await (await accepting).receive()
    assert two.closed


@pytest.mark.parametrize("change", ["repeat", "flip", "swap", "reflect"])
async def test_changed_frames_are_refused(change: str) -> None:
    client, server, one, two = await signed()
    client.send(b"first")
    client.send(b"second")
    first, second = await two.receive(), await two.receive()
    if change == "flip":
        two.arrived.put_nowait(first[:-1] + bytes([first[-1] ^ 1]))
    elif change == "swap":
        two.arrived.put_nowait(second)
    elif change == "repeat":
        two.arrived.put_nowait(first)
        assert await server.receive() == b"first"
        two.arrived.put_nowait(first)
    else:
        one.arrived.put_nowait(first)
        with pytest.raises(BadFrame):
            await client.receive()
        return
    with pytest.raises(BadFrame):
        await server.receive()


async def test_a_greeting_of_another_form_is_refused() -> None:
    one, two = pipes()
    accepting = asyncio.create_task(sign_as_server(two, SECRETS, "nonce"))
    one.send(b"GET / HTTP/1.1")
    with pytest.raises(BadFrame):
        await accepting


async def echo(connection: Connection) -> None:
    while True:
        connection.send(await connection.receive())


async def test_frames_over_tcp() -> None:
    transport = TcpTransport()
    listener = await transport.listen("127.0.0.1:0", echo)
    connection = await transport.connect(listener.address)
    for size in (0, 1, 70_000, 1_000_000):
        connection.send(b"x" * size)
        assert await connection.receive() == b"x" * size
    connection.close()
    with pytest.raises(ConnectionLost):
        await connection.receive()
    await listener.close()


async def test_a_busy_listener_lets_many_clients_connect() -> None:
    """After a takeover all clients come at once. One that finds the kernel's queue full tries again after a second."""
    listener = await TcpTransport().listen("127.0.0.1:0", echo)
    clients = [
        socket.create_connection(split_address(listener.address), timeout=0.5)
        for _ in range(min(300, socket.SOMAXCONN))
    ]
    for client in clients:
        client.close()
    await listener.close()


async def test_a_closed_listener_refuses_and_breaks_its_connections() -> None:
    transport = TcpTransport()
    listener = await transport.listen("127.0.0.1:0", echo)
    connection = await transport.connect(listener.address)
    connection.send(b"x")
    await connection.receive()
    await listener.close()
    with pytest.raises(ConnectionLost):
        await connection.receive()
    with pytest.raises(ConnectionLost) as caught:
        await transport.connect(listener.address)
    assert caught.value.refused


async def test_a_frame_above_the_bound_closes_the_connection() -> None:
    transport = TcpTransport()
    caught: list[ConnectionLost] = []

    async def serve(connection: Connection) -> None:
        try:
            await connection.receive()
        except ConnectionLost as error:
            caught.append(error)

    listener = await transport.listen("127.0.0.1:0", serve)
    connection = await transport.connect(listener.address)
    connection.send(b"x" * 1_000_100)
    with pytest.raises(ConnectionLost):
        await connection.receive()
    assert isinstance(caught[0], BadFrame)
    await listener.close()


async def test_a_slow_reader_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "UNSENT_MAX", 200_000)
    transport = TcpTransport()

    async def serve(connection: Connection) -> None:
        await asyncio.Event().wait()

    listener = await transport.listen("127.0.0.1:0", serve)
    connection = await transport.connect(listener.address)

    async def flood() -> None:
        for _ in range(200):
            connection.send(b"x" * 100_000)

    with pytest.raises(ConnectionLost, match="does not read"):
        await flood()
    await listener.close()


async def test_close_ends_a_read_although_the_other_side_reads_nothing() -> None:
    served: asyncio.Queue[Connection] = asyncio.Queue()
    ended = asyncio.Event()

    async def serve(connection: Connection) -> None:
        served.put_nowait(connection)
        with pytest.raises(ConnectionLost):
            await connection.receive()
        ended.set()

    listener = await TcpTransport().listen("127.0.0.1:0", serve)
    with socket.create_connection(split_address(listener.address)):
        connection = await served.get()
        for _ in range(7):
            connection.send(b"x" * 1_000_000)
        connection.close()
        async with asyncio.timeout(HANG_S):
            await ended.wait()
    await listener.close()


async def tcp_pair() -> tuple[Connection, Connection, Listener]:
    """Return both ends of a connection. The end that was accepted stays open."""
    accepted: asyncio.Queue[Connection] = asyncio.Queue()

    async def serve(connection: Connection) -> None:
        accepted.put_nowait(connection)
        await asyncio.Event().wait()

    listener = await TcpTransport().listen("127.0.0.1:0", serve)
    connection = await TcpTransport().connect(listener.address)
    return connection, await accepted.get(), listener


async def test_frames_are_delivered_in_order_also_those_before_and_the_last_ones() -> None:
    one, other, listener = await tcp_pair()
    sent = [bytes([number]) * (number * 1_500) for number in reversed(range(100))]
    for frame in sent[:50]:
        one.send(frame)
    received = [await other.receive()]
    delivering = asyncio.create_task(other.deliver(received.append))
    await asyncio.sleep(0)
    for frame in sent[50:]:
        one.send(frame)
    one.close()
    async with asyncio.timeout(HANG_S):
        with pytest.raises(ConnectionLost):
            await delivering
    assert received == sent
    await listener.close()


@pytest.mark.parametrize("is_close", [True, False])
async def test_delivery_ends_with_an_error_of_its_receiver_or_a_close(is_close: bool) -> None:
    one, other, listener = await tcp_pair()
    received = []

    def take(frame: bytes) -> None:
        received.append(frame)
        if is_close:
            return other.close()
        raise ValueError("of the receiver")

    for frame in (b"one", b"two"):
        one.send(frame)
    async with asyncio.timeout(HANG_S):
        with pytest.raises(ConnectionLost if is_close else ValueError):
            await other.deliver(take)
    assert received == [b"one"]
    if not is_close:
        assert await other.receive() == b"two"
    await listener.close()


async def test_delivery_ends_at_a_wrong_signature_and_at_a_frame_above_the_bound() -> None:
    one, other, listener = await tcp_pair()
    client, server = await asyncio.gather(sign_as_client(one, SECRETS, "a"), sign_as_server(other, SECRETS, "b"))
    received: list[bytes] = []
    client.send(b"signed")
    one.send(b"x" * MAC_BYTES + b"not signed")
    async with asyncio.timeout(HANG_S):
        with pytest.raises(BadFrame, match="signature"):
            await server.deliver(received.append)
    assert received == [b"signed"]
    await listener.close()
    one, other, listener = await tcp_pair()
    one.send(b"x" * 1_000_100)
    async with asyncio.timeout(HANG_S):
        with pytest.raises(BadFrame, match="too large"):
            await other.deliver(received.append)
    await listener.close()


@pytest.mark.parametrize("is_bad", [True, False])
async def test_a_connection_that_has_ended_leaves_no_reference_cycle(is_bad: bool) -> None:
    """A leader collects cycles seldom, and functions connect often."""
    left: list[weakref.ref[object]] = []

    async def serve(unsigned: Connection) -> None:
        connection = await sign_as_server(unsigned, SECRETS, "b")
        session = Session(connection, RealClock(), Hello(1, "p", "client", ""))
        left.extend(map(weakref.ref, (unsigned, connection, session)))
        session.post(Receipt(1))
        try:
            await connection.deliver(lambda frame: session.post(decode_frame(frame)[0]))
        finally:
            session.close_soon()

    listener = await TcpTransport().listen("127.0.0.1:0", serve)
    client = await sign_as_client(await TcpTransport().connect(listener.address), SECRETS, "a")
    gc.collect()
    gc.disable()
    try:
        client.send(b"no frame" if is_bad else b'[["r",1]]')
        await client.receive()
        client.close()
        async with asyncio.timeout(HANG_S):
            while any(each() is not None for each in left):
                await asyncio.sleep(0)
    finally:
        gc.enable()
    await listener.close()


async def test_a_listener_of_many_connections_refuses_further_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "CONNECTIONS_MAX", 1)
    _, other, listener = await tcp_pair()
    with pytest.raises(ConnectionLost):
        await (await TcpTransport().connect(listener.address)).receive()
    assert not other._is_lost  # type: ignore[attr-defined]
    await listener.close()


@pytest.mark.parametrize("address", ["", "host", "host:", "host:port", "host:70000", "a..b:70"])
async def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(ConnectionLost):
        await TcpTransport().connect(address)


async def test_frames_that_come_together_have_one_receipt_and_an_idle_client_none() -> None:
    one, _ = pipes()
    session = Session(one, RealClock(), Hello(1, "p", "client", ""))
    for frames in (3, 1):
        for _ in range(frames):
            session.acknowledge()
        await asyncio.sleep(3 * WAIT_S)
    session.post(Result(1, Done()))
    await asyncio.sleep(0.001)
    receipts = [message.frames for frame in one.sent for message in decode_frame(frame) if isinstance(message, Receipt)]
    assert receipts == [3, 4]
