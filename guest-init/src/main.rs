//! PID 1 of a sandbox. Under the names `poweroff`, `halt`, `shutdown` and `reboot` it asks PID 1 for just that.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(request) = sandpiper_init::power::Request::from_program_name() {
        return request.send();
    }
    if std::process::id() != 1 {
        eprintln!("sandpiper-init is the first process of a sandbox and does nothing when started as another one.");
        return ExitCode::FAILURE;
    }
    sandpiper_init::pid1::run()
}
