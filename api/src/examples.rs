//! An example of every operation of the document: what is sent, and what comes back. `api/tests/api/examples.rs` checks that they
//! fit the schemas, and that the requests are accepted.

use serde_json::{Value, json};

/// One operation as it is used.
pub struct Example {
    /// The body; none where nothing need be sent.
    pub request: Option<Value>,
    /// The body of the first success that the document lists; none where there is none.
    pub response: Option<Value>,
}

/// The example of an operation; `None` where there is no such operation.
pub fn of(operation_id: &str) -> Option<Example> {
    let example = match operation_id {
        "create_sandbox" => exchange(
            json!({
                "template": "base", "timeout": 600, "lifecycle": {"on_timeout": "pause", "auto_resume": true},
                "metadata": {"job": "42"}, "envs": {"GREETING": "hello"}, "exposed_ports": [{"port": 8000, "public": true}],
                "allow_internet_access": false, "allow_out": ["api.example.com:443"],
            }),
            with(sandbox(), json!({"session": session()})),
        ),
        "list_sandboxes" => response(json!({"sandboxes": [sandbox()], "next_token": "WyJzYngwNmYza3E4Il0"})),
        "show_sandbox" => response(sandbox()),
        "update_sandbox" => exchange(
            json!({"timeout": 1200, "metadata": {"job": "42", "step": "test"}}),
            with(
                sandbox(),
                json!({"timeout": 1200, "deadline": "2026-01-01T00:20:00Z",
                                   "metadata": {"job": "42", "step": "test"}}),
            ),
        ),
        "delete_sandbox"
        | "delete_checkpoint"
        | "unexpose_port"
        | "delete_volume"
        | "delete_volume_file"
        | "delete_volume_path"
        | "delete_template"
        | "delete_template_version"
        | "delete_build_file"
        | "log_out"
        | "end_my_session"
        | "unlink_my_identity"
        | "delete_member"
        | "delete_invitation"
        | "revoke_api_key"
        | "delete_webhook" => Example { request: None, response: None },
        "connect_sandbox" | "resume_sandbox" => {
            exchange(json!({"timeout": 600}), json!({"session": session(), "sandbox": sandbox()}))
        }
        "read_sandbox_file" => Example { request: None, response: None },
        "list_sandbox_directory" => response(json!({"entries": [sandbox_entry()]})),
        "show_sandbox_path" => response(sandbox_entry()),
        "explain_network" => response(json!({"decisions": [
            {"destination": "tcp:api.example.com:443", "allowed": true, "rule": "allow_out \"api.example.com:443\""},
        ]})),
        "create_session" => response(json!({"session": session()})),
        "pause_sandbox" | "stop_sandbox" => exchange(
            json!({"force": false}),
            with(sandbox(), json!({"state": "stopped", "deadline": null, "stopped_at": "2026-01-01T00:05:00Z"})),
        ),
        "fork_sandbox" => exchange(
            json!({"count": 1}),
            json!({"sandboxes": [with(sandbox(), json!({"id": "sbx06f3kqd1xw8n4j5c2r7m9e", "session": session()}))]}),
        ),
        "create_checkpoint" => exchange(json!({"name": "installed", "memory": true}), checkpoint()),
        "list_sandbox_checkpoints" | "list_checkpoints" => response(json!({"checkpoints": [checkpoint()]})),
        "show_checkpoint" => response(checkpoint()),
        "create_volume" => exchange(json!({"name": "models"}), volume()),
        "list_volumes" => response(json!({"volumes": [volume()]})),
        "show_volume" => response(volume()),
        "read_volume_file" => response(json!({
            "path": "/models/names.txt", "size": 6, "mode": "0644", "content_b64": "c21hbGwK",
        })),
        "write_volume_file" => exchange(
            json!({"path": "/models/names.txt", "content_b64": "c21hbGwK", "mode": "0644"}),
            entry("/models/names.txt", "file"),
        ),
        "list_volume_directory" => response(json!({"entries": [entry("/models/names.txt", "file")]})),
        "make_volume_directory" => exchange(json!({"mode": "0755"}), entry("/models", "directory")),
        "show_volume_path" => response(entry("/models/names.txt", "file")),
        "change_volume_path" => exchange(json!({"mode": "0644"}), entry("/models/names.txt", "file")),
        "expose_port" => exchange(json!({"public": true}), port("closed")),
        "show_port" => response(port("open")),
        "replace_network" => exchange(
            json!({"allow_internet_access": false, "allow_out": ["api.example.com:443"]}),
            json!({"network": network(), "apply_status": "applied"}),
        ),
        "list_denied" => response(json!({"total": 3, "denied": [{
            "time": "2026-01-01T00:04:00Z", "protocol": "tcp", "host": "198.51.100.7", "port": 22,
            "rule": "allow_internet_access is false", "count": 3,
        }]})),
        "list_egress_profiles" => response(json!({"profiles": ["package-registries"]})),
        "show_logs" => response(json!({"next_cursor": 3, "truncated": false, "entries": [
            {"sequence": 1, "time": "2026-01-01T00:00:00Z", "source": "host", "message": "created from template base"},
            {"sequence": 2, "time": "2026-01-01T00:00:00Z", "source": "host", "message": "ready"},
            {"sequence": 3, "time": "2026-01-01T00:00:01Z", "source": "process", "message": "listening on port 3000", "process": {
                "pid": 312, "command": "node", "tag": "start", "stream": "stdout", "cut": false,
            }},
        ]})),
        "show_metrics" => response(json!({"step": 5, "cpu": 1, "memory_mb": 512, "disk_gib": 20, "points": [{
            "time": "2026-01-01T00:01:00Z", "cpu_used_pct": 12.5, "memory_bytes": 134_217_728, "disk_bytes": 1_288_490_188,
            "received_bytes_per_second": 2048, "sent_bytes_per_second": 512,
        }]})),
        "show_latest_metrics" => response(json!({"sandboxes": {"sbx06f3kq8z2m1c9w0v5t7b4a": {
            "cpu": 1, "memory_mb": 512, "disk_gib": 20, "point": {
                "time": "2026-01-01T00:01:00Z", "cpu_used_pct": 12.5, "memory_bytes": 134_217_728,
                "disk_bytes": 1_288_490_188, "received_bytes_per_second": 2048, "sent_bytes_per_second": 512,
            },
        }}})),
        "show_usage" => response(usage()),
        "show_limits" => response(limits()),
        "list_templates" => response(json!({"templates": [template()]})),
        "create_template" => exchange(
            json!({"slug": "node", "description": "Node 22 with our tools"}),
            with(template(), json!({"latest_version": null, "runtime_baseline": null})),
        ),
        "show_template" => response(template()),
        "update_template" => {
            exchange(json!({"visibility": "public"}), with(template(), json!({"visibility": "public"})))
        }
        "create_template_version" => exchange(
            json!({
                "source": {"dockerfile": {"text": "FROM registry.example/node:22\nRUN npm install -g serve\n"}},
                "tags": ["v22"], "start_cmd": "serve -l 3000 /srv", "ready_cmd": "curl -sf localhost:3000",
            }),
            with(version(), json!({"state": "queued", "position": 1, "finished_at": null, "started_at": null})),
        ),
        "list_template_versions" => response(json!({"versions": [version()]})),
        "show_template_version" => response(version()),
        "cancel_template_version" => response(with(version(), json!({"state": "cancelled"}))),
        "show_build_logs" => response(json!({"state": "building", "next_token": "eyJhZnRlciI6IjEifQ", "entries": [
            {"number": 1, "time": "2026-01-01T00:00:02Z", "level": "info", "step": 1, "text": "FROM registry.example/node:22"},
        ]})),
        "upload_build_file" => response(build_file()),
        "list_build_files" => response(json!({"uploads": [build_file()]})),
        "log_in" => exchange(json!({"email": "ada@example.com", "password": "correct horse battery"}), login()),
        "show_oidc_provider" => {
            response(json!({"provider": {"name": "Example", "issuer": "https://login.example.com"}}))
        }
        "begin_oidc_login" => exchange(
            json!({}),
            json!({
                "authorization_url": "https://login.example.com/authorize?response_type=code&client_id=sandpiper&scope=openid+email",
                "transaction": "v1:c2VhbGVk", "expires_at": "2026-01-01T00:10:00Z",
            }),
        ),
        "log_in_with_oidc" => {
            exchange(json!({"transaction": "v1:c2VhbGVk", "state": "bGlrZSBpdA", "code": "bGlrZSB0aGF0"}), login())
        }
        "show_me" => response(me()),
        "update_me" => exchange(json!({"name": "Ada"}), me()),
        "list_my_sessions" => response(json!({"sessions": [{
            "id": "ses06f3kq8z2m1c9w0v5t7b4a", "is_current": true, "created_at": "2026-01-01T00:00:00Z",
            "expires_at": "2026-01-31T00:00:00Z", "last_used_at": "2026-01-01T00:05:00Z",
        }]})),
        "list_teams" => response(json!({"teams": [team()]})),
        "create_team" => exchange(json!({"slug": "acme"}), team()),
        "show_team" => response(team()),
        "list_members" => response(json!({"members": [member("owner")]})),
        "update_member" => exchange(json!({"role": "admin"}), member("admin")),
        "list_invitations" => response(json!({"invitations": [invitation()]})),
        "create_invitation" => exchange(
            json!({"role": "member", "email": "grace@example.com"}),
            with(invitation(), json!({"token": format!("spi_{}", "5e".repeat(20))})),
        ),
        "accept_invitation" => exchange(
            json!({
                "token": format!("spi_{}", "5e".repeat(20)), "email": "ada@example.com", "name": "Ada",
                "password": "correct horse battery",
            }),
            json!({"team": team(), "session": login()}),
        ),
        "list_api_keys" => response(json!({"api_keys": [api_key()]})),
        "create_api_key" => exchange(
            json!({"team": "acme", "name": "ci", "capability": "write"}),
            with(api_key(), json!({"last_used_at": null, "key": format!("spk_{}", "5e".repeat(20))})),
        ),
        "read_events" => response(json!({"next_after": 42, "has_more": false, "events": [{
            "sequence": 42, "type": "sandbox.ready", "created_at": "2026-01-01T00:00:01Z",
            "resource": {"kind": "sandbox", "id": "sbx06f3kq8z2m1c9w0v5t7b4a"},
            "data": {"template": "base", "template_version": "ver06f3kq7x1d8h2j4m6p0s9a", "snapshot_id": null, "cpu": 1,
                     "memory_mb": 512},
        }]})),
        "list_webhooks" => response(json!({"webhooks": [webhook()]})),
        "create_webhook" => exchange(
            json!({"team": "acme", "name": "on call", "url": "https://hooks.example.com/sandpiper",
                   "types": ["sandbox.crashed", "sandbox.failed"]}),
            with(webhook(), json!({"secret": "whsec_c2lnbnMgdGhlIHdlYmhvb2tzIG9mIHRoaXMgZXhhbXBsZQ=="})),
        ),
        "show_webhook" => response(webhook()),
        "change_webhook" => exchange(json!({"enabled": false}), with(webhook(), json!({"enabled": false}))),
        "rotate_webhook_secret" => {
            response(with(webhook(), json!({"secret": "whsec_YW5vdGhlciBzZWNyZXQgb2YgdGhlIHNhbWUgd2ViaG9vaw=="})))
        }
        "test_webhook" => response(with(
            delivery(),
            json!({"state": "pending", "trigger": "test", "event_sequence": null, "event_type": "webhook.test", "attempts": 0,
                   "next_attempt_at": "2026-01-01T00:05:00Z", "ended_at": null, "status": null}),
        )),
        "redeliver_webhook" => response(with(
            delivery(),
            json!({"id": "dlv_4e1m7q0bzs9vx2tkd8r5w3n6jh", "state": "pending", "trigger": "redelivery",
                   "redelivery_of": "dlv_ch2xq4bmzvd0t8rw5yk7n3sj1e", "attempts": 0,
                   "next_attempt_at": "2026-01-01T00:05:00Z", "ended_at": null, "status": null}),
        )),
        "list_webhook_deliveries" => response(json!({"deliveries": [delivery()]})),
        "show_webhook_delivery" => response(with(
            delivery(),
            json!({
                "body": {
                    "sequence": 42, "type": "sandbox.crashed", "created_at": "2026-01-01T00:00:01Z",
                    "resource": {"kind": "sandbox", "id": "sbx06f3kq8z2m1c9w0v5t7b4a"},
                    "data": {"template": "base", "template_version": "ver06f3kq7x1d8h2j4m6p0s9a", "snapshot_id": null,
                             "cpu": 1, "memory_mb": 512,
                             "error": {"code": "guest_exited", "message": "The guest ended by itself"}},
                },
                "log": [{
                    "number": 1, "due_at": "2026-01-01T00:00:02Z", "started_at": "2026-01-01T00:00:02Z",
                    "duration_ms": 48, "status": 200, "error": null, "detail": "", "next_attempt_at": null,
                }],
            }),
        )),
        "list_audit" => response(json!({"entries": [audit_entry()]})),
        "operator_list_teams" => response(json!({"teams": [operator_team()]})),
        "operator_create_team" => exchange(json!({"slug": "acme", "plan": "pro"}), operator_team_detail()),
        "operator_show_team" => response(operator_team_detail()),
        "operator_update_team" => exchange(json!({"plan": "pro"}), operator_team_detail()),
        "operator_disable_team" => exchange(
            json!({"reason": "The invoice of May is not paid"}),
            with(operator_team_detail(), json!({"disabled": disabled()})),
        ),
        "operator_enable_team" => response(operator_team_detail()),
        "operator_create_invitation" => exchange(
            json!({"role": "owner", "email": "grace@example.com"}),
            with(invitation(), json!({"role": "owner", "token": format!("spi_{}", "5e".repeat(20))})),
        ),
        "operator_export_usage" => Example { request: None, response: None },
        "operator_list_audit" => {
            response(json!({"entries": [with(audit_entry(), json!({"team": "team06f3kq8z2m1c9w0v5t7b4a"}))]}))
        }
        "call_mcp" => exchange(
            json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
                "name": "run_command", "arguments": {"command": "uname -m"},
            }}),
            json!({"jsonrpc": "2.0", "id": 2, "result": {
                "content": [{"type": "text", "text": "exit code 0\n--- stdout ---\nx86_64\n"}], "isError": false,
            }}),
        ),
        "listen_mcp" | "end_mcp" => Example { request: None, response: None },
        _ => return None,
    };
    Some(example)
}

