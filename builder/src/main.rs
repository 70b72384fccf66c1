//! Makes the root file system of a template's version, in a machine of its own.
//!
//! ```text
//!  agent ──Order──▶ main ──▶ cache      what earlier builds of the team left, made sure of
//!    ▲               ├─────▶ registries what may be asked, and with which credentials: in memory only
//!    │               ├─────▶ earlier    the same order, if it was carried out before ──▶ registry: of the same images?
//!    │               ├─────▶ sources    the order's source ──▶ an image in buildah's storage
//!    │               │         └──▶ unpack    archives, as foreign as they are
//!    │               ├─────▶ root       the image's tree ──▶ OUTPUT, and what a sandbox needs besides
//!    │               └─────▶ cache      what was used longest ago goes
//!    └────Event── events ◀── progress   what buildah says, as steps and lines
//! ```
//!
//! The machine is the isolation: all that is foreign (Dockerfiles, images, archives) is read and run in here, by buildah where
//! it is a container's affair. This program keeps apart within the machine only what the tenant is not to see: credentials of
//! the operator's, and what the order holds as secret. `sandpiper_protocol::builder` is the contract with the agent.

mod buildah;
mod cache;
mod earlier;
mod events;
mod failure;
mod group;
mod image;
mod inside;
mod progress;
mod registries;
mod registry;
mod root;
mod sources;
mod storage;
mod unpack;

use std::io::{self, BufRead};
use std::process::ExitCode;

use sandpiper_protocol::builder::{Event, Order};

use buildah::Buildah;
use cache::Cache;
use earlier::Earlier;
use events::Events;
use failure::Failure;

/// What is said of an image whose file system the agent has.
const KNOWN: &str = "The same as an earlier version: its file system is used again";

fn main() -> ExitCode {
    let mut events = Events::new(io::stdout());
    let last = match order().and_then(|order| build(&order, &mut events)) {
        Ok(finished) => finished,
        Err(failure) => Event::Failed(failure.into()),
    };
    match events.send(&last) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandpiper-builder: nobody hears how the build ended: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The one line of standard input.
fn order() -> Result<Order, Failure> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(|error| Failure::host("The order cannot be read", &error))?;
    // Without the text: it holds secrets.
    serde_json::from_str(&line)
        .map_err(|error| Failure::Host(format!("The order cannot be read (column {})", error.column())))
}

fn build(order: &Order, events: &mut Events<io::Stdout>) -> Result<Event, Failure> {
    events.hide(&sources::secrets(order));
    let cache = Cache::open()?;
    let files = registries::Files::write(&order.registries, &order.source)?;
    let buildah = Buildah::new(files)?;
    let built = build_in(&cache, order, &buildah, events);
    let left = cache.leave(&buildah);
    let finished = built?;
    left?;
    Ok(finished)
}

fn build_in(
    cache: &Cache,
    order: &Order,
    buildah: &Buildah,
    events: &mut Events<io::Stdout>,
) -> Result<Event, Failure> {
    cache.clear_leftovers(buildah)?;
    let earlier = Earlier::of(order);
    if let Some(earlier) = &earlier
        && let Some(finished @ Event::Finished { image, .. }) = &earlier.again(order, buildah.files(), events)?
    {
        events.info(KNOWN)?;
        cache.used(image)?;
        return Ok(finished.clone());
    }
    if order.is_question {
        return Ok(Event::NotBuilt);
    }
    cache.prune(buildah, order.cache_bytes)?;
    let made = match sources::make(order, buildah, events) {
        Err(failure @ Failure::DiskFull { is_cache: true, .. }) => {
            // The next build is to have all of it.
            cache.prune(buildah, 0)?;
            return Err(failure);
        }
        made => made?,
    };
    let config = image::Config::of(buildah, &made.image)?;
    config.check()?;
    let image = made.image.trim_start_matches("sha256:").to_owned();
    let is_known = order.known.contains(&image);
    if is_known {
        events.info(KNOWN)?;
    } else {
        events.info("Writing the file system")?;
        root::write(&image, &config)?;
    }
    cache.used(&image)?;
    cache.prune(buildah, order.cache_bytes)?;
    let (settings, command) = (config.settings(), config.command());
    let finished = Event::Finished { image, is_known, settings, command, digests: made.digests };
    if let Some((earlier, found)) = earlier.zip(made.found)
        && let Err(error) = earlier.keep(found, events.steps().to_vec(), &finished)
    {
        eprintln!("sandpiper-builder: the same order will be carried out again: {error}");
    }
    Ok(finished)
}
