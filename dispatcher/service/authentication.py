"""Signs connections between processes that share the fleet's secret. Frames are signed, not encrypted.

    client to server   version, client's nonce
    server to client   server's nonce, HMAC(secret, "server" and both nonces)
    after that         each frame begins with a MAC of its number and its bytes

The key of a MAC is HMAC(secret, direction and both nonces), so it is valid for one direction of one connection. The
server signs with the first of its secrets; the client may have it as its first or second (fleet_secrets.py). An
attacker cannot replay a recorded connection. If an attacker changes, drops, repeats or moves a frame, the receiver
finds a wrong MAC and closes the connection. The client proves with its first signed frame that it has the secret.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from hashlib import blake2b

from dispatcher.model.errors import BadFrame, ConnectionLost
from dispatcher.model.fleet_secrets import FleetSecrets
from dispatcher.ports import Connection

GREETING = b"headgate-gate-1 "
MAC_BYTES = 16
_NONCE_CHARS_MAX = 100
HANDSHAKE_S = 2.0


class SignedConnection:
    """A ports.Connection that signs the frames that it sends, and checks those that it receives."""

    def __init__(self, connection: Connection, send_key: bytes, receive_key: bytes) -> None:
        self._connection = connection
        self._send_key, self._receive_key = send_key, receive_key
        self._sent = self._received = 0

    def send(self, frame: bytes) -> None:
        mac = _mac(self._send_key, self._sent, frame)
        self._sent += 1
        self._connection.send(mac + frame)

    async def receive(self) -> bytes:
        """Return the next frame. Raises ConnectionLost; BadFrame if its signature is wrong."""
        return self._check(await self._connection.receive())

    async def deliver(self, received: Callable[[bytes], None]) -> None:
        """Call `received` with each further frame. Raises ConnectionLost; BadFrame if a signature is wrong."""
        await self._connection.deliver(lambda signed: received(self._check(signed)))

    def _check(self, signed: bytes) -> bytes:
        """Return the frame without its signature. Close the connection if it is wrong."""
        frame = signed[MAC_BYTES:]
        if not hmac.compare_digest(signed[:MAC_BYTES], _mac(self._receive_key, self._received, frame)):
            self._connection.close()
            raise BadFrame("A frame has a wrong signature. Do both processes have the same worker secret?")
        self._received += 1
        return frame

    def close(self) -> None:
        self._connection.close()


async def sign_as_client(connection: Connection, secrets: FleetSecrets, nonce: str) -> Connection:
    """Return the connection, signed. Raises ConnectionLost."""
    return await _in_time(connection, _client(connection, secrets, nonce.encode()))


async def sign_as_server(connection: Connection, secrets: FleetSecrets, nonce: str) -> Connection:
    """Return the connection, signed. Raises ConnectionLost.

    The client has not proved yet that it has the secret. Its first frame does.
    """
    return await _in_time(connection, _server(connection, secrets.signing, nonce.encode()))


async def _in_time(connection: Connection, handshake: Awaitable[Connection]) -> Connection:
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            return await handshake
    except TimeoutError:
        connection.close()
        raise ConnectionLost("The other process did not finish the handshake in time.") from None
    except BaseException:
        connection.close()
        raise


async def _client(connection: Connection, secrets: FleetSecrets, nonce: bytes) -> Connection:
    connection.send(GREETING + nonce)
    server_nonce, _, proof = (await connection.receive()).partition(b" ")
    nonces = nonce + b" " + server_nonce
    secret = secrets.accepts(lambda one: hmac.compare_digest(proof, _key(one, b"server", nonces).hex().encode()))
    if secret is None:
        raise BadFrame("The gate process has a different worker secret.")
    return SignedConnection(connection, _key(secret, b"to server", nonces), _key(secret, b"to client", nonces))


async def _server(connection: Connection, secret: bytes, nonce: bytes) -> Connection:
    greeting = await connection.receive()
    client_nonce = greeting[len(GREETING) :]
    if not greeting.startswith(GREETING) or not client_nonce or len(client_nonce) > _NONCE_CHARS_MAX:
        raise BadFrame("The client's first message is not a greeting of this version.")
    nonces = client_nonce + b" " + nonce
    connection.send(nonce + b" " + _key(secret, b"server", nonces).hex().encode())
    return SignedConnection(connection, _key(secret, b"to client", nonces), _key(secret, b"to server", nonces))


def _key(secret: bytes, label: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, b"headgate gate: " + label + b": " + nonces, "sha256")


def _mac(key: bytes, number: int, frame: bytes) -> bytes:
    return blake2b(number.to_bytes(8, "big") + frame, key=key, digest_size=MAC_BYTES).digest()
