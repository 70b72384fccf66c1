//! Events of a team: each cause has its own exactly once, and no reader misses one.

use serde_json::Value;

use crate::support::Host;

mod causes;
mod interruptions;
mod pages;
mod stream;

pub(crate) use stream::Events;

impl Host {
    /// All events of team `acme`, page by page.
    async fn events(&self) -> Vec<Value> {
        self.events_of(&self.read, "").await
    }

    /// Those that a key's team has, with this in the query.
    async fn events_of(&self, key: &str, filter: &str) -> Vec<Value> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let path = format!("/v1/events?after={after}&limit=3{filter}");
            let mut page = self.call("GET", &path, key, None).await.expect(200);
            after = page["next_after"].as_u64().unwrap();
            all.append(page["events"].as_array_mut().unwrap());
            if page["has_more"] == false {
                return all;
            }
        }
    }

    /// The types of all events of a thing.
    async fn told_of(&self, id: &str) -> Vec<String> {
        types(&self.events_of(&self.read, &format!("&resource={id}")).await)
    }
}

fn types(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
}

fn sequences(events: &[Value]) -> Vec<u64> {
    events.iter().map(|event| event["sequence"].as_u64().unwrap()).collect()
}
