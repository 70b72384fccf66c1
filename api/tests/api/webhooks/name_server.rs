//! A name server on this machine, which is asked by UDP as real ones are.

use std::net::SocketAddr;

use hickory_resolver::proto::op::{Message, Query, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, CNAME};
use hickory_resolver::proto::rr::{Name, RData, Record};
use tokio::net::UdpSocket;

/// The server, until this is dropped.
pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl NameServer {
    /// One that knows these records. Other names do not exist.
    pub(crate) async fn knowing(records: Vec<Record>) -> Self {
        let (address, socket) = bind().await;
        let task = tokio::spawn(async move {
            let mut question = [0; 4096];
            loop {
                let (length, from) = socket.recv_from(&mut question).await.unwrap();
                let answer = answer(&question[..length], &records);
                socket.send_to(&answer, from).await.unwrap();
            }
        });
        Self { address, task }
    }

    /// One that takes questions and never answers.
    pub(crate) async fn silent() -> Self {
        let (address, socket) = bind().await;
        let task = tokio::spawn(async move {
            let _socket = socket;
            std::future::pending().await
        });
        Self { address, task }
    }
}

async fn bind() -> (SocketAddr, UdpSocket) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    (socket.local_addr().unwrap(), socket)
}

fn answer(question: &[u8], records: &[Record]) -> Vec<u8> {
    let mut message = Message::from_vec(question).unwrap().into_response();
    let found = look_up(&message.queries[0], records);
    let exists = records.iter().any(|record| record.name == message.queries[0].name);
    message.metadata.response_code = if exists { ResponseCode::NoError } else { ResponseCode::NXDomain };
    message.metadata.recursion_available = true;
    message.add_answers(found);
    message.to_vec().unwrap()
}

/// What there is under the name, and under the name that it is another one for.
fn look_up(query: &Query, records: &[Record]) -> Vec<Record> {
    let mut name = query.name.clone();
    let mut found = Vec::new();
    for record in records {
        let is_wanted = record.record_type() == query.query_type;
        match &record.data {
            RData::CNAME(target) if record.name == name => {
                name = target.0.clone();
                found.push(record.clone());
            }
            _ if record.name == name && is_wanted => found.push(record.clone()),
            _ => {}
        }
    }
    found
}

/// An IPv4 address of a name.
pub(crate) fn a(name: &str, address: &str) -> Record {
    record(name, RData::A(A(address.parse().unwrap())))
}

/// An IPv6 address of a name.
pub(crate) fn aaaa(name: &str, address: &str) -> Record {
    record(name, RData::AAAA(AAAA(address.parse().unwrap())))
}

/// What a name stands for. The records of that come after it.
pub(crate) fn alias(name: &str, target: &str) -> Record {
    record(name, RData::CNAME(CNAME(whole(target))))
}

fn record(name: &str, data: RData) -> Record {
    Record::from_rdata(whole(name), 60, data)
}

fn whole(name: &str) -> Name {
    Name::from_ascii(format!("{name}.")).unwrap()
}
