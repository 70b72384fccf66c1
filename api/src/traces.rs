//! `GET /traces`, for operators: where the time of requests went that changed something, here and in the agent.

use axum::Json;
use axum::extract::State;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{self, Pairs};
use sandpiper_protocol::trace::{Step, Trace, TraceList};
use sandpiper_trace::Traces;

use crate::agent_client::AgentClient;

/// This process's traces, and where to ask for the agent's parts of them.
#[derive(Debug, Clone)]
pub struct Sources {
    pub own: Traces,
    /// Where sandboxes are served.
    pub agent: Option<AgentClient>,
}

/// `GET /traces?sandbox=ID`: those about one sandbox, or all that are kept, newest first.
pub async fn list(State(sources): State<Sources>, Pairs(pairs): Pairs) -> Result<Json<TraceList>, ApiError> {
    let mut sandbox = None;
    for (name, value) in pairs {
        match name.as_str() {
            "sandbox" => sandbox = Some(value),
            _ => return Err(query::unknown(&name)),
        }
    }
    let mut traces = sources.own.list(sandbox.as_deref());
    if let Some(agent) = &sources.agent {
        join(&mut traces, agent.traces(sandbox.as_deref()).await?);
    }
    Ok(Json(TraceList { traces }))
}

/// Puts the agent's part of each trace into the step that called the agent, and adds what the agent does unasked, such as
/// builds. Calls of other processes are left out.
pub(crate) fn join(traces: &mut Vec<Trace>, of_agent: Vec<Trace>) {
    for part in of_agent {
        let Some(trace) = traces.iter_mut().find(|trace| trace.id == part.id) else {
            if part.steps.first().is_some_and(|step| !step.name.contains(" /")) {
                traces.push(part);
            }
            continue;
        };
        let Some(whole) = part.steps.first() else { continue };
        // What it did beside the call of the agent may have begun within that, and is over before.
        let last_us = whole.end_us.unwrap_or(whole.start_us);
        let within = |step: &Step| step.start_us <= whole.start_us && step.end_us.is_none_or(|end| end >= last_us);
        let caller = trace.steps.iter().rposition(within).unwrap_or(0);
        let depth = trace.steps.get(caller).map_or(0, |step| step.depth) + 1;
        let steps = part.steps.into_iter().map(|mut step| {
            step.depth += depth;
            step
        });
        trace.steps.splice(caller + 1..caller + 1, steps);
    }
    traces.sort_by_key(|trace| std::cmp::Reverse(trace.steps.first().map(|step| step.start_us)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(id: &str, steps: &[(&str, u32, u64, u64)]) -> Trace {
        let step = |&(name, depth, start_us, end_us): &(&str, u32, u64, u64)| Step {
            name: name.to_owned(),
            by: "api".to_owned(),
            depth,
            start_us,
            end_us: Some(end_us),
        };
        Trace { id: id.to_owned(), sandbox: None, steps: steps.iter().map(step).collect() }
    }

    #[test]
    fn the_agents_steps_are_within_the_call_of_the_agent() {
        let mut traces = vec![
            trace("a", &[("create", 0, 0, 100), ("agent", 1, 11, 80), ("row", 1, 12, 30), ("mirror", 1, 81, 90)]),
            trace("b", &[("create", 0, 0, 100)]),
        ];
        let of_agent = vec![
            trace("a", &[("create", 0, 14, 79), ("gather", 1, 20, 30)]),
            trace("c", &[("POST /sandboxes", 0, 1, 2)]),
            trace("d", &[("build", 0, 90, 95)]),
        ];

        join(&mut traces, of_agent);

        let ids: Vec<_> = traces.iter().map(|trace| trace.id.as_str()).collect();
        assert_eq!(ids, ["d", "a", "b"]);
        let traces = &traces[1..];

        let seen: Vec<_> = traces[0].steps.iter().map(|step| (step.name.as_str(), step.depth, step.start_us)).collect();
        let expected = [
            ("create", 0, 0),
            ("agent", 1, 11),
            ("create", 2, 14),
            ("gather", 3, 20),
            ("row", 1, 12),
            ("mirror", 1, 81),
        ];
        assert_eq!(seen, expected);
        assert_eq!(traces[1].steps.len(), 1);
    }
}
