//! Server-sent events: <https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation>. A stream that
//! breaks off is taken up again where it was.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{Client, ClientError};

/// Longest event that is taken, in bytes.
const EVENT_LIMIT: usize = 1 << 20;
/// How long a stream may say nothing, not even that it goes on.
const SILENCE: Duration = Duration::from_secs(60);
/// How long it is tried to reach the API again from the first failure on, and the time between two tries.
const RECONNECT_FOR: Duration = Duration::from_secs(120);
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// The events of a path of the control plane. A connection that breaks off is made anew, from the last event that it had.
pub(crate) struct EventStream {
    client: Client,
    path: String,
    /// The last id that was sent, of an event or without one.
    last_id: Option<String>,
    reading: Option<Reading>,
    /// Since it could be read last.
    retries: Retries,
}

struct Reading {
    events: Events,
    pieces: BoxStream<'static, reqwest::Result<Bytes>>,
}

impl EventStream {
    /// The events that follow the one with this id; without one, those that the API begins with. `path` follows `/v1`.
    pub(crate) fn new(client: &Client, path: String, last_id: Option<String>) -> Self {
        Self { client: client.clone(), path, last_id, reading: None, retries: Retries::default() }
    }

    /// The next event.
    ///
    /// # Errors
    ///
    /// Fails if the API refuses, or cannot be reached for long.
    pub(crate) async fn next(&mut self) -> Result<Event, ClientError> {
        loop {
            match self.step().await {
                Ok(event) => return Ok(event),
                Err(error) => self.retries.pause_after(error).await?,
            }
        }
    }

    /// What an event says.
    ///
    /// # Errors
    ///
    /// Fails if it is not what is expected.
    pub(crate) fn parse<T: DeserializeOwned>(&self, event: &Event) -> Result<T, ClientError> {
        serde_json::from_str(&event.data).map_err(|error| self.client.malformed(&self.path, &error.to_string()))
    }

    /// The next event that is sent. After an error the next step connects anew.
    async fn step(&mut self) -> Result<Event, ClientError> {
        let mut reading = match self.reading.take() {
            Some(reading) => reading,
            None => {
                let reading = self.connect().await?;
                self.retries = Retries::default();
                reading
            }
        };
        loop {
            if let Some(event) = reading.events.next() {
                self.last_id.clone_from(&event.id);
                self.reading = Some(reading);
                return Ok(event);
            }
            self.last_id.clone_from(&reading.events.last_id);
            let broken = |why: String| Err(ClientError::Broken(why));
            match tokio::time::timeout(SILENCE, reading.pieces.next()).await {
                Ok(Some(Ok(piece))) => {
                    reading.events.push(&piece).map_err(|why| self.client.malformed(&self.path, why))?;
                }
                Ok(Some(Err(error))) => return broken(error.to_string()),
                Ok(None) => return broken("the stream came to its end".to_owned()),
                Err(_) => return broken(format!("nothing came for {} s", SILENCE.as_secs())),
            }
        }
    }

    async fn connect(&self) -> Result<Reading, ClientError> {
        let request = self.client.http.get(format!("{}/v1{}", self.client.base_url, self.path));
        let mut request = self.client.authorized(request).header("accept", "text/event-stream");
        if let Some(id) = &self.last_id {
            request = request.header("last-event-id", id);
        }
        let silence = |_| ClientError::Broken(format!("nothing came for {} s", SILENCE.as_secs()));
        let response = tokio::time::timeout(SILENCE, self.client.send(request)).await.map_err(silence)??;
        let events = Events { last_id: self.last_id.clone(), ..Events::default() };
        Ok(Reading { events, pieces: response.bytes_stream().boxed() })
    }
}

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// Its type; empty where it has none.
    pub(crate) name: String,
    /// Its lines, with line feeds between them.
    pub(crate) data: String,
    /// The last id that was sent until its end.
    id: Option<String>,
}

/// Finds the events in pieces of a stream. Comments and `retry` are read over.
#[derive(Debug, Default)]
struct Events {
    line: Vec<u8>,
    /// The last byte was a carriage return: a line feed after it belongs to it.
    ended_with_return: bool,
    event: Event,
    /// The last `id`, which lasts until another one comes, and its value until the end of what it stands in.
    last_id: Option<String>,
    next_id: Option<String>,
    complete: VecDeque<Event>,
}

