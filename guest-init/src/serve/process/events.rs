//! The stream of events that `Start` and `Connect` respond with.

use std::future::pending;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{Stream, stream};
use sandpiper_protocol::process::{DataEvent, Empty, EventMessage, ProcessEvent, StartEvent};
use tokio::time::{Instant, sleep, sleep_until};

use super::output::{Item, Source, Subscriber};
use crate::serve::connect::{deadline_exceeded, end, frame};

/// What the stream sends next.
enum Next {
    Start,
    Item,
    EndOfStream,
    Nothing,
}

struct Events {
    pid: u32,
    subscriber: Subscriber,
    keepalive: Duration,
    deadline: Option<Instant>,
    next: Next,
}

/// The envelopes of a process's events from its first that is left, to its end or to `deadline`.
pub(super) fn of(
    pid: u32,
    subscriber: Subscriber,
    keepalive: Duration,
    deadline: Option<Instant>,
) -> impl Stream<Item = Vec<u8>> + Send {
    let events = Events { pid, subscriber, keepalive, deadline, next: Next::Start };
    stream::unfold(events, |mut events| async move { Some((events.next().await?, events)) })
}

impl Events {
    async fn next(&mut self) -> Option<Vec<u8>> {
        match self.next {
            Next::Start => {
                self.next = Next::Item;
                Some(event(ProcessEvent::Start(StartEvent { pid: self.pid })))
            }
            Next::Item => Some(self.item().await),
            Next::EndOfStream => {
                self.next = Next::Nothing;
                Some(end(None))
            }
            Next::Nothing => None,
        }
    }

    async fn item(&mut self) -> Vec<u8> {
        let deadline = async {
            match self.deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => pending().await,
            }
        };
        tokio::select! {
            item = self.subscriber.next() => match item {
                Item::Data(source, bytes) => event(ProcessEvent::Data(data(source, &bytes))),
                Item::End(end) => {
                    self.next = Next::EndOfStream;
                    event(ProcessEvent::End(end))
                }
            },
            () = sleep(self.keepalive) => event(ProcessEvent::Keepalive(Empty {})),
            () = deadline => {
                self.next = Next::Nothing;
                end(Some(&deadline_exceeded()))
            }
        }
    }
}

fn event(event: ProcessEvent) -> Vec<u8> {
    frame(&EventMessage { event })
}

fn data(source: Source, bytes: &Bytes) -> DataEvent {
    let encoded = STANDARD.encode(bytes);
    match source {
        Source::Stdout => DataEvent::Stdout(encoded),
        Source::Stderr => DataEvent::Stderr(encoded),
        Source::Pty => DataEvent::Pty(encoded),
    }
}
