"""The tenant of each request of a bare vLLM server: `--middleware headgate_vllm.Tenants`, by the operator's file.

The file is TOML, and the variable HEADGATE_TENANTS has its path. It names the tenant in one of two ways:

    header = "x-tenant"                 # a proxy before this server sets it, and removes a client's own
    tier_header = "x-tier"              # optional, of the same proxy

    [keys]                              # or: by the API key, as it is or as its hash
    "sk-acme-7" = "acme"
    "sha256:0b14d5…" = "globex"

    unknown = "share"                   # requests without a tenant share the tenant `unknown`; default: "refuse"

    [tenants.acme]                      # optional
    tier = "premium"
    weight = 2.0
    adapters = ["sql"]                  # the LoRA adapters that it may use; default: none
    prefix_group = "partners"           # shares cached prefixes with the other tenants of the group; default: none

Python code that makes its own requests names their tenants itself (in_process.py): it needs the last part only.

The middleware reads headers only: bodies and answers stream past it. It keeps a request's identity in a context
variable, which every task has that vLLM starts for the request. What sends requests to the engine core adds it there,
and so every route has it, streamed or not. A mistake in the file ends the start with one sentence. The file is read
once: a new key needs a restart.

Each request also gets a cache salt from its tenant, or from the tenant's group: prefixes of other tenants are never
found in vLLM's prefix cache, so no time of a first token depends on their prompts. A client's own `cache_salt` divides
its tenant's prefixes further.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from dispatcher.policies.bounds import AnySequence, BoundedSettings, Bounds
from dispatcher.policies.share_bounds import WEIGHT_MAX, WEIGHT_MIN
from dispatcher.policies.tiers import TENANT_TIERS, TenantTier, Tier
from gpu_worker.engines.vllm.compatibility import require_vllm
from gpu_worker.engines.vllm.identity import TENANT_CHARS_MAX, TenantIdentity, add_identity, cache_salt, is_tenant
from gpu_worker.engines.vllm.names import VllmPart
from gpu_worker.engines.vllm.settings import TENANTS_VARIABLE
from gpu_worker.policies.plain_settings import read_settings

UNKNOWN_TENANT = "unknown"
_HASH = "sha256:"
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""The paths that vLLM's own `--api-key` guards."""

_Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class TenantShare(BoundedSettings):
    """What a tenant gets. `adapters`: the LoRA adapters that it may use. Raises ValueError for a weight outside its
    bounds."""

    tier: TenantTier | None = None
    weight: Annotated[float, Bounds(WEIGHT_MIN, WEIGHT_MAX)] = 1.0
    adapters: Annotated[tuple[str, ...], AnySequence()] = ()
    prefix_group: str | None = None


_ONE_SOURCE = "it should have either header or keys: what names the tenant of a request"


class UnknownTenant(Exception):
    """A request without a tenant that may be served. The message is for its client. `status`: of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class TenantRules:
    """The operator's file. Raises ValueError, with one sentence, for fields that contradict each other."""

    header: str | None = None
    tier_header: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    unknown: Literal["refuse", "share"] = "refuse"
    tenants: Mapping[str, TenantShare] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.header is not None and self.keys:
            raise ValueError(_ONE_SOURCE)
        if self.tier_header is not None and self.header is None:
            raise ValueError("tier_header needs header: with keys, a client would choose its own tier")
        for name in (self.header, self.tier_header):
            if name is not None and not _is_header_name(name):
                raise ValueError(f"{name!r} is not the name of a header")
        if self.header is not None and self.header.lower() == (self.tier_header or "").lower():
            raise ValueError("header and tier_header cannot be the same")
        for tenant in (*self.keys.values(), *self.tenants):
            if not is_tenant(tenant):
                raise ValueError(f"{tenant!r} is not the name of a tenant (1 to {TENANT_CHARS_MAX} characters)")
        for share in self.tenants.values():
            if share.prefix_group is not None and not is_tenant(share.prefix_group):
                raise ValueError(
                    f"{share.prefix_group!r} is not the name of a prefix_group (1 to {TENANT_CHARS_MAX} characters)"
                )
        for key in self.keys:
            if not key or (key.startswith(_HASH) and not _is_hash(key)):
                raise ValueError("a key is empty, or its sha256: has not 64 hexadecimal digits")
        if len({_hash_of(key) for key in self.keys}) < len(self.keys):
            raise ValueError("a key is there twice, as it is and as its hash")
        if self.keys and (idle := [name for name in self.tenants if name not in self.keys.values()]):
            close = get_close_matches(idle[0], self.keys.values(), 1)
            guess = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(f"no key is for the tenant {idle[0]!r}{guess}")