fn exchange(request: Value, response: Value) -> Example {
    Example { request: Some(request), response: Some(response) }
}

fn response(body: Value) -> Example {
    Example { request: None, response: Some(body) }
}

/// `base` with the fields of `changes` in place of its own.
fn with(mut base: Value, changes: Value) -> Value {
    if let (Value::Object(base), Value::Object(changes)) = (&mut base, changes) {
        base.extend(changes);
    }
    base
}

fn sandbox() -> Value {
    json!({
        "id": "sbx06f3kq8z2m1c9w0v5t7b4a", "team": "acme", "template": "base",
        "template_version": "ver06f3k0000000000000000a", "state": "ready", "timeout": 600,
        "deadline": "2026-01-01T00:10:00Z",
        "lifecycle": {"on_timeout": "pause", "auto_resume": true, "pause_memory": true},
        "volume_mounts": {}, "cpu": 1, "memory_mb": 512, "disk_gib": 20, "metadata": {"job": "42"},
        "exposed_ports": [{"port": 8000, "protocol": "http", "public": true}], "network": network(),
        "capture_output": true, "data_plane_url": "http://s6k3f0.sandbox.localhost:7080", "created_at": "2026-01-01T00:00:00Z",
        "started_at": "2026-01-01T00:00:00Z", "stopped_at": null, "expires_at": null,
    })
}

