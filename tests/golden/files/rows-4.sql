BEGIN TRANSACTION;
CREATE TABLE audit (month TEXT NOT NULL, at TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (month, at)) WITHOUT ROWID;
INSERT INTO "audit" VALUES('1970-01','00001000001000#id1','{"id": "id1", "at": 1000001.0, "actor": "local:zo\u00eb@host", "action": "tenant.create", "tenant": "acme.k3f9x2m7q8ab", "before": null, "after": "{\"weight\": 0.1}"}');
INSERT INTO "audit" VALUES('1970-01','00001000002000#id2','{"id": "id2", "at": 1000002.0, "actor": "local:zo\u00eb@host", "action": "tenant.change", "tenant": "acme.k3f9x2m7q8ab", "before": "{\"queue_items_max\": 7}", "after": "{\"queue_items_max\": 9}"}');
INSERT INTO "audit" VALUES('1970-01','00001000003000#id3','{"id": "id3", "at": 1000003.0, "actor": "local:zo\u00eb@host", "action": "key.create", "tenant": "acme.k3f9x2m7q8ab", "before": null, "after": "{\"prefix\": \"hg-92P86yxr\"}"}');
INSERT INTO "audit" VALUES('1970-01','00001000004000#id4','{"id": "id4", "at": 1000004.0, "actor": "local:zo\u00eb@host", "action": "tenant.delete", "tenant": "acme.k3f9x2m7q8ab", "before": "{}", "after": null}');
CREATE TABLE batches (
    tenant TEXT NOT NULL, id TEXT NOT NULL, pool TEXT NOT NULL, is_open INTEGER NOT NULL, version INTEGER NOT NULL,
    expires_at REAL NOT NULL, record TEXT NOT NULL, PRIMARY KEY (tenant, id)) WITHOUT ROWID;
INSERT INTO "batches" VALUES('acme.k3f9x2m7q8ab','batch_0','default',1,2,1000100.0,'{"id": "batch_0", "tenant": "acme.k3f9x2m7q8ab", "pool": "default", "endpoint": "/v1/chat/completions", "input_file_id": "file-1", "window": "24h", "created_at": 1000000.1, "expires_at": 1000050.0, "forgotten_at": 1000100.0, "metadata": {"order": "\u00e9"}, "status": "in_progress", "version": 2, "runner": "", "claimed_until": 0.0, "total": 0, "completed": 0, "failed": 0, "input_tokens": 0, "output_tokens": 0, "next_line": 0, "next_byte": 0, "parts": ["part"], "output_file_id": "", "error_file_id": "", "errors": [], "times": {"in_progress": 1000000.0}}');
INSERT INTO "batches" VALUES('acme.k3f9x2m7q8ab','batch_1','default',0,1,1000100.0,'{"id": "batch_1", "tenant": "acme.k3f9x2m7q8ab", "pool": "default", "endpoint": "/v1/chat/completions", "input_file_id": "file-1", "window": "24h", "created_at": 1000000.1, "expires_at": 1000050.0, "forgotten_at": 1000100.0, "metadata": {"order": "\u00e9"}, "status": "validating", "version": 1, "runner": "", "claimed_until": 0.0, "total": 0, "completed": 0, "failed": 0, "input_tokens": 0, "output_tokens": 0, "next_line": 0, "next_byte": 0, "parts": [], "output_file_id": "", "error_file_id": "", "errors": [], "times": {}}');
CREATE TABLE files (
    tenant TEXT NOT NULL, id TEXT NOT NULL, expires_at REAL NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (tenant, id)) WITHOUT ROWID;
INSERT INTO "files" VALUES('acme.k3f9x2m7q8ab','file-0',1000100.0,'{"id": "file-0", "tenant": "acme.k3f9x2m7q8ab", "filename": "requests \u00e9 0.jsonl", "purpose": "batch", "size_bytes": 10, "created_at": 1000000.25, "expires_at": 1000100.0}');
CREATE TABLE invocations (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, key TEXT NOT NULL, expires_at REAL NOT NULL,
    record TEXT NOT NULL, body TEXT, answer TEXT);
