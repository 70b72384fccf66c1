//! One who uses sandboxes, one after another, in all ways that there are.

use std::time::Instant;

use anyhow::Context;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::caller::Caller;
use crate::subject::Subject;

/// What is done with a sandbox until it is deleted.
const WORKS: usize = 12;

/// Works until `end`; gives the sandbox that is left then.
pub(crate) async fn work(caller: Caller, seed: u64, end: Instant) -> Option<Subject> {
    let mut random = StdRng::seed_from_u64(seed);
    while Instant::now() < end {
        match live(&caller, &mut random, end).await {
            Ok(Some(subject)) => return Some(subject),
            Ok(None) => {}
            Err(error) => caller.ledger.find(format!("{error:#}")),
        }
    }
    None
}

/// One sandbox from its creation to its end, or the drill's.
async fn live(caller: &Caller, random: &mut StdRng, end: Instant) -> anyhow::Result<Option<Subject>> {
    let mut subject = Subject::create(caller).await.context("a new sandbox")?;
    for _ in 0..WORKS {
        if Instant::now() >= end {
            return Ok(Some(subject));
        }
        work_with(&mut subject, random).await.with_context(|| subject.id.clone())?;
    }
    subject.verify().await.with_context(|| subject.id.clone())?;
    subject.delete().await?;
    Ok(None)
}

async fn work_with(subject: &mut Subject, random: &mut StdRng) -> anyhow::Result<()> {
    match random.random_range(0..14) {
        0..6 => subject.write().await,
        6..8 => subject.verify().await,
        8..10 => {
            subject.pause().await?;
            subject.resume().await
        }
        // What comes next finds it stopped.
        10 => subject.pause().await,
        11 => subject.checkpoint(random.random()).await,
        12 => subject.fork().await,
        _ => subject.set_network(&format!("198.51.100.{}", random.random_range(1..255))).await,
    }
}