fn network() -> Value {
    json!({
        "allow_internet_access": false, "allow_package_registry_access": false, "allow_public_traffic": true,
        "allow_out": ["api.example.com:443"], "deny_out": [], "egress_profiles": [], "apply_status": "applied",
    })
}

fn session() -> Value {
    json!({
        "data_plane_url": "http://s6k3f0.sandbox.localhost:7080", "access_token": "eyJzYiI6InNieDA2ZjNrcTgifQ.c2lnbmF0dXJl",
        "expires_at": "2026-01-01T01:00:00Z",
    })
}

fn audit_entry() -> Value {
    json!({
        "id": "aud06f3kq8z2m1c9w0v5t7b4a", "at": "2026-01-01T00:05:00Z", "user": "usr06f3kq8z2m1c9w0v5t7b4a",
        "key": "ses06f3kq8z2m1c9w0v5t7b4a", "action": "DELETE /v1/sandboxes/{id}",
        "resource": "sbx06f3kq8z2m1c9w0v5t7b4a", "status": 204, "request_id": "req06f3kq8z2m1c9w0v5t7b4a",
    })
}

fn operator_team() -> Value {
    json!({
        "id": "team06f3kq8z2m1c9w0v5t7b4a", "slug": "acme", "plan": "pro", "is_personal": false, "disabled": null,
        "created_at": "2026-01-01T00:00:00Z",
    })
}

