//! The life of PID 1.

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use sandpiper_protocol::guest::{DATA_PLANE_PORT, FORWARD_PORT, GuestMessage, Init};

use crate::log::Log;
use crate::serve::{App, Settings};
use crate::{boot, forward, identity, link, log, net, power, reap, serve};

/// How long a helper thread waits for more work. Long, so that a command never waits for one to be made, and a snapshot
/// of an idle guest has one at hand.
const KEEP_THREADS: Duration = Duration::from_secs(3600);

/// Runs the guest. Does not return: the kernel panics when its first process ends.
pub fn run() -> ExitCode {
    std::panic::set_hook(Box::new(|info| link::report_panic(&info.to_string())));
    log::never_block();
    // Before all else: the host answers while the rest of this happens.
    let link = link::dial().ok();
    let problems = boot::prepare();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().thread_keep_alive(KEEP_THREADS).build();
    match runtime {
        Ok(runtime) => runtime.block_on(live(link, problems)),
        Err(error) => link::report_panic(&format!("no runtime: {error}")),
    }
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

async fn live(link: Option<OwnedFd>, problems: Vec<boot::Problem>) {
    let (log, to_host) = log::channel();
    for problem in problems {
        log.warn(problem);
    }
    if let Err(error) = reap::start() {
        log.error(format!("Ended processes are not noticed: {error}"));
    }
    if let Err(error) = power::start(log.clone()) {
        log.error(format!("Signals to switch off are not taken: {error}"));
    }
    let app = Arc::new(App::new(Settings::default()));
    let serving = Cell::new(false);
    link::run(link, to_host, async |init| match become_what_is_wanted(&app, init, &serving, &log).await {
        Ok(()) => GuestMessage::Ready { init_version: env!("CARGO_PKG_VERSION").to_owned() },
        Err(mut message) => {
            log::truncate(&mut message);
            GuestMessage::Failed { message }
        }
    })
    .await;
    pending().await
}

/// Applies the host's message, and serves from the first one on.
async fn become_what_is_wanted(app: &Arc<App>, init: Init, serving: &Cell<bool>, log: &Log) -> Result<(), String> {
    let settings = Settings { envs: init.envs.clone(), default_user: init.default_user.clone() };
    tokio::task::spawn_blocking(move || identity::apply(&init))
        .await
        .map_err(|error| error.to_string())?
        .map_err(|error| error.to_string())?;
    app.configure(settings);
    if !serving.get() {
        start_serving(app).map_err(|error| format!("The data plane cannot listen: {error}"))?;
        serving.set(true);
    }
    // Every time: a snapshot may have been restored onto a larger disk.
    finish_boot(log.clone());
    Ok(())
}

fn start_serving(app: &Arc<App>) -> io::Result<()> {
    let data_plane = net::listen(DATA_PLANE_PORT)?;
    let forwarding = net::listen(FORWARD_PORT)?;
    tokio::spawn(serve::serve(data_plane, Arc::clone(app)));
    tokio::spawn(forward::serve(forwarding));
    Ok(())
}

/// What may happen beside the first requests.
fn finish_boot(log: Log) {
    tokio::task::spawn_blocking(move || {
        for problem in boot::finish() {
            log.warn(problem);
        }
    });
}
