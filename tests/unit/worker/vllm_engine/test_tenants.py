"""The tenants of a bare vLLM server: the operator's file, the middleware, and the identity that the scheduler reads."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate_vllm
from dispatcher.policies.tiers import Tier
from gpu_worker.engines.vllm import tenants
from gpu_worker.engines.vllm.identity import TenantIdentity, add_identity, cache_salt, is_tenant, read_identity
from gpu_worker.engines.vllm.in_process import salt_prefixes
from gpu_worker.engines.vllm.protocol import request_fields
from gpu_worker.engines.vllm.settings import TENANTS_VARIABLE, scheduler_settings
from gpu_worker.engines.vllm.tenants import TenantMiddleware, read_tenants, tenants_of_start

BY_HEADER = 'header = "x-tenant"\ntier_header = "x-tier"\n[tenants.acme]\ntier = "premium"\nweight = 2.0\n'
BY_KEY = f"""
[keys]
"sk-acme" = "acme"
"sha256:{sha256(b"sk-globex").hexdigest()}" = "globex"
[tenants.acme]
tier = "premium"
weight = 2.0
"""
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")


@pytest.fixture(autouse=True)
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tenants, "require_vllm", lambda parts: None)
    tenants_of_start.cache_clear()
    yield
    tenants_of_start.cache_clear()


class Core:
    """A client of an engine core, which keeps what it is to send."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def add_request_async(self, request: Any) -> None:
        self.sent.append(request)


class Server:
    """vLLM's app behind the middleware: it sends a request to the engine core in a task of its own, as vLLM does."""

    def __init__(self, file: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        file.write_text(text, encoding="utf-8")
        monkeypatch.setenv(TENANTS_VARIABLE, str(file))
        self.core, self.sent = Core(), list[dict[str, Any]]()
        self.middleware = TenantMiddleware(self.app)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        assert (receive, send) == (self.receive, self.send), "bodies and answers go past the middleware"
        if scope["type"] != "lifespan":
            lora = None if (name := scope.get("adapter")) is None else SimpleNamespace(lora_name=name)
            core_request = SimpleNamespace(
                trace_headers=scope.get("trace_headers"), lora_request=lora, cache_salt=scope.get("cache_salt")
            )
            await asyncio.create_task(self._add_request(core_request, "prompt", None, 0, None))

    async def _add_request(self, core_request: Any, *_: Any) -> None:
        await self.engine_core.add_request_async(core_request)

    @property
    def engine_core(self) -> Core:
        return self.core

    async def receive(self) -> Any:
        raise AssertionError("the middleware read a body")

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def start(self) -> None:
        app = SimpleNamespace(state=SimpleNamespace(engine_client=self))
        await self.middleware({"type": "lifespan", "app": app}, self.receive, self.send)

    async def request(self, *headers: tuple[str, str], path: str = PATHS[0], method: str = "POST", **scope: Any) -> Any:
        """Return the identity that the scheduler reads; the status of a refusal."""
        await self.start()
        self.core.sent.clear()
        self.sent.clear()
        raw = [(name.encode(), value.encode()) for name, value in headers]
        whole = {"type": "http", "path": path, "method": method, "headers": raw, **scope}
        await asyncio.create_task(self.middleware(whole, self.receive, self.send))
        if not self.core.sent:
            return self.sent[0].get("status", self.sent[0].get("code"))
        return read_identity(self.core.sent[0].trace_headers)


@pytest.fixture
def by_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(tmp_path / "tenants.toml", BY_HEADER, monkeypatch)


@pytest.fixture
def by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(tmp_path / "tenants.toml", BY_KEY, monkeypatch)


@pytest.mark.parametrize("path", PATHS)
async def test_a_header_names_the_tenant_on_every_route(by_header: Server, path: str) -> None:
    assert await by_header.request(("x-tenant", "acme"), path=path) == TenantIdentity("acme", Tier.PREMIUM, 2.0)
    assert await by_header.request(("X-Tenant", "münchen / 1,2=3"), path=path) == TenantIdentity("münchen / 1,2=3")
    chosen = await by_header.request(("x-tenant", "acme"), ("x-tier", "background"), path=path)
    assert chosen == TenantIdentity("acme", Tier.BACKGROUND, 2.0)
    assert await by_header.request(path=path) == 401


@pytest.mark.parametrize("path", PATHS)
async def test_a_key_names_the_tenant_on_every_route(by_key: Server, path: str) -> None:
    acme = TenantIdentity("acme", Tier.PREMIUM, 2.0)
    assert await by_key.request(("authorization", "Bearer sk-acme"), path=path) == acme
    assert await by_key.request(("Authorization", "bearer sk-globex"), path=path) == TenantIdentity("globex")
    for wrong in ("Bearer sk-other", "Basic sk-acme", "Bearer", f"Bearer sha256:{sha256(b'sk-acme').hexdigest()}"):
        assert await by_key.request(("authorization", wrong), path=path) == 401
    forged = await by_key.request(("authorization", "Bearer sk-globex"), ("x-tenant", "acme"), path=path)
    assert forged == TenantIdentity("globex")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("x-tenant", "a"), ("x-tenant", "b")], 400),
        ([("x-tenant", "a" * 129)], 400),
        ([("x-tenant", "a\tb")], 400),
        ([("x-tenant", " ")], 401),
        ([("x-tenant", "a"), ("x-tier", "system")], 400),
        ([("x-tenant", "a"), ("x-tier", "premium"), ("x-tier", "standard")], 400),
    ],
)
async def test_a_header_that_is_no_tenant_is_refused(
    by_header: Server, headers: list[tuple[str, str]], status: int
) -> None:
    assert await by_header.request(*headers) == status
    assert by_header.sent[1]["body"].startswith(b'{"error": {"message": "')


