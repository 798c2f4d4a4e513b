BEGIN TRANSACTION;
CREATE TABLE items (
    pk TEXT NOT NULL, sk TEXT NOT NULL, expires_at INTEGER, attributes TEXT NOT NULL, PRIMARY KEY (pk, sk));
INSERT INTO "items" VALUES('TENANT#acme','NAME',NULL,'{"identity": "acme.k3f9x2m7q8ab"}');
INSERT INTO "items" VALUES('AUDIT#1970-01','00001000001000#id1',NULL,'{"id": "id1", "at": 1000001.0, "actor": "local:zo\u00eb@host", "action": "tenant.create", "tenant": "acme.k3f9x2m7q8ab", "after": "{\"weight\": 0.1}"}');
INSERT INTO "items" VALUES('TENANT#acme.k3f9x2m7q8ab','CONFIG',NULL,'{"name": "acme.k3f9x2m7q8ab", "weight": 0.1, "rate_per_s": 333333333.3333333, "burst": 12345.678901234567, "tier": "premium", "models": ["m", "n"], "queue_items_max": 9, "max_tokens_max": 8, "version": 2, "slo_class": "night", "nonce": "1-1"}');
INSERT INTO "items" VALUES('TENANTS','acme.k3f9x2m7q8ab',NULL,'{"name": "acme.k3f9x2m7q8ab", "weight": 0.1, "rate_per_s": 333333333.3333333, "burst": 12345.678901234567, "tier": "premium", "models": ["m", "n"], "queue_items_max": 9, "max_tokens_max": 8, "version": 2, "slo_class": "night"}');
INSERT INTO "items" VALUES('AUDIT#1970-01','00001000002000#id2',NULL,'{"id": "id2", "at": 1000002.0, "actor": "local:zo\u00eb@host", "action": "tenant.change", "tenant": "acme.k3f9x2m7q8ab", "before": "{\"queue_items_max\": 7}", "after": "{\"queue_items_max\": 9}"}');
INSERT INTO "items" VALUES('TENANT#zoë','CONFIG',NULL,'{"name": "zo\u00eb", "weight": 1.0, "rate_per_s": 0.0, "burst": 0.0, "tier": "standard", "queue_items_max": 1000, "max_tokens_max": 4096, "version": 1, "slo_class": "", "nonce": "1-2"}');
INSERT INTO "items" VALUES('TENANTS','zoë',NULL,'{"name": "zo\u00eb", "weight": 1.0, "rate_per_s": 0.0, "burst": 0.0, "tier": "standard", "queue_items_max": 1000, "max_tokens_max": 4096, "version": 1, "slo_class": ""}');
INSERT INTO "items" VALUES('KEY#hg-92P86yxr','KEY',1003600,'{"prefix": "hg-92P86yxr", "digest": "abababababababababababababababababababababababababababababababab", "tenant": "acme.k3f9x2m7q8ab", "expires_at": 1003600.0, "created_at": 1000000.5, "slo_class": "batch"}');
INSERT INTO "items" VALUES('TENANT#acme.k3f9x2m7q8ab','KEY#hg-92P86yxr',1003600,'{"prefix": "hg-92P86yxr", "digest": "abababababababababababababababababababababababababababababababab", "tenant": "acme.k3f9x2m7q8ab", "expires_at": 1003600.0, "created_at": 1000000.5, "slo_class": "batch"}');
INSERT INTO "items" VALUES('AUDIT#1970-01','00001000003000#id3',NULL,'{"id": "id3", "at": 1000003.0, "actor": "local:zo\u00eb@host", "action": "key.create", "tenant": "acme.k3f9x2m7q8ab", "after": "{\"prefix\": \"hg-92P86yxr\"}"}');
INSERT INTO "items" VALUES('KEY#hg-old','KEY',NULL,'{"prefix": "hg-old", "digest": "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd", "tenant": "zo\u00eb", "created_at": 0.0, "slo_class": ""}');
INSERT INTO "items" VALUES('TENANT#zoë','KEY#hg-old',NULL,'{"prefix": "hg-old", "digest": "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd", "tenant": "zo\u00eb", "created_at": 0.0, "slo_class": ""}');
INSERT INTO "items" VALUES('AUDIT#1970-01','00001000004000#id4',NULL,'{"id": "id4", "at": 1000004.0, "actor": "local:zo\u00eb@host", "action": "tenant.delete", "tenant": "acme.k3f9x2m7q8ab", "before": "{}"}');
INSERT INTO "items" VALUES('CALL#acme.k3f9x2m7q8ab','cd26ec08610abee07c318e6a9c201d8c845aacb125364bf86ac334b6aee400dc',1086500,'{"id": "p-0"}');
INSERT INTO "items" VALUES('INV#p-0','INV',1086500,'{"id": "p-0", "tenant": "acme.k3f9x2m7q8ab", "key": "key \u00e9", "pool": "default", "model": "m", "fingerprint": "digest of p-0", "created_at": 1000000.1, "deadline_at": 1000100.0, "endpoint": "chat", "body": "{\"prompt\": \"\u00e9\"}", "trace": "00-1-2-01"}');
INSERT INTO "items" VALUES('CALL#zoë','68c780cd132a0299c7cd3fa8649783cbc2872a98d90cd4ed6b9696e3c61c4c68',1086500,'{"id": "p-1"}');
INSERT INTO "items" VALUES('INV#p-1','INV',1086500,'{"id": "p-1", "tenant": "zo\u00eb", "key": "answered", "pool": "default", "model": "m", "fingerprint": "digest of p-1", "created_at": 1000000.1, "deadline_at": 1000100.0, "endpoint": "chat", "trace": "", "answer": {"outcome": "done", "attempt": 1, "input_tokens": 2, "output_tokens": 3, "body": "an answer", "ended_at": 1000000.3333333334}}');
INSERT INTO "items" VALUES('CALL#zoë','a4d26868017c0ccffe2efe50944ef4211834660cca834c6e9f86dec6a88246fa',1086500,'{"id": "p-2"}');
INSERT INTO "items" VALUES('INV#p-2','INV',1086500,'{"id": "p-2", "tenant": "zo\u00eb", "key": "shared", "pool": "default", "model": "m", "fingerprint": "digest of p-2", "created_at": 1000000.1, "deadline_at": 1000100.0, "endpoint": "chat", "body": "{\"prompt\": \"\u00e9\"}", "trace": "", "shared": true}');
INSERT INTO "items" VALUES('CALL#zoë','83c874d33e8bff73caaa762c79cd1ed101d727c7f20fe4972c67e67978292f23',1086500,'{"id": "p-3"}');
INSERT INTO "items" VALUES('INV#p-3','INV',1086500,'{"id": "p-3", "tenant": "zo\u00eb", "key": "refused", "pool": "default", "model": "m", "fingerprint": "digest of p-3", "created_at": 1000000.1, "deadline_at": 1000100.0, "endpoint": "chat", "trace": "", "answer": {"outcome": "failed", "attempt": 1, "input_tokens": 2, "output_tokens": 3, "body": "{\"error\":{\"code\":\"queue_full\"},\"status\":429}", "ended_at": 1000000.3333333334}}');
INSERT INTO "items" VALUES('RESP#acme.k3f9x2m7q8ab#resp_p-1','0000',1000100,'{"nonce": "1-9", "content": {"base64": "AGNvbnRlbnQ="}, "parts": 1, "bytes": 8, "expires_at": 1000100.0}');
INSERT INTO "items" VALUES('RESP#acme.k3f9x2m7q8ab','00000278',1000800,'{"bytes": 8}');
INSERT INTO "items" VALUES('FILE#acme.k3f9x2m7q8ab','file-0',1000100,'{"record": "{\"id\": \"file-0\", \"tenant\": \"acme.k3f9x2m7q8ab\", \"filename\": \"requests \\u00e9 0.jsonl\", \"purpose\": \"batch\", \"size_bytes\": 10, \"created_at\": 1000000.25, \"expires_at\": 1000100.0}"}');
INSERT INTO "items" VALUES('OPEN#default','batch_0',1000100,'{"tenant": "acme.k3f9x2m7q8ab"}');
INSERT INTO "items" VALUES('BATCH#acme.k3f9x2m7q8ab','batch_1',1000100,'{"version": 1, "record": "{\"id\": \"batch_1\", \"tenant\": \"acme.k3f9x2m7q8ab\", \"pool\": \"default\", \"endpoint\": \"/v1/chat/completions\", \"input_file_id\": \"file-1\", \"window\": \"24h\", \"created_at\": 1000000.1, \"expires_at\": 1000050.0, \"forgotten_at\": 1000100.0, \"metadata\": {\"order\": \"\\u00e9\"}, \"status\": \"validating\", \"version\": 1, \"runner\": \"\", \"claimed_until\": 0.0, \"total\": 0, \"completed\": 0, \"failed\": 0, \"input_tokens\": 0, \"output_tokens\": 0, \"next_line\": 0, \"next_byte\": 0, \"parts\": [], \"output_file_id\": \"\", \"error_file_id\": \"\", \"errors\": [], \"times\": {}}"}');
INSERT INTO "items" VALUES('BATCH#acme.k3f9x2m7q8ab','batch_0',1000100,'{"version": 2, "record": "{\"id\": \"batch_0\", \"tenant\": \"acme.k3f9x2m7q8ab\", \"pool\": \"default\", \"endpoint\": \"/v1/chat/completions\", \"input_file_id\": \"file-1\", \"window\": \"24h\", \"created_at\": 1000000.1, \"expires_at\": 1000050.0, \"forgotten_at\": 1000100.0, \"metadata\": {\"order\": \"\\u00e9\"}, \"status\": \"in_progress\", \"version\": 2, \"runner\": \"\", \"claimed_until\": 0.0, \"total\": 0, \"completed\": 0, \"failed\": 0, \"input_tokens\": 0, \"output_tokens\": 0, \"next_line\": 0, \"next_byte\": 0, \"parts\": [\"part\"], \"output_file_id\": \"\", \"error_file_id\": \"\", \"errors\": [], \"times\": {\"in_progress\": 1000000.0}}"}');
INSERT INTO "items" VALUES('USAGE#11','acme.k3f9x2m7q8ab#00000277#pool-0#chat',35560000,'{"tenant": "acme.k3f9x2m7q8ab", "app": "chat", "hour": 277, "requests": 1, "input_tokens": 2, "output_tokens": 3, "service": 333333333.3333333, "position": 1, "cached_tokens": 0, "shard": "pool-0"}');
INSERT INTO "items" VALUES('USAGE#11','zoë#00000277#pool-0#',35560000,'{"tenant": "zo\u00eb", "app": "", "hour": 277, "requests": 1, "input_tokens": 2, "output_tokens": 3, "service": 333333333.3333333, "position": 1, "cached_tokens": 1, "shard": "pool-0"}');
INSERT INTO "items" VALUES('STATE#pool-0','acme.k3f9x2m7q8ab',1604800,'{"tenant": "acme.k3f9x2m7q8ab", "version": 3, "tier": "premium", "weight": 0.1, "rate_per_s": 333333333.3333333, "burst": 12345.678901234567, "waiting": 4, "running": 5, "reserved": 10.0, "spent": 8.0, "clocks": [1000000.1, -0.0, 0.6666666666666666], "at": 1000000.0, "position": 1}');
INSERT INTO "items" VALUES('MAIL#p','00000000000007#f0626f28b1c0',1003600,'{"news": [{"base64": "WyJvIiwicC0wIiwxLCJ3MSIsImh0dHA6Ly93MTo4MDAwIiw3XQ=="}, {"base64": "WyJkIl0="}]}');
CREATE TABLE log (
    shard TEXT NOT NULL, position INTEGER NOT NULL, entry BLOB NOT NULL, written_at REAL NOT NULL,
    PRIMARY KEY (shard, position)) WITHOUT ROWID;
INSERT INTO "log" VALUES('pool-0',0,X'6A5B305D',1000000.0);
INSERT INTO "log" VALUES('pool-0',1,X'6A5B315D',1000000.0);
INSERT INTO "log" VALUES('pool-0',2,X'7A00FF',1000000.0);
CREATE TABLE nonces (taken INTEGER NOT NULL);
INSERT INTO "nonces" VALUES(1);
CREATE TABLE snapshots (
    shard TEXT NOT NULL, position INTEGER NOT NULL, nonce TEXT NOT NULL, state BLOB NOT NULL, checksum TEXT NOT NULL,
    written_at REAL NOT NULL, PRIMARY KEY (shard, position, nonce));
INSERT INTO "snapshots" VALUES('pool-0',1,'first',X'6A736E617073686F74','e1cbb2ea862e11bf7d72270802f1a55390ddd3cca8093e18c3855017cd6d0525',1000000.0);
INSERT INTO "snapshots" VALUES('pool-0',2,'second',X'7A00FF','14bee5abe56b6e0c263a34bbc52a6dd6c610a807a9db58b1c4357365d3edc6b9',1000000.0);
CREATE INDEX items_by_expiry ON items (expires_at);
COMMIT;
PRAGMA user_version = 5;