fn disabled() -> Value {
    json!({"at": "2026-06-01T00:00:00Z", "reason": "The invoice of May is not paid"})
}

fn operator_team_detail() -> Value {
    with(operator_team(), json!({"members": 2, "quota": limits()["quota"]}))
}

fn user() -> Value {
    json!({
        "id": "usr06f3kq8z2m1c9w0v5t7b4a", "email": "ada@example.com", "name": "Ada", "created_at": "2026-01-01T00:00:00Z",
    })
}

fn me() -> Value {
    json!({"user": user(), "key": null, "team": team(), "sign_in": {"has_password": true, "identities": [{
        "id": "idn06f3kq8z2m1c9w0v5t7b4a", "issuer": "https://login.example.com", "linked_at": "2026-01-01T00:00:00Z",
        "last_used_at": "2026-01-01T00:05:00Z",
    }]}})
}

fn login() -> Value {
    json!({"token": format!("sps_{}", "5e".repeat(20)), "expires_at": "2026-01-31T00:00:00Z", "user": user()})
}

fn team() -> Value {
    json!({
        "id": "team06f3kq8z2m1c9w0v5t7b4a", "slug": "acme", "plan": "basic", "is_personal": false, "role": "owner", "disabled": null,
        "created_at": "2026-01-01T00:00:00Z",
    })
}