async def test_two_keys_are_refused(by_key: Server) -> None:
    assert await by_key.request(("authorization", "Bearer sk-acme"), ("authorization", "Bearer sk-globex")) == 400


async def test_what_belongs_to_no_tenant_is_open(by_key: Server) -> None:
    for path, method in (("/health", "GET"), ("/metrics", "GET"), ("/v1/chat/completions", "OPTIONS")):
        assert await by_key.request(path=path, method=method) is None
    for path, method in (("/v1/models", "GET"), ("/sleep", "POST"), ("/invocations", "POST"), ("/p/v1/models", "GET")):
        assert await by_key.request(path=path, method=method, root_path="/p") == 401 or path == "/v1/models"
    assert await by_key.request(path="/v1/models", method="GET") == 401
    assert await by_key.request(type="websocket", path="/realtime", method="GET") == 1008


async def test_unknown_tenants_share_one_if_the_operator_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'unknown = "share"\n{BY_KEY}[tenants.unknown]\ntier = "background"\n'.replace(
        "[keys]", '[keys]\n"public" = "unknown"'
    )
    server = Server(tmp_path / "tenants.toml", text, monkeypatch)
    shared = TenantIdentity("unknown", Tier.BACKGROUND)
    assert await server.request() == await server.request(("authorization", "Bearer x")) == shared


async def test_the_identity_comes_beside_the_trace_of_a_client(by_key: Server) -> None:
    traced = {"traceparent": "00-1", "headgate": "system/9.0/other"}
    acme = await by_key.request(("authorization", "Bearer sk-acme"), trace_headers=traced)
    assert acme == TenantIdentity("acme", Tier.PREMIUM, 2.0)
    assert by_key.core.sent[0].trace_headers["traceparent"] == "00-1"


async def test_only_the_tenants_of_a_group_have_one_cache_salt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grouped = '[tenants.a]\nprefix_group = "g"\n[tenants.b]\nprefix_group = "g"\n[tenants.d]\nprefix_group = "c"\n'
    server = Server(tmp_path / "tenants.toml", f'header = "x-tenant"\nunknown = "share"\n{grouped}', monkeypatch)

    async def salt(*tenant: str, own: str | None = None) -> str:
        await server.request(*(("x-tenant", name) for name in tenant), cache_salt=own)
        return str(server.core.sent[0].cache_salt)

    a, b, c, d, g, unknown = [await salt(*name) for name in ("a", "b", "c", "d", "g", "")]
    assert a == b == await salt("a")
    assert len({a, c, d, g, unknown}) == 5  # a group is no tenant of its name
    divided = await salt("a", own="mine")
    assert divided == await salt("b", own="mine")
    assert divided not in (a, await salt("c", own="mine"))
    for own in (a, c, "g", "group"):  # no client can write another's salt
        assert await salt("c", own=own) not in (a, c)


async def test_requests_at_the_same_time_keep_their_own_identity(by_header: Server) -> None:
    await by_header.start()
    names = [f"tenant-{number}" for number in range(50)]
    scopes = ({"type": "http", "path": "/", "headers": [(b"x-tenant", name.encode())]} for name in names)
    calls = (by_header.middleware(scope, by_header.receive, by_header.send) for scope in scopes)
    await asyncio.gather(*map(asyncio.create_task, calls))
    found = [read_identity(each.trace_headers) for each in by_header.core.sent]
    assert sorted(each.tenant for each in found if each is not None) == sorted(names)