impl Events {
    /// Takes the next piece.
    ///
    /// # Errors
    ///
    /// Says so where an event is longer than any should be.
    fn push(&mut self, piece: &[u8]) -> Result<(), &'static str> {
        for &byte in piece {
            let follows_return = std::mem::replace(&mut self.ended_with_return, byte == b'\r');
            match byte {
                b'\n' if follows_return => {}
                b'\n' | b'\r' => self.end_of_line(),
                byte => self.line.push(byte),
            }
            if self.line.len() + self.event.data.len() > EVENT_LIMIT {
                return Err("an event is longer than 1 MiB");
            }
        }
        Ok(())
    }

    /// The next event that is complete.
    fn next(&mut self) -> Option<Event> {
        self.complete.pop_front()
    }

    fn end_of_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        if line.is_empty() {
            let mut event = std::mem::take(&mut self.event);
            // With an event or without one.
            if let Some(id) = self.next_id.take() {
                self.last_id = Some(id);
            }
            event.id.clone_from(&self.last_id);
            // A line feed follows each line; that of the last is no part of it. Without data there is no event.
            if event.data.pop().is_some() {
                self.complete.push_back(event);
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "id" if !value.contains('\0') => self.next_id = Some(value.to_owned()),
            "data" => {
                self.event.data.push_str(value);
                self.event.data.push('\n');
            }
            _ => {}
        }
    }
}

/// Tries to reach the API again, for a while from the first failure on.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    give_up_at: Option<Instant>,
}

impl Retries {
    /// Waits until the next try; or returns the error where there is to be none.
    pub(crate) async fn pause_after(&mut self, error: ClientError) -> Result<(), ClientError> {
        let give_up_at = *self.give_up_at.get_or_insert_with(|| Instant::now() + RECONNECT_FOR);
        if Instant::now() >= give_up_at || !may_pass(&error) {
            return Err(error);
        }
        tokio::time::sleep(RECONNECT_AFTER).await;
        Ok(())
    }
}

/// Whether it is worth another try: the API is being started anew, or cannot reach the host for a moment.
fn may_pass(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable { .. } | ClientError::Broken(_) => true,
        ClientError::Refused { status, .. } => matches!(status, 429 | 502 | 503 | 504),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut events = Events::default();
        let mut all = Vec::new();
        for piece in pieces {
            events.push(piece).unwrap();
            all.extend(std::iter::from_fn(|| events.next()).map(|event| (event.name, event.data)));
        }
        all
    }

    fn event(name: &str, data: &str) -> (String, String) {
        (name.to_owned(), data.to_owned())
    }

    #[test]
    fn events_are_found_wherever_the_pieces_end() {
        let text =
            ": hello\n\nid: 7\nevent: log\ndata: {\"a\":\ndata:1}\n\ndata: bare\r\n\r\nevent: none\n\ndata: half"
                .as_bytes();
        let expected = [event("log", "{\"a\":\n1}"), event("", "bare")];
        assert_eq!(read(&[text]), expected);
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(read(&bytes), expected);
    }

    #[test]
    fn the_last_id_is_that_of_what_has_come_to_its_end() {
        let mut events = Events::default();
        events.push(b"id: 6\n: still here\n\nevent: log\n").unwrap();
        assert_eq!((events.next(), events.last_id.as_deref()), (None, Some("6")));
        events.push(b"id: 7\ndata: x\n").unwrap();
        assert_eq!((events.next(), events.last_id.as_deref()), (None, Some("6")));
        events.push(b"\ndata: y\n\n").unwrap();
        let ids: Vec<_> = std::iter::from_fn(|| events.next()).map(|event| event.id.unwrap()).collect();
        assert_eq!(ids, ["7", "7"]);
    }

    #[test]
    fn an_event_without_an_end_is_no_longer_read() {
        let mut events = Events::default();
        let outcome = (0..2048).try_for_each(|_| events.push(&[b'x'; 1024]));
        assert!(outcome.is_err());
        let mut events = Events::default();
        let line = [&b"data: "[..], &[b'x'; 1018], b"\n"].concat();
        assert!((0..2048).try_for_each(|_| events.push(&line)).is_err());
    }

    fn broken() -> ClientError {
        ClientError::Broken("gone".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_tried_again_for_a_while_from_the_first_failure_on() {
        let mut retries = Retries::default();
        // However long nothing was wrong before.
        tokio::time::advance(10 * RECONNECT_FOR).await;
        let began = Instant::now();

        while retries.pause_after(broken()).await.is_ok() {}

        let took = began.elapsed();
        assert!((RECONNECT_FOR..2 * RECONNECT_FOR).contains(&took), "{took:?}");
        assert!(Retries::default().pause_after(broken()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_pass_is_not_tried_again() {
        let refused = ClientError::Refused {
            status: 404,
            code: String::new(),
            message: String::new(),
            request_id: String::new(),
        };
        assert!(Retries::default().pause_after(refused).await.is_err());
    }
}