fn member(role: &str) -> Value {
    json!({
        "user": "usr06f3kq8z2m1c9w0v5t7b4a", "email": "ada@example.com", "name": "Ada", "role": role,
        "since": "2026-01-01T00:00:00Z",
    })
}

fn invitation() -> Value {
    json!({
        "id": "inv06f3kq8z2m1c9w0v5t7b4a", "role": "member", "email": "grace@example.com",
        "invited_by": "usr06f3kq8z2m1c9w0v5t7b4a", "created_at": "2026-01-01T00:00:00Z",
        "expires_at": "2026-01-08T00:00:00Z",
    })
}

fn api_key() -> Value {
    json!({
        "id": "key06f3kq8z2m1c9w0v5t7b4a", "name": "ci", "capability": "write", "team": "acme",
        "created_by": "usr06f3kq8z2m1c9w0v5t7b4a", "created_at": "2026-01-01T00:00:00Z", "expires_at": null,
        "last_used_at": "2026-01-01T00:05:00Z", "revoked_at": null,
    })
}

fn webhook() -> Value {
    json!({
        "id": "whk06f3kq8z2m1c9w0v5t7b4a", "name": "on call", "url": "https://hooks.example.com/sandpiper",
        "types": ["sandbox.crashed", "sandbox.failed"], "enabled": true, "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
    })
}