async def test_a_second_start_of_the_app_adds_nothing(by_key: Server) -> None:
    await by_key.start()
    attached = by_key.core.add_request_async
    await by_key.start()
    assert by_key.core.add_request_async is attached


async def test_an_adapter_that_a_tenant_may_not_use_is_an_unknown_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NotFound(Exception):
        pass

    monkeypatch.setitem(sys.modules, "vllm.exceptions", SimpleNamespace(VLLMNotFoundError=NotFound))
    server = Server(tmp_path / "tenants.toml", f'{BY_KEY}adapters = ["sql"]\n', monkeypatch)
    for _ in range(2):
        await server.start()
    acme, globex = (("authorization", f"Bearer sk-{name}") for name in ("acme", "globex"))
    assert (await server.request(acme, adapter="sql")).tenant == "acme"
    assert (await server.request(globex)).tenant == "globex"
    for header, adapter in ((acme, "law"), (globex, "sql")):
        with pytest.raises(NotFound, match=f"The model `{adapter}` does not exist."):
            await server.request(header, adapter=adapter)
    assert not server.core.sent, "a refused request does not reach the engine core"


@pytest.mark.parametrize("value", ['"sql"', "[1]", '{a = "sql"}'])
def test_a_wrong_list_of_adapters_ends_the_start(tmp_path: Path, value: str) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text(f"{BY_KEY}adapters = {value}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="adapters"):
        read_tenants(file)


async def test_a_server_without_an_engine_does_not_start(by_key: Server) -> None:
    app = SimpleNamespace(state=SimpleNamespace())
    await by_key.middleware({"type": "lifespan", "app": app}, by_key.receive, by_key.send)
    assert by_key.sent[0]["type"] == "lifespan.startup.failed"
    assert "needs a server with an engine" in by_key.sent[0]["message"]


@given(st.text(min_size=1, max_size=128).filter(is_tenant), st.sampled_from([None, *Tier]), st.floats(0.01, 100))
def test_an_identity_arrives_as_it_was_sent(tenant: str, tier: Tier | None, weight: float) -> None:
    identity = TenantIdentity(tenant, tier, weight)
    assert read_identity(add_identity({"tracestate": "a=1"}, identity)) == identity
    assert read_identity(add_identity(None, identity)) == identity


@given(st.one_of(st.none(), st.integers(), st.text(), st.dictionaries(st.just("headgate"), st.text() | st.integers())))
def test_the_engine_core_survives_any_header(trace_headers: object) -> None:
    found = read_identity(trace_headers)
    assert found is None or isinstance(found, TenantIdentity)


def fields_of(settings: dict[str, Any], identity: TenantIdentity | None, priority: int = 0, **sent: object) -> Any:
    extra = {f"headgate_{name}": value for name, value in sent.items()}
    request = SimpleNamespace(
        priority=priority,
        sampling_params=SimpleNamespace(extra_args=extra),
        pooling_params=None,
        trace_headers=None if identity is None else add_identity(None, identity),
    )
    policy = "priority" if "priority_tiers" in settings else "fcfs"
    fields = request_fields(request, scheduler_settings({"headgate": settings}, policy))
    return fields.tenant, fields.tier, fields.weight


def test_the_operators_identity_comes_before_all_that_a_client_sends() -> None:
    """Whether its fields are trusted or not, and whatever its priority."""
    forged: dict[str, Any] = {"tenant": "other", "tier": "premium", "weight": 9.0}
    acme, plain = TenantIdentity("acme", Tier.BACKGROUND, 2.0), TenantIdentity("acme")
    priorities = {"priority_tiers": {"premium": -1, "standard": 0}}
    for trust in (False, True):
        settings = {"trust_client_fields": trust}
        assert fields_of(settings, acme, **forged) == ("acme", Tier.BACKGROUND, 2.0)
        assert fields_of(settings, plain, **forged) == ("acme", Tier.STANDARD, 1.0)
        assert fields_of({**settings, **priorities}, acme, -9, **forged) == ("acme", Tier.BACKGROUND, 2.0)
        assert fields_of({**settings, **priorities}, plain, 9, **forged) == ("acme", Tier.BACKGROUND, 1.0)
        assert fields_of({**settings, "policy": "vtc"}, acme, **forged) == ("acme", Tier.STANDARD, 2.0)
    assert fields_of({}, None, **forged) == ("unknown", Tier.STANDARD, 1.0)


def test_an_embedding_has_the_operators_identity() -> None:
    trace_headers = add_identity(None, TenantIdentity("acme", Tier.PREMIUM))
    request = SimpleNamespace(priority=0, sampling_params=None, pooling_params=None, trace_headers=trace_headers)
    fields = request_fields(request, scheduler_settings({}, "fcfs"))
    assert (fields.tenant, fields.tier) == ("acme", Tier.PREMIUM)


def request_for(parameters: Any) -> Any:
    pooling = hasattr(parameters, "extra_kwargs")
    return SimpleNamespace(
        priority=0,
        sampling_params=None if pooling else parameters,
        pooling_params=parameters if pooling else None,
        trace_headers=None,
    )


TRUSTING = scheduler_settings({"headgate": {"trust_client_fields": True}}, "fcfs")


@pytest.mark.parametrize("argument", ["extra_args", "extra_kwargs"])
def test_python_code_names_the_tenant_of_a_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argument: str
) -> None:
    """Its tier and weight are those of the file, whatever other fields the request has."""
    file = tmp_path / "tenants.toml"
    file.write_text('[tenants.acme]\ntier = "premium"\nweight = 2.0\n', encoding="utf-8")
    monkeypatch.setenv(TENANTS_VARIABLE, str(file))
    before = SimpleNamespace(**{argument: {"headgate_tenant": "other", "headgate_weight": 9.0, "theirs": 1}})
    after = headgate_vllm.for_tenant(before, "acme")
    assert "headgate_identity" not in getattr(before, argument)
    assert getattr(after, argument)["theirs"] == 1
    fields = request_fields(request_for(after), TRUSTING)
    assert (fields.tenant, fields.tier, fields.weight, fields.wrong) == ("acme", Tier.PREMIUM, 2.0, ())
    again = request_fields(request_for(headgate_vllm.for_tenant(after, "globex")), TRUSTING)
    assert (again.tenant, again.tier, again.weight) == ("globex", Tier.STANDARD, 1.0)
    forged = request_fields(request_for(after), scheduler_settings({}, "fcfs"))
    assert (forged.tenant, forged.tier, forged.ignored, forged.is_named) == ("unknown", Tier.STANDARD, True, False)


