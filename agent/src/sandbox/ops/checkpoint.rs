//! How a supervisor writes down what its sandbox is, for other sandboxes to go on from, while it goes on itself.
//!
//! ```text
//!   ready ──record: checkpointing, a new layer on top──▶ freeze ──▶ monitor: goes on with the new layer ──▶ thaw
//!     ▲                                                     └────────── the guest stands still ──────────────┘ │
//!     └──────────── answer ◀── link, sync; record: ready ◀─────────────────────────────────────────────────────┘
//! ```
//!
//! * The layers below the new one never change again, so they are the checkpoint's disk: linked, not copied.
//! * Memory that an earlier checkpoint of the machine has is not written again: the new layer lies above that one's, of which the
//!   sandbox keeps a link, and holds what was written since. The monitor has the last word: it knows in which layer it was last
//!   written down, and one that does not know writes all that the machine wrote.
//! * With memory, the monitor writes down the machine at the very moment at which it changes layers: disk, memory and
//!   processors are of one instant. Without, it changes layers and no more.
//! * The record names the new layer before the monitor may write to it. A layer that is named and stays empty is harmless;
//!   one that is written to and not named would be lost.
//! * Until the monitor has said that it took the new layer, either of the two may be the one that is written to, and nothing
//!   else touches them (`unsettled` in the record). It has all the time that it needs. If it never says so, because the
//!   agent was killed or the connection broke, that stays so until it says as much of a later layer, or the machine ends.
//! * With memory, the sandbox's volumes are away while the machine is written down: unmounted before the freeze, mounted
//!   again after the thaw, and the record says `checkpointing` all the time.
//! * The guest goes on before anything is synced. An agent killed meanwhile leaves a running sandbox and a draft, which its
//!   successor removes.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use sandpiper_crash_points::CrashPoint;
use sandpiper_durable as durable;
use sandpiper_images::layers::{self, Files, Layer, LayerError, MAX_DISK_LAYERS, Role};
use sandpiper_images::snapshots::Manifest;
use sandpiper_machine::Machine;
use sandpiper_machine::control::RequestError;
use sandpiper_protocol::agent::SandboxState;
use sandpiper_protocol::error_chain;
use sandpiper_protocol::vmm::{Reply, Request, SnapshotConfig, Then};
use sandpiper_trace as trace;
use tokio::time::Instant;
use tracing::Instrument;

use super::pause::millis;
use crate::launch::Running;
use crate::sandbox::command::SnapshotOrder;
use crate::sandbox::errors::{ChangeError, OperationError};
use crate::sandbox::record::Record;
use crate::sandbox::supervisor::Supervisor;

/// Checkpoints whose memory lies one above the other; then the next begins with all that was written since the machine started.
const MOST_WRITTEN: usize = 8;

/// Memory below which a fork's is not copied ahead: what the guest writes after that costs it more than standing still does.
const LEAST_OF_A_FORK: u64 = 4 << 20;

/// What a checkpoint's memory layer has before the guest stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    Not,
    /// All that was written since the machine was restored or booted.
    All,
    /// What was written since the last checkpoint, whose layer lies below.
    Changes,
}

/// The files that a checkpoint of a running sandbox needs.
struct NewFiles {
    top: File,
    /// State and memory layer, with their names, in the checkpoint's folder.
    memory: Option<[(String, File); 2]>,
}

impl Supervisor {
    /// Writes down a running sandbox.
    pub(crate) async fn checkpoint(
        &mut self,
        running: &mut Running,
        order: SnapshotOrder,
    ) -> Result<Manifest, OperationError> {
        let began = Instant::now();
        let (id, memory) = (order.id.clone(), order.memory);
        let result = self.checkpoint_unmeasured(running, order).await;
        if self.record().state == SandboxState::Checkpointing {
            // An older record says `checkpointing`, which an agent that reads it takes for `ready`.
            self.change_regardless(|record| record.state = SandboxState::Ready).await;
        }
        self.context.metrics.checkpointed(result.is_ok(), began.elapsed());
        let record = self.record();
        let (sandbox, checkpoint) = (record.id.as_str(), id.as_str());
        match &result {
            Ok(manifest) => {
                let (stopped_us, took_ms) = (manifest.stopped_us, millis(began));
                tracing::info!(target: "audit", sandbox, checkpoint, memory, stopped_us, took_ms, "checkpointed");
                self.log.host(format!("checkpoint {id} taken"));
            }
            Err(OperationError::Refused(error)) => {
                let error = error_chain::chain(error);
                tracing::warn!(target: "audit", sandbox, checkpoint, error, "not checkpointed");
                self.log.host(format!("checkpoint {id} not taken: {error}"));
            }
            Err(OperationError::Ended(_) | OperationError::Delete(_)) => {}
        }
        result
    }