fn delivery() -> Value {
    json!({
        "id": "dlv_ch2xq4bmzvd0t8rw5yk7n3sj1e", "webhook": "whk06f3kq8z2m1c9w0v5t7b4a", "state": "delivered",
        "trigger": "event", "event_sequence": 42, "event_type": "sandbox.crashed", "redelivery_of": null, "attempts": 1,
        "created_at": "2026-01-01T00:00:02Z", "next_attempt_at": null, "ended_at": "2026-01-01T00:00:02Z", "status": 200,
        "error": null,
    })
}

fn build_file() -> Value {
    json!({
        "id": "upl06f3kq8z2m1c9w0v5t7b4a", "bytes": 20_480, "created_at": "2026-01-01T00:00:00Z",
        "expires_at": "2026-01-02T00:00:00Z",
        "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    })
}

fn checkpoint() -> Value {
    json!({
        "id": "ckp06f3kqb5t2m1c9w0v5t7b4", "name": "installed", "team": "acme", "sandbox": "sbx06f3kq8z2m1c9w0v5t7b4a",
        "template": "base", "template_version": "ver06f3k0000000000000000a", "memory": true, "cpu": 1, "memory_mb": 512,
        "disk_gib": 20, "state": "ready", "size": 73_400_320, "created_at": "2026-01-01T00:03:00Z",
        "expires_at": null,
    })
}

fn volume() -> Value {
    json!({
        "id": "vol06f3kq8z2m1c9w0v5t7b4a", "name": "models", "team": "acme", "size_gib": 10, "state": "ready",
        "retained_bytes": 1_048_576, "created_at": "2026-01-01T00:00:00Z", "expires_at": null,
    })
}

fn template() -> Value {
    json!({
        "id": "tpl06f3kq8z2m1c9w0v5t7b4a", "slug": "node", "team": "acme", "visibility": "private",
        "description": "Node 22 with our tools",
        "latest_version": {"id": "ver06f3k0000000000000000a", "number": 1, "created_at": "2025-12-31T00:00:00Z"},
        "runtime_baseline": {"cpu": 1, "memory_mb": 512}, "created_at": "2025-12-31T00:00:00Z",
        "updated_at": "2025-12-31T00:00:00Z",
    })
}

fn version() -> Value {
    json!({
        "id": "ver06f3k0000000000000000a", "template": "node", "number": 1, "state": "ready", "source": "dockerfile",
        "tags": ["v22"], "runtime_baseline": {"cpu": 1, "memory_mb": 512}, "disk_gib": 20,
        "start_cmd": "serve -l 3000 /srv", "ready_cmd": "curl -sf localhost:3000",
        "settings": {"env": {"PATH": "/usr/local/bin:/usr/bin:/bin"}, "workdir": "/srv"}, "command": "node",
        "images": {"registry.example/node:22": "sha256:4bc5c59b4d1c9d0d1b6d5f7a7a3c2c1e0f9d8c7b6a5948372615049382716050"},
        "size": 73_400_320, "created_at": "2025-12-31T00:00:00Z", "started_at": "2025-12-31T00:00:01Z",
        "finished_at": "2025-12-31T00:01:00Z", "expires_at": null, "log_end": 42,
    })
}

/// Something in a sandbox.
fn sandbox_entry() -> Value {
    json!({
        "path": "/home/user/app.py", "kind": "file", "size": 12, "mode": "0644", "owner": "user", "group": "user",
        "modified_at": "2026-01-01T00:00:00Z",
    })
}

/// Something in a volume.
fn entry(path: &str, kind: &str) -> Value {
    let (size, mode) = if kind == "file" { (6, "0644") } else { (4096, "0755") };
    json!({
        "path": path, "kind": kind, "size": size, "mode": mode, "uid": 1000, "gid": 1000,
        "modified_at": "2026-01-01T00:00:00Z",
    })
}

fn port(status: &str) -> Value {
    json!({
        "port": 8000, "host": "p8000-s6k3f0.sandbox.localhost", "url": "http://p8000-s6k3f0.sandbox.localhost:7080",
        "protocol": "http", "public": true, "status": status,
    })
}

fn usage() -> Value {
    json!({
        "from": "2026-01-01T00:00:00Z", "to": "2026-01-01T02:00:00Z", "granularity": "hour",
        "counted_until": "2026-01-01T02:00:03Z", "currency": "USD",
        "buckets": [
            {
                "from": "2026-01-01T00:00:00Z", "to": "2026-01-01T01:00:00Z", "vcpu_seconds": "1800.5",
                "memory_gib_seconds": "900.25", "storage_gib_hours": "0.5", "egress_bytes": 1_073_741_824,
                "ingress_bytes": 2_147_483_648_u64, "cost": "0.119328",
            },
            {
                "from": "2026-01-01T01:00:00Z", "to": "2026-01-01T02:00:00Z", "vcpu_seconds": "3600",
                "memory_gib_seconds": "1800", "storage_gib_hours": "0.5", "egress_bytes": 0, "ingress_bytes": 0,
                "cost": "0.05857",
            },
        ],
        "totals": {
            "vcpu_seconds": "5400.5", "memory_gib_seconds": "2700.25", "storage_gib_hours": "1",
            "egress_bytes": 1_073_741_824, "ingress_bytes": 2_147_483_648_u64, "cost": "0.177898",
        },
    })
}

fn limits() -> Value {
    let most = json!({"sandboxes": 20, "cpu": 40, "memory_mb": 81_920, "volumes": 20, "volume_gib": 200, "templates": 200,
                       "build_minutes": 6000, "webhooks": 10, "stored_gib": 2500, "stopped": 1000, "checkpoints": 1000});
    json!({
        "cpu": 1, "memory_mb": 512, "plan": "pro", "cpu_values": [1, 2, 4], "memory_mb_min": 256, "memory_mb_max": 8192,
        "memory_mb_step": 256, "root_disk_gib": 20, "max_timeout": 86_400, "stopped_days": 0, "checkpoint_days": 0,
        "volume_days": 0, "template_version_days": 0,
        "plans": [{
            "name": "pro", "overrides": true, "cpu_values": [1, 2, 4], "memory_mb_min": 256, "memory_mb_max": 8192,
            "memory_mb_step": 256, "root_disk_gib": 20, "max_timeout": 86_400, "stopped_days": 0, "checkpoint_days": 0,
        "volume_days": 0, "template_version_days": 0, "quota": most,
            "disk": {"bandwidth": 209_715_200}, "network": {"bandwidth": 125_000_000},
            "build": {"seconds": 3600, "cpu": 4, "memory_mb": 4096},
        }],
        "prices": {
            "currency": "USD", "vcpu_second": "0.000014", "memory_gib_second": "0.0000045", "storage_gib_hour": "0.00014",
            "egress_gib": "0.09", "ingress_gib": "0",
        },
        "quota": {
            "limits": most, "usage": {
                "sandboxes": 1, "cpu": 1, "memory_mb": 512, "stopped": 2, "volumes": 1, "volume_gib": 10,
                "templates": 2, "build_minutes": 12, "webhooks": 1, "checkpoints": 3, "retained_bytes": 73_400_320,
            },
            "reservation": {"sandboxes": 1, "cpu": 1, "memory_mb": 512, "volumes": 0, "volume_gib": 0, "templates": 0,
                            "build_minutes": 0, "webhooks": 0, "stored_gib": 0, "stopped": 0, "checkpoints": 0},
        },
    })
}
