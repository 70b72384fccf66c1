//! The life of PID 1.

use std::future::pending;
use std::process::ExitCode;
use std::time::Duration;

use crate::cgroups::Cgroups;
use crate::guest::Guest;
use crate::link::{Begun, Unasked};
use crate::{boot, link, log, power, reap};

/// How long a helper thread waits for more work. Long, so that a command never waits for one to be made, and a snapshot
/// of an idle guest has one at hand.
const KEEP_THREADS: Duration = Duration::from_secs(3600);

/// Runs the guest. Does not return: the kernel panics when its first process ends.
pub fn run() -> ExitCode {
    std::panic::set_hook(Box::new(|info| link::report_panic(&info.to_string())));
    log::never_block();
    if let Err(error) = boot::leave_disk_if_wanted() {
        link::report_panic(&format!("the disk cannot be left: {error}"));
    }
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

async fn live(link: Option<Begun>, problems: Vec<boot::Problem>) {
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
    let groups = Cgroups::of_guest()
        .inspect_err(|error| log.warn(format!("Processes have no control group and cannot be stopped: {error}")))
        .ok();
    match Guest::new(groups, log.clone()) {
        Ok(mut guest) => {
            let unasked = Unasked::new(to_host, guest.capture().clone());
            link::run(link, unasked, &mut guest).await;
        }
        Err(error) => link::report_panic(&format!("no thread for snapshots: {error}")),
    }
    pending().await
}