class TenantDirectory:
    """Finds the tenant of a request by its headers."""

    def __init__(self, rules: TenantRules) -> None:
        self._rules = rules
        self._by_hash = {_hash_of(key): tenant for key, tenant in rules.keys.items()}

    @property
    def names_requests(self) -> bool:
        """Whether the file says how a request of HTTP names its tenant."""
        return self._rules.header is not None or bool(self._by_hash)

    def identify(self, headers: _Headers) -> TenantIdentity:
        """Return the identity. Raises UnknownTenant for a request that is to be refused."""
        tenant = self._by_key(headers) if self._by_hash else self._by_header(headers)
        if tenant is None:
            if self._rules.unknown == "refuse":
                wanted = "a valid API key" if self._by_hash else f"the header {self._rules.header}"
                raise UnknownTenant(401, f"this server needs {wanted}")
            tenant = UNKNOWN_TENANT
        return self.identity_of(tenant, self._tier(headers))

    def identity_of(self, tenant: str, tier: Tier | None = None) -> TenantIdentity:
        """Return the identity of a tenant by its name. `tier`: in place of the file's."""
        share = self._rules.tenants.get(tenant, _USUAL)
        return TenantIdentity(tenant, tier or share.tier, share.weight, share.prefix_group)

    def may_use(self, identity: TenantIdentity | None, adapter: str) -> bool:
        """Return whether the tenant may use the adapter; False without a tenant."""
        return identity is not None and adapter in self._rules.tenants.get(identity.tenant, _USUAL).adapters

    def _by_key(self, headers: _Headers) -> str | None:
        scheme, _, key = (_only(headers, "authorization") or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        return self._by_hash.get(sha256(key.strip().encode("latin-1")).hexdigest())

    def _by_header(self, headers: _Headers) -> str | None:
        assert self._rules.header is not None  # noqa: S101 (by the rules)
        value = _only(headers, self._rules.header)
        if not value:
            return None
        try:
            tenant = value.encode("latin-1").decode("utf-8")
        except UnicodeDecodeError:
            tenant = ""
        if not is_tenant(tenant):
            raise UnknownTenant(400, f"the header {self._rules.header} is not the name of a tenant")
        return tenant

    def _tier(self, headers: _Headers) -> Tier | None:
        name = self._rules.tier_header
        if name is None or not (value := _only(headers, name)):
            return None
        if value not in TENANT_TIERS:
            raise UnknownTenant(400, f"the header {name} should be one of {', '.join(TENANT_TIERS)}")
        return Tier(value)


_USUAL = TenantShare()


@cache
def tenants_of_start() -> TenantDirectory:
    """Return the directory of the operator's file. Raises ValueError for a wrong file and IncompatibleVllm, each with
    one sentence."""
    require_vllm([VllmPart.TENANTS])
    path = os.environ.get(TENANTS_VARIABLE, "")
    if not path:
        raise ValueError(f"headgate's middleware needs {TENANTS_VARIABLE}, the path of the file that names tenants")
    directory = read_tenants(Path(path))
    if not directory.names_requests:
        raise ValueError(f"{path}: {_ONE_SOURCE}")
    return directory


def read_tenants(path: Path) -> TenantDirectory:
    """Read the operator's file. Raises ValueError, with one sentence that has its path, and no key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"{path} ({TENANTS_VARIABLE}) cannot be read: {reason}") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    keys = values.get("keys")
    if isinstance(keys, dict) and not all(isinstance(tenant, str) for tenant in keys.values()):
        raise ValueError(f"{path}: keys should have a tenant for each key; quote a key that has a dot")
    return TenantDirectory(read_settings(TenantRules, values, str(path)))


_identity: ContextVar[TenantIdentity | None] = ContextVar("headgate_identity", default=None)
"""The identity of the request for which the present task works."""


class TenantMiddleware:
    """ASGI middleware of vLLM's server. It serves nothing unless each request reaches the engine core with its
    identity."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._directory = tenants_of_start()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            engine_client = getattr(scope["app"].state, "engine_client", None)
            if engine_client is None:
                sentence = "headgate's middleware needs a server with an engine: leave out --middleware"
                await send({"type": "lifespan.startup.failed", "message": sentence})
                return
            attach_identities(engine_client.engine_core)
            check_adapters(engine_client, self._directory)
        elif scope["type"] in ("http", "websocket"):
            try:
                identity = self._directory.identify(scope["headers"])
            except UnknownTenant as unknown:
                if _is_guarded(scope):
                    await _refuse(scope, send, unknown)
                    return
                identity = None
            _identity.set(identity)
        await self._app(scope, receive, send)


def attach_identities(engine_core: Any) -> None:
    """Let the client of an engine core send the identity of its context with every request, in place of any other."""
    send = engine_core.add_request_async
    if getattr(send, "attaches", False):
        return

    async def add_request_async(core_request: Any) -> None:
        if (identity := _identity.get()) is not None:
            core_request.trace_headers = add_identity(core_request.trace_headers, identity)
            core_request.cache_salt = cache_salt(identity, core_request.cache_salt)
        await send(core_request)

    add_request_async.attaches = True  # type: ignore[attr-defined]
    engine_core.add_request_async = add_request_async


def check_adapters(engine_client: Any, directory: TenantDirectory) -> None:
    """Let vLLM answer a request for an adapter that its tenant may not use as one for an unknown model.

    The middleware cannot: the model is in the body. Here vLLM has read it, and has not registered the request yet.
    """
    add = engine_client._add_request
    if getattr(add, "attaches", False):
        return

    async def _add_request(core_request: Any, *rest: Any) -> None:
        lora = core_request.lora_request
        if lora is not None and not directory.may_use(_identity.get(), lora.lora_name):
            from vllm.exceptions import VLLMNotFoundError  # here: the module is read without vLLM too

            raise VLLMNotFoundError(f"The model `{lora.lora_name}` does not exist.")
        await add(core_request, *rest)

    _add_request.attaches = True  # type: ignore[attr-defined]
    engine_client._add_request = _add_request


def _is_guarded(scope: Any) -> bool:
    """Return whether a request without a tenant is refused: all but preflights and reads of what is no tenant's."""
    if scope["type"] == "websocket":
        return True
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return scope["method"] != "OPTIONS" and (path.startswith(_GUARDED) or scope["method"] not in ("GET", "HEAD"))


async def _refuse(scope: Any, send: Any, unknown: UnknownTenant) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": str(unknown)})
        return
    kind = "authentication_error" if unknown.status == 401 else "invalid_request_error"
    body = json.dumps({"error": {"message": str(unknown), "type": kind, "param": None, "code": unknown.status}})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": unknown.status, "headers": headers})
    await send({"type": "http.response.body", "body": body.encode()})


def _only(headers: _Headers, name: str) -> str | None:
    """Return a header's value; None if there is none. Raises UnknownTenant for several: which one is meant?"""
    wanted = name.lower().encode("latin-1")
    found = [value for each, value in headers if each.lower() == wanted]
    if len(found) > 1:
        raise UnknownTenant(400, f"the header {name} was sent {len(found)} times")
    return found[0].decode("latin-1").strip() if found else None


def _hash_of(key: str) -> str:
    return key.removeprefix(_HASH).lower() if key.startswith(_HASH) else sha256(key.encode()).hexdigest()


def _is_hash(key: str) -> bool:
    digits = key.removeprefix(_HASH)
    return len(digits) == 64 and all(each in "0123456789abcdefABCDEF" for each in digits)


def _is_header_name(name: str) -> bool:
    return bool(name) and name.isascii() and all(each.isalnum() or each in "-_" for each in name)