def test_without_a_file_each_name_is_a_usual_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TENANTS_VARIABLE, raising=False)
    parameters = headgate_vllm.for_tenant(SimpleNamespace(extra_args=None), "acme")
    fields = request_fields(
        request_for(parameters), scheduler_settings({"headgate": {"trust_client_fields": True}}, "fcfs")
    )
    assert (fields.tenant, fields.tier, fields.weight, fields.is_named) == ("acme", Tier.STANDARD, 1.0, True)


class SaltedRequest(SimpleNamespace):
    def update_block_hashes(self) -> None:
        self.block_hashes.append(self.cache_salt)


def salt_of(parameters: SimpleNamespace, own: str | None = None, trace_headers: object = None) -> str | None:
    """Return the salt under which a request's blocks are hashed in the end."""
    request = SaltedRequest(**vars(request_for(parameters)), cache_salt=own, block_hashes=[own])
    request.trace_headers = trace_headers
    salt_prefixes(request)
    assert request.block_hashes == [request.cache_salt], "the blocks were hashed under another salt before"
    return request.cache_salt  # type: ignore[no-any-return]


@pytest.mark.parametrize("argument", ["extra_args", "extra_kwargs"])
def test_python_code_gets_the_salt_of_the_middleware(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argument: str
) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text('[tenants.a]\nprefix_group = "g"\n[tenants.b]\nprefix_group = "g"\n', encoding="utf-8")
    monkeypatch.setenv(TENANTS_VARIABLE, str(file))
    a, b, g = (headgate_vllm.for_tenant(SimpleNamespace(**{argument: None}), name) for name in "abg")
    assert salt_of(a) == salt_of(b) == cache_salt(TenantIdentity("a", prefix_group="g"), None)
    assert salt_of(g) == cache_salt(TenantIdentity("g"), None) != salt_of(a), "a tenant has the name of a group"
    assert salt_of(a, "own") == cache_salt(TenantIdentity("b", prefix_group="g"), "own") != salt_of(a)
    assert salt_of(headgate_vllm.for_tenant(a, "g")) == salt_of(g)
    assert salt_of(SimpleNamespace(**{argument: {}}), "own") == "own"
    salted = add_identity(None, TenantIdentity("a"))
    assert salt_of(a, "of the middleware", salted) == "of the middleware"
    forged = SimpleNamespace(**{argument: {"headgate_identity": "-/1.0/a", "headgate_prefix_group": 7}})
    assert salt_of(forged) == cache_salt(TenantIdentity("a"), None)


