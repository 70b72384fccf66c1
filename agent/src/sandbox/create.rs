//! What is checked before a sandbox is created or changed.

use sandpiper_protocol::agent::{CreateSandbox, ExposedPort, Lifecycle, OnTimeout};
use sandpiper_protocol::id;

use super::{Context, ID_PREFIX, StartError, link};
use crate::config::Limits;
use crate::host;
use crate::layers;
use crate::templates::Template;

/// Longest time-out: a year.
const MAX_TIMEOUT_SECONDS: u64 = 366 * 24 * 3600;
/// Most exposed ports of one sandbox.
pub(crate) const MAX_PORTS: usize = 64;
/// Least memory that a monitor gives a machine.
const MIN_MEMORY_MB: u32 = 32;

/// Why no sandbox was created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    #[error("{0}")]
    Invalid(String),
    #[error("There is a sandbox {0} already; choose another id")]
    Exists(String),
    #[error("{0}")]
    Capacity(String),
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Checks a request against the protocol and the limits of this host, and finds its template. Blocks for a moment.
pub(super) fn check(context: &Context, request: &CreateSandbox) -> Result<Template, CreateError> {
    check_request(request, &context.config.limits).map_err(CreateError::Invalid)?;
    if context.paths.sandbox(&request.id).state.exists() {
        return Err(CreateError::Exists(request.id.clone()));
    }
    let Some(template) = context.templates.find(&request.template_version) else {
        let version = &request.template_version;
        return Err(CreateError::Invalid(format!(
            "template_version: {version:?} is not on this host; GET /templates lists what is"
        )));
    };
    let size = match std::fs::metadata(&template.image) {
        Ok(metadata) => metadata.len(),
        Err(source) => return Err(StartError::Host { what: "read the template's image", source }.into()),
    };
    if !layers::fits(size, request.disk_gib) {
        return Err(CreateError::Invalid(format!(
            "disk_gib: the template needs {} GiB, {} were asked for",
            size.div_ceil(1 << 30),
            request.disk_gib
        )));
    }
    let free = host::free_disk_mb(context.paths.state())
        .map_err(|source| StartError::Host { what: "read the free disk space", source })?;
    let headroom = context.config.limits.disk_headroom_mb;
    if free < headroom {
        return Err(CreateError::Capacity(format!(
            "Only {free} MiB are free on this host's disk, {headroom} are kept free; delete sandboxes or add space"
        )));
    }
    Ok(template)
}

fn check_request(request: &CreateSandbox, limits: &Limits) -> Result<(), String> {
    if !id::is_valid(ID_PREFIX, &request.id) {
        return Err(format!("id: must be `{ID_PREFIX}` and 22 characters of base32"));
    }
    let ranges = [
        ("cpu", request.cpu, 1, limits.max_vcpus),
        ("memory_mb", request.memory_mb, MIN_MEMORY_MB, limits.max_memory_mb),
        ("disk_gib", request.disk_gib, 1, limits.max_disk_gib),
    ];
    for (field, value, least, most) in ranges {
        if !(least..=most).contains(&value) {
            return Err(format!("{field}: must be between {least} and {most} on this host, not {value}"));
        }
    }
    check_timeout(request.timeout_seconds)?;
    check_lifecycle(request.lifecycle)?;
    check_envs(request)?;
    if request.exposed_ports.len() > MAX_PORTS {
        return Err(format!("exposed_ports: at most {MAX_PORTS}"));
    }
    for (index, port) in request.exposed_ports.iter().enumerate() {
        check_port(port)?;
        if request.exposed_ports[..index].iter().any(|other| other.port == port.port) {
            return Err(format!("exposed_ports: {} is named twice", port.port));
        }
    }
    Ok(())
}

/// Names go into an environment block, so they hold neither `=` nor NUL; values are secrets and not repeated in errors.
fn check_envs(request: &CreateSandbox) -> Result<(), String> {
    for (name, value) in &request.envs {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err("envs: names must not be empty or hold `=`, and nothing may hold a NUL".into());
        }
    }
    if !link::envs_fit(&request.envs) {
        return Err("envs: all together must be less than 60 KiB".into());
    }
    Ok(())
}

/// Whether a sandbox may have this time-out.
pub(crate) fn check_timeout(seconds: u64) -> Result<(), String> {
    if (1..=MAX_TIMEOUT_SECONDS).contains(&seconds) {
        return Ok(());
    }
    Err(format!("timeout_seconds: must be between 1 and {MAX_TIMEOUT_SECONDS}, not {seconds}"))
}

/// Whether this version can do it.
pub(crate) fn check_lifecycle(lifecycle: Lifecycle) -> Result<(), String> {
    if lifecycle.on_timeout == OnTimeout::Pause {
        return Err("lifecycle.on_timeout: `pause` is not available in this version; use `kill`".into());
    }
    if lifecycle.auto_resume {
        return Err("lifecycle.auto_resume: is not available in this version; leave it false".into());
    }
    Ok(())
}

/// Whether a port can be exposed.
pub(crate) fn check_port(port: &ExposedPort) -> Result<(), String> {
    if port.port == 0 { Err("port: must be between 1 and 65535".into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandpiper_protocol::agent::PortProtocol;
    use std::collections::BTreeMap;

    fn request() -> CreateSandbox {
        CreateSandbox {
            id: id::generate(ID_PREFIX),
            template_version: id::generate("ver"),
            cpu: 1,
            memory_mb: 256,
            disk_gib: 2,
            timeout_seconds: 300,
            lifecycle: Lifecycle::default(),
            envs: BTreeMap::new(),
            exposed_ports: Vec::new(),
            allow_public_traffic: true,
        }
    }

    fn refusal(change: impl FnOnce(&mut CreateSandbox)) -> String {
        let mut request = request();
        change(&mut request);
        check_request(&request, &Limits::default()).unwrap_err()
    }

    #[test]
    fn an_ordinary_request_passes() {
        check_request(&request(), &Limits::default()).unwrap();
    }

    #[test]
    fn each_refusal_names_its_field() {
        let port = ExposedPort { port: 8000, protocol: PortProtocol::Http, public: true };
        assert!(refusal(|r| r.id = "sbx../../etc".into()).starts_with("id:"));
        assert!(refusal(|r| r.cpu = 0).starts_with("cpu:"));
        assert!(refusal(|r| r.memory_mb = 8).starts_with("memory_mb:"));
        assert!(refusal(|r| r.disk_gib = 100_000).starts_with("disk_gib:"));
        assert!(refusal(|r| r.timeout_seconds = 0).starts_with("timeout_seconds:"));
        assert!(refusal(|r| r.lifecycle.on_timeout = OnTimeout::Pause).starts_with("lifecycle.on_timeout:"));
        assert!(refusal(|r| r.lifecycle.auto_resume = true).starts_with("lifecycle.auto_resume:"));
        assert!(refusal(|r| r.exposed_ports = vec![port, port]).contains("named twice"));
        assert!(refusal(|r| r.exposed_ports = vec![ExposedPort { port: 0, ..port }]).starts_with("port:"));
    }

    #[test]
    fn a_refused_variable_is_not_repeated() {
        let message = refusal(|r| drop(r.envs.insert("SECRET=x".into(), "hunter2".into())));
        assert!(message.starts_with("envs:") && !message.contains("hunter2") && !message.contains("SECRET"));
        assert!(refusal(|r| drop(r.envs.insert("A".into(), "x".repeat(70_000)))).contains("60 KiB"));
    }
}