INSERT INTO "invocations" VALUES('p-0','acme.k3f9x2m7q8ab','key é',1086500.0,'{"id": "p-0", "tenant": "acme.k3f9x2m7q8ab", "key": "key \u00e9", "pool": "default", "model": "m", "fingerprint": "digest of p-0", "created_at": 1000000.1, "deadline_at": 1000100.0, "endpoint": "chat", "body": null, "trace": "00-1-2-01"}','{"prompt": "é"}',NULL);
INSERT INTO "invocations" VALUES('p-1','zoë','answered',1086500.0,'{"id": "p-1", "tenant": "zo\u00eb", "key": "answered", "pool": "default", "model": "m", "fingerprint": "digest of p-1", "created_at": 1000000.1, "deadline_at": 1000100.0, "endpoint": "chat", "body": null, "trace": ""}',NULL,'{"outcome": "done", "attempt": 1, "input_tokens": 2, "output_tokens": 3, "body": "an answer", "ended_at": 1000000.3333333334}');
INSERT INTO "invocations" VALUES('p-2','zoë','shared',1086500.0,'{"id":"p-2","tenant":"zo\u00eb","key":"shared","pool":"default","model":"m","fingerprint":"digest of p-2","created_at":1000000.1,"deadline_at":1000100.0,"endpoint":"chat","body":null,"trace":"","shared":true}','{"prompt": "é"}',NULL);
INSERT INTO "invocations" VALUES('p-3','zoë','refused',1086500.0,'{"id": "p-3", "tenant": "zo\u00eb", "key": "refused", "pool": "default", "model": "m", "fingerprint": "digest of p-3", "created_at": 1000000.1, "deadline_at": 1000100.0, "endpoint": "chat", "body": null, "trace": ""}',NULL,'{"outcome": "failed", "attempt": 1, "input_tokens": 2, "output_tokens": 3, "body": "{\"error\":{\"code\":\"queue_full\"},\"status\":429}", "ended_at": 1000000.3333333334}');
CREATE TABLE keys (prefix TEXT PRIMARY KEY, tenant TEXT NOT NULL, record TEXT NOT NULL);
INSERT INTO "keys" VALUES('hg-92P86yxr','acme.k3f9x2m7q8ab','{"prefix": "hg-92P86yxr", "digest": "abababababababababababababababababababababababababababababababab", "tenant": "acme.k3f9x2m7q8ab", "expires_at": 1003600.0, "created_at": 1000000.5, "slo_class": "batch"}');
INSERT INTO "keys" VALUES('hg-old','zoë','{"prefix": "hg-old", "digest": "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd", "tenant": "zo\u00eb", "expires_at": null, "created_at": 0.0, "slo_class": ""}');
CREATE TABLE log (
    shard TEXT NOT NULL, position INTEGER NOT NULL, entry BLOB NOT NULL, written_at REAL NOT NULL,
    PRIMARY KEY (shard, position)) WITHOUT ROWID;
INSERT INTO "log" VALUES('pool-0',0,X'6A5B305D',1000000.0);
INSERT INTO "log" VALUES('pool-0',1,X'6A5B315D',1000000.0);
INSERT INTO "log" VALUES('pool-0',2,X'7A00FF',1000000.0);
CREATE TABLE mailboxes (
    process TEXT NOT NULL, position INTEGER NOT NULL, news BLOB NOT NULL, expires_at REAL NOT NULL,
    PRIMARY KEY (process, position, news));
INSERT INTO "mailboxes" VALUES('p',7,X'5B226F222C22702D30222C312C227731222C22687474703A2F2F77313A38303030222C375D',1003600.0);
INSERT INTO "mailboxes" VALUES('p',7,X'5B2264225D',1003600.0);
CREATE TABLE response_bytes (
    tenant TEXT NOT NULL, hour INTEGER NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (tenant, hour)) WITHOUT ROWID;
INSERT INTO "response_bytes" VALUES('acme.k3f9x2m7q8ab',278,8);
CREATE TABLE responses (
    tenant TEXT NOT NULL, id TEXT NOT NULL, expires_at REAL NOT NULL, content BLOB NOT NULL, PRIMARY KEY (tenant, id));