@pytest.mark.parametrize(
    "entry", [7, "", "premium", "premium/x/acme", "premium/nan/acme", "-/1.0/", "-/1e30/a", "-/1.0/\ud800"]
)
def test_an_identity_that_cannot_be_read_ends_its_request(entry: object) -> None:
    parameters = SimpleNamespace(extra_args={"headgate_identity": entry})
    fields = request_fields(
        request_for(parameters), scheduler_settings({"headgate": {"trust_client_fields": True}}, "fcfs")
    )
    assert (fields.tenant, fields.wrong) == ("unknown", ("identity",))


@pytest.mark.parametrize("name", ["", " acme", "a\nb", "x" * 129, None, 7])
def test_what_is_no_name_of_a_tenant_is_refused(monkeypatch: pytest.MonkeyPatch, name: Any) -> None:
    monkeypatch.delenv(TENANTS_VARIABLE, raising=False)
    with pytest.raises(ValueError, match="is not the name of a tenant"):
        headgate_vllm.for_tenant(SimpleNamespace(extra_args=None), name)


def test_a_server_needs_what_names_the_tenant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text("[tenants.acme]\n", encoding="utf-8")
    monkeypatch.setenv(TENANTS_VARIABLE, str(file))
    with pytest.raises(ValueError, match="should have either header or keys"):
        tenants_of_start()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('header = "x"\n[keys]\na = "b"\n', "should have either header or keys"),
        ('tier_header = "x"\n[keys]\na = "b"\n', "tier_header needs header"),
        ('header = "x tenant"\n', "'x tenant' is not the name of a header"),
        ('header = "x"\ntier_header = "X"\n', "header and tier_header cannot be the same"),
        ('headr = "x"\n', "no setting 'headr' (did you mean 'header'?)"),
        ('header = "x"\nunknown = "allow"\n', "unknown should be one of refuse, share, not 'allow'"),
        ('header = "x"\n[tenants.a]\ntier = "system"\n', "tenants.a.tier should be one of premium, standard, backgr"),
        ('header = "x"\n[tenants.a]\nweight = 1e-20\n', "weight must be at least 0.01 and at most 100, not 1e-20"),
        ('header = "x"\n[tenants.a]\nweight = nan\n', "weight must be finite"),
        ('header = "x"\n[tenants.a]\nprefix_group = ""\n', "'' is not the name of a prefix_group"),
        ('header = "x"\n[tenants.a]\nprefix_group = 3\n', "tenants.a.prefix_group should be"),
        ('header = "x"\n[tenants.a]\nweigth = 2\n', "no setting 'weigth' (did you mean 'weight'?)"),
        ('header = "x"\n[tenants." "]\n', "' ' is not the name of a tenant"),
        ('[keys]\n"" = "a"\n', "a key is empty"),
        ('[keys]\n"sha256:12" = "a"\n', "has not 64 hexadecimal digits"),
        ('[keys]\nsk.acme = "a"\n', "quote a key that has a dot"),
        ('[keys]\na = "acme"\n[tenants.acne]\n', "no key is for the tenant 'acne' (did you mean 'acme'?)"),
        (f'[keys]\na = "a"\n"sha256:{sha256(b"a").hexdigest()}" = "b"\n', "a key is there twice"),
        ("header = x", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence_with_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text(text)
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        read_tenants(file)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith(str(file))
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_tenants(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="cannot be read: it is not UTF-8"):
        read_tenants(tmp_path / "binary")


def test_the_name_of_the_middleware_refuses_a_wrong_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM gets the name at its start; the object only with the first request."""
    monkeypatch.delenv(TENANTS_VARIABLE, raising=False)
    checked: list[Any] = []
    monkeypatch.setattr(tenants, "require_vllm", checked.extend)
    with pytest.raises(ValueError, match="needs HEADGATE_TENANTS"):
        _ = headgate_vllm.Tenants
    assert checked == ["tenants"]
    (tmp_path / "tenants.toml").write_text(BY_HEADER)
    monkeypatch.setenv(TENANTS_VARIABLE, str(tmp_path / "tenants.toml"))
    assert headgate_vllm.Tenants is TenantMiddleware
    with pytest.raises(AttributeError, match="no attribute 'Tenant'"):
        _ = headgate_vllm.Tenant