    async fn checkpoint_unmeasured(
        &mut self,
        running: &mut Running,
        order: SnapshotOrder,
    ) -> Result<Manifest, OperationError> {
        let record = self.record();
        if record.files.disk.len() >= MAX_DISK_LAYERS {
            return Err(OperationError::Refused(ChangeError::Layers));
        }
        let tidied = self.tidy().instrument(trace::step("tidy")).await;
        tidied.map_err(|source| OperationError::host("remove what an earlier attempt left", source))?;
        let mut own = record.files.clone();
        let names = order.memory.then(|| [own.new_name(Role::State), own.new_name(Role::Memory)]);
        // What the checkpoint consists of: all that is there now, and the new memory layer.
        let mut files = if order.memory { own.clone() } else { own.disk_only() };
        let top = own.new_name(Role::Disk);
        own.disk.push(Layer::own(top.clone()));
        let size = layers::disk_size(record.disk_gib);
        let (source, folder) = (self.context.paths.sandbox(&record.id).state, order.folder.clone());
        let create = move || create(&source, &top, size, &folder, names);
        let created = tokio::task::spawn_blocking(create).instrument(trace::step("make files")).await;
        let created =
            created.map_err(|error| OperationError::host("create the checkpoint's files", io::Error::other(error)))?;
        let new = created.map_err(|error| OperationError::Refused(ChangeError::Layer(error)))?;
        CrashPoint::CheckpointFilesMade.pass();
        let copied = self.copy_memory(&mut running.machine, &new, order.lasts);
        let copied = copied.instrument(trace::step("copy memory ahead")).await?;
        let saved = self.change(|record| {
            record.state = SandboxState::Checkpointing;
            record.unsettled = record.unsettled.take().or_else(|| record.top().map(str::to_owned));
            record.files = own;
        });
        let saved = saved.instrument(trace::step("record the new layer")).await;
        saved.map_err(|error| OperationError::Refused(ChangeError::Storage(error)))?;
        CrashPoint::CheckpointRecorded.pass();

        let quiet = self.quiesce(running, &new, order.force).instrument(trace::step("freeze")).await;
        let switched = match quiet {
            Ok(()) => {
                let switched = self.switch_layers(&mut running.machine, &new, order.lasts);
                switched.instrument(trace::step("monitor, and thaw")).await
            }
            Err(error) => Err(error),
        };
        if matches!(switched, Ok(_) | Err(OperationError::Refused(_))) {
            self.bring_volumes_back(running).await?;
        }
        let stopped_us = switched?;
        let state = new.memory.map(|[(state, _), (memory, _)]| {
            files.note_written(memory, copied == Copied::Changes);
            state
        });
        let written = state.as_ref().map(|_| if copied == Copied::Not { Vec::new() } else { files.written.clone() });
        if let Some(state) = state {
            files = files.written_down(state);
        }
        let source = self.context.paths.sandbox(&record.id).state;
        let linked = tokio::task::spawn_blocking(move || {
            link(&files, &source, &order.folder)?;
            // A sandbox that is made of it now needs no memory that lasts: after a power cut it goes on from its disk.
            let lasts = if order.lasts { &files } else { &files.disk_only() };
            sync(lasts, &order.folder).map(|()| files)
        });
        let goes_on = self.change_regardless(|record| {
            record.state = SandboxState::Ready;
            record.unsettled = None;
            if let Some(written) = &written {
                record.files.written.clone_from(written);
            }
        });
        let goes_on = goes_on.instrument(trace::step("record that it goes on"));
        let (linked, ()) = tokio::join!(linked.instrument(trace::step("link and sync")), goes_on);
        CrashPoint::CheckpointReady.pass();
        let is_left = match copied {
            Copied::Not => order.memory,
            Copied::All => !record.files.written.is_empty(),
            Copied::Changes => false,
        };
        if is_left {
            // Nothing will lie above the new layer, or does above those of earlier checkpoints any more.
            if let Err(error) = self.tidy().await {
                tracing::warn!(sandbox = record.id.as_str(), %error, "cannot remove memory layers that are not needed any more");
            }
        }
        let files =
            linked.map_err(|error| OperationError::host("link the checkpoint's files", io::Error::other(error)))?;
        let snapshot = self.record().snapshot(files.map_err(OperationError::Refused)?);
        Ok(Manifest::new(order.id, record.id.clone(), record.generation, stopped_us, snapshot))
    }