INSERT INTO "responses" VALUES('acme.k3f9x2m7q8ab','resp_p-1',1000100.0,X'00636F6E74656E74');
CREATE TABLE snapshots (
    shard TEXT NOT NULL, position INTEGER NOT NULL, nonce TEXT NOT NULL, state BLOB NOT NULL, checksum TEXT NOT NULL,
    written_at REAL NOT NULL, PRIMARY KEY (shard, position, nonce));
INSERT INTO "snapshots" VALUES('pool-0',1,'first',X'6A736E617073686F74','e1cbb2ea862e11bf7d72270802f1a55390ddd3cca8093e18c3855017cd6d0525',1000000.0);
INSERT INTO "snapshots" VALUES('pool-0',2,'second',X'7A00FF','14bee5abe56b6e0c263a34bbc52a6dd6c610a807a9db58b1c4357365d3edc6b9',1000000.0);
CREATE TABLE tenant_rows (
    shard TEXT NOT NULL, tenant TEXT NOT NULL, position INTEGER NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (shard, tenant));
INSERT INTO "tenant_rows" VALUES('pool-0','acme.k3f9x2m7q8ab',1,'{"tenant": "acme.k3f9x2m7q8ab", "version": 3, "tier": "premium", "weight": 0.1, "rate_per_s": 333333333.3333333, "burst": 12345.678901234567, "waiting": 4, "running": 5, "reserved": 10.0, "spent": 8.0, "clocks": [1000000.1, -0.0, 0.6666666666666666], "credit": null, "at": 1000000.0, "position": 1}');
CREATE TABLE tenants (name TEXT PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL);
INSERT INTO "tenants" VALUES('acme.k3f9x2m7q8ab',2,'{"name": "acme.k3f9x2m7q8ab", "weight": 0.1, "rate_per_s": 333333333.3333333, "burst": 12345.678901234567, "tier": "premium", "models": ["m", "n"], "queue_items_max": 9, "max_tokens_max": 8, "version": 2, "slo_class": "night"}');
INSERT INTO "tenants" VALUES('zoë',1,'{"name": "zo\u00eb", "weight": 1.0, "rate_per_s": 0.0, "burst": 0.0, "tier": "standard", "models": null, "queue_items_max": 1000, "max_tokens_max": 4096, "version": 1, "slo_class": ""}');
CREATE TABLE usage (
    hour INTEGER NOT NULL, tenant TEXT NOT NULL, app TEXT NOT NULL, shard TEXT NOT NULL, position INTEGER NOT NULL,
    record TEXT NOT NULL, PRIMARY KEY (hour, tenant, app, shard));
INSERT INTO "usage" VALUES(277,'acme.k3f9x2m7q8ab','chat','pool-0',1,'{"tenant": "acme.k3f9x2m7q8ab", "app": "chat", "hour": 277, "requests": 1, "input_tokens": 2, "output_tokens": 3, "service": 333333333.3333333, "position": 1, "cached_tokens": 0}');
INSERT INTO "usage" VALUES(277,'zoë','','pool-0',1,'{"tenant": "zo\u00eb", "app": "", "hour": 277, "requests": 1, "input_tokens": 2, "output_tokens": 3, "service": 333333333.3333333, "position": 1, "cached_tokens": 1}');
CREATE INDEX mailboxes_by_expiry ON mailboxes (expires_at);
CREATE UNIQUE INDEX invocations_by_key ON invocations (tenant, key) WHERE key <> '';
CREATE INDEX invocations_by_expiry ON invocations (expires_at);
CREATE INDEX usage_by_tenant ON usage (tenant, hour);
CREATE INDEX keys_by_tenant ON keys (tenant);
CREATE INDEX responses_by_expiry ON responses (expires_at);
CREATE INDEX response_bytes_by_hour ON response_bytes (hour);
CREATE INDEX files_by_expiry ON files (expires_at);
CREATE INDEX batches_by_expiry ON batches (expires_at);
CREATE INDEX open_batches ON batches (pool, id) WHERE is_open;
COMMIT;
PRAGMA user_version = 4;