    /// Has most of the memory be written down while the guest runs. Where that is not possible all of it is once the guest stands
    /// still.
    async fn copy_memory(
        &mut self,
        machine: &mut Machine,
        new: &NewFiles,
        lasts: bool,
    ) -> Result<Copied, OperationError> {
        let Some([_, (name, memory)]) = &new.memory else { return Ok(Copied::Not) };
        let record = self.record();
        let below = record.files.written.last().filter(|_| record.files.written.len() < MOST_WRITTEN);
        let above = below.map(|layer| layer.name.clone());
        let least_bytes = if lasts { 0 } else { LEAST_OF_A_FORK };
        let request = Request::CopyMemory { name: Some(name.clone()), above, least_bytes, past_cache: lasts };
        let copied = self.meanwhile(machine.order(request, &[memory.as_fd()])).await?;
        CrashPoint::CheckpointCopied.pass();
        let error = match copied {
            Ok(Reply::MemoryCopied { above: true }) => return Ok(Copied::Changes),
            Ok(Reply::LittleMemory) => return Ok(Copied::Not),
            Ok(_) => return Ok(Copied::All),
            Err(error) => error,
        };
        let (sandbox, error) = (self.record().id.to_string(), error_chain::chain(&error));
        tracing::debug!(sandbox, error, "memory is written down while the guest stands still");
        let emptied = memory.try_clone().map(|memory| durable::blocking(move || memory.set_len(0)));
        let emptied = match emptied {
            Ok(emptied) => emptied.await,
            Err(error) => Err(error),
        };
        emptied.map_err(|source| OperationError::host("empty the checkpoint's memory layer", source))?;
        Ok(Copied::Not)
    }

    /// Has the guest stand still, without its volumes where its memory is written down: what is on them is no part of a
    /// checkpoint, and the monitor writes no machine down that has one. Of a disk alone they can stay where they are.
    async fn quiesce(&mut self, running: &mut Running, new: &NewFiles, force: bool) -> Result<(), OperationError> {
        let has_memory = new.memory.is_some();
        let put_away = if has_memory { self.put_volumes_away(running, force, false).await } else { Ok(()) };
        let frozen = match put_away {
            Ok(()) => self.freeze(&mut running.machine, has_memory, !has_memory).await,
            Err(error) => Err(error),
        };
        if matches!(frozen, Err(OperationError::Refused(_))) {
            self.drop_unused_top().await;
            self.thaw(&mut running.machine).await?;
        }
        frozen
    }

    /// Has the machine go on with a new layer on top, and be written down if that is asked for; for how many microseconds its
    /// guest, which is frozen before and thawed then, stood still.
    async fn switch_layers(
        &mut self,
        machine: &mut Machine,
        new: &NewFiles,
        lasts: bool,
    ) -> Result<u64, OperationError> {
        CrashPoint::CheckpointFrozen.pass();
        let frozen = Instant::now();
        let answer = match &new.memory {
            Some([(_, state), (_, memory)]) => {
                // Forks read theirs at once.
                let config = SnapshotConfig { push_layers: true, then: Then::Run, past_cache: lasts };
                let request = Request::Snapshot(config);
                let fds = [state.as_fd(), memory.as_fd(), new.top.as_fd()];
                self.meanwhile(machine.order(request, &fds)).await?
            }
            None => self.meanwhile(machine.order(Request::PushLayer { disk: 0 }, &[new.top.as_fd()])).await?,
        };
        CrashPoint::CheckpointSwitched.pass();
        self.thaw(machine).await?;
        CrashPoint::CheckpointThawed.pass();
        let stood_still = u64::try_from(frozen.elapsed().as_micros()).unwrap_or(u64::MAX);
        match answer {
            Ok(Reply::Snapshot(stats)) => Ok(stats.stopped_us),
            Ok(Reply::LayerPushed) => Ok(stood_still),
            Ok(_) => Err(OperationError::Refused(ChangeError::Unexpected)),
            Err(error) => {
                // One that did not answer may have taken the layer all the same: then it stays where it is.
                if matches!(error, RequestError::Refused(_)) {
                    self.drop_unused_top().await;
                }
                Err(OperationError::Refused(ChangeError::Monitor(error)))
            }
        }
    }

    /// Takes back the new layer that the monitor was never given.
    async fn drop_unused_top(&mut self) {
        let dropped = self.change(Record::drop_top).await;
        let tidied = match dropped {
            Ok(()) => self.tidy().await,
            Err(error) => Err(error),
        };
        if let Err(error) = tidied {
            tracing::warn!(sandbox = self.record().id.as_str(), %error, "an empty layer stays on top of a disk");
        }
    }

    /// Writes down a stopped sandbox: it has been already.
    pub(crate) async fn checkpoint_stopped(&mut self, order: SnapshotOrder) -> Result<Manifest, ChangeError> {
        let began = Instant::now();
        let record = self.record();
        let files = if order.memory { record.files.clone() } else { record.files.disk_only() };
        let source = self.context.paths.sandbox(&record.id).state;
        let folder = order.folder.clone();
        let linked = tokio::task::spawn_blocking(move || {
            files.link_all(&source, &folder).map_err(ChangeError::Layer)?;
            CrashPoint::CheckpointLinked.pass();
            sync(&files, &folder).map(|()| files)
        });
        let failed = |error| ChangeError::Host { what: "link the checkpoint's files", source: io::Error::other(error) };
        let result = linked.await.map_err(failed).flatten();
        self.context.metrics.checkpointed(result.is_ok(), began.elapsed());
        let manifest = Manifest::new(order.id, record.id.clone(), record.generation, 0, record.snapshot(result?));
        let (sandbox, checkpoint) = (record.id.as_str(), manifest.id.as_str());
        tracing::info!(target: "audit", sandbox, checkpoint, memory = order.memory, "checkpointed while stopped");
        self.log.host(format!("checkpoint {checkpoint} taken"));
        Ok(manifest)
    }
}

/// Makes the empty files that a checkpoint fills: the disk's new top in the sandbox's folder `source`, the others in the
/// checkpoint's `folder`. The memory layer is in both, for the next checkpoint to lie above it. Blocks.
fn create(
    source: &Path,
    top: &str,
    size: u64,
    folder: &Path,
    names: Option<[String; 2]>,
) -> Result<NewFiles, LayerError> {
    let top = layers::create(&source.join(top), size)?;
    let memory = match names {
        Some([state, memory]) => {
            let (state_file, memory_file) =
                (layers::create(&folder.join(&state), 0)?, layers::create(&folder.join(&memory), 0)?);
            layers::link(&folder.join(&memory), &source.join(&memory))?;
            Some([(state, state_file), (memory, memory_file)])
        }
        None => None,
    };
    Ok(NewFiles { top, memory })
}

/// Completes a checkpoint's folder, which has state and memory layer already. Blocks.
fn link(files: &Files, source: &Path, folder: &Path) -> Result<(), ChangeError> {
    let taken = files.memory.len().saturating_sub(usize::from(files.has_memory()));
    let layers = files.disk.iter().chain(&files.memory[..taken]).map(|layer| &layer.name);
    for name in layers.chain(&files.working_set) {
        layers::link(&source.join(name), &folder.join(name)).map_err(ChangeError::Layer)?;
    }
    CrashPoint::CheckpointLinked.pass();
    Ok(())
}

/// Puts a checkpoint's files on stable storage. Blocks.
fn sync(files: &Files, folder: &Path) -> Result<(), ChangeError> {
    files.sync(folder).map_err(|source| ChangeError::Host { what: "sync the checkpoint", source })?;
    CrashPoint::CheckpointSynced.pass();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_has_the_sandboxs_layers_and_the_new_memory_on_top() {
        let (sandbox, checkpoint) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut files = Files::default();
        files.disk = vec![Layer::own(files.new_name(Role::Disk)), Layer::own(files.new_name(Role::Disk))];
        files.memory = vec![Layer::own(files.new_name(Role::Memory))];
        for name in files.names() {
            std::fs::write(sandbox.path().join(name), name).unwrap();
        }
        let names = [files.new_name(Role::State), files.new_name(Role::Memory)];
        let new = create(sandbox.path(), "disk-9.layer", 4096, checkpoint.path(), Some(names)).unwrap();
        let Some([(state, _), (memory, _)]) = new.memory else { panic!("no files for the memory") };
        assert!(sandbox.path().join(&memory).exists());
        files.note_written(memory, false);
        let files = files.written_down(state);

        link(&files, sandbox.path(), checkpoint.path()).unwrap();

        for name in files.names() {
            assert!(checkpoint.path().join(name).exists(), "{name}");
        }
        assert_eq!(std::fs::read_dir(checkpoint.path()).unwrap().count(), files.names().len());
    }
}
